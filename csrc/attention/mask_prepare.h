// Once a mask, shared by every layer and both passes: packed columns, block extrema, and the row blocks by work.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "attention/fwd_params.h"

namespace fm3::attention {

// The four vectors as the user has them; any of them strided by whole [keys] rows.
struct ColumnVectors {
  const int32_t* lts = nullptr;  // [batch, heads, keys] int32, hidden rows [lts, lte)
  const int32_t* lte = nullptr;
  const int32_t* uts = nullptr;  // hidden rows [uts, ute)
  const int32_t* ute = nullptr;
};

// Bytes of the three outputs, for whoever allocates them.
struct PreparedSizes {
  int64_t columns, extrema, row_blocks, unsorted;
};
PreparedSizes prepared_sizes(int batch, int heads, int num_rows, int num_keys, int block_rows);

// Fills the arrays that `mask` points to; `unsorted` is scratch of sizes.unsorted bytes. Values are clamped to
// 0..num_rows and a reversed span hides nothing. block_rows: 64, 128 or 192.
void prepare_mask(const ColumnVectors& vectors, const PreparedMask& mask, int4* unsorted, int block_rows,
                  cudaStream_t stream);

}  // namespace fm3::attention
