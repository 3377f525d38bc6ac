// The extrema of a mask's vectors over blocks of key columns: what classifies a block of rows and keys in O(1).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace fm3::attention {

struct BlockExtremaParams {
  const int32_t* lts = nullptr;  // [masks, keys] int32, hidden rows [lts, lte); masks = batch * heads
  const int32_t* lte = nullptr;  // [masks, keys]
  const int32_t* uts = nullptr;  // [masks, keys] int32, hidden rows [uts, ute)
  const int32_t* ute = nullptr;  // [masks, keys]
  int32_t* table = nullptr;      // [8, masks, key blocks], out: max start, min end over all columns, max end, min start
                                 // over the columns whose span is not empty; of the lower span, then of the upper one
  int64_t num_masks = 0;
  int64_t num_keys = 0;
  int32_t num_rows = 0;
  int32_t block_keys = 0;  // > 0; the last block may be shorter
};

// Fills the table; returns without waiting. A block whose spans are all empty has max end 0 and min start num_rows.
void block_extrema(const BlockExtremaParams& params, cudaStream_t stream);

}  // namespace fm3::attention
