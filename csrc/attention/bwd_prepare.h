// Once a mask, for every backward pass: which row blocks each key block visits, and the order in which key blocks come.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "attention/bwd_params.h"

namespace fm3::attention {

// Bytes of the arrays of BwdLists, for whoever allocates them.
struct BwdListSizes {
  int64_t records, sorted, visits;
};
BwdListSizes bwd_list_sizes(int batch, int heads, int num_rows, int num_keys);

// Fills the arrays that `lists` points to from a mask whose columns and extrema are prepared. The key block whose first
// row block is last comes first, ties in ascending order: who waits for another's addition at a row block then comes
// there later than the other. kv_heads: of the attention, since query heads that share keys share the order of the
// first one's mask; a multiple of the mask's heads or a divisor of them.
void prepare_bwd_lists(const PreparedMask& mask, const BwdLists& lists, int kv_heads, cudaStream_t stream);

}  // namespace fm3::attention
