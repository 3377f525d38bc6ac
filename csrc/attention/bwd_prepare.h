// Once a mask, for every backward pass: which row blocks each key block visits, and the order in which key blocks come.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "attention/bwd_params.h"

namespace fm3::attention {

// How the tiles of one kv head follow each other.
enum class KeyOrder : int {
  kHeaviestFirst = 0,  // most row blocks first
  kLatestFirst = 1,    // the one whose first row block is last comes first: under a causal mask the shortest
};

// Bytes of the arrays of BwdLists, for whoever allocates them.
struct BwdListSizes {
  int64_t records, sorted, visits, openers;
};
BwdListSizes bwd_list_sizes(int batch, int heads, int num_rows, int num_keys);

// Fills the arrays that `lists` points to from a mask whose columns and extrema are prepared; visits and openers
// only where not null. kv_heads: of the attention, since query heads that share keys share the order of the first one's
// mask; a multiple of the mask's heads or a divisor of them.
void prepare_bwd_lists(const PreparedMask& mask, const BwdLists& lists, KeyOrder order, int kv_heads,
                       cudaStream_t stream);

}  // namespace fm3::attention
