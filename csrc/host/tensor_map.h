// Tensor maps: how the copy engine finds boxes of a strided [batch, rows, heads, head_dim] tensor.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace fm3::host {

// A tensor of 16-bit values with a contiguous head dimension; strides in elements.
struct RowTensor {
  const void* data = nullptr;  // [batch, rows, heads, head_dim]
  int64_t batch = 0, rows = 0, heads = 0, head_dim = 0;
  int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
};

// The map of {64, rows, head_dim / 64, heads, batch} whose box is box_rows rows of one head, laid out in shared memory
// as [head_dim / 64][box_rows][64] with the 128-byte swizzle. Rows beyond the tensor read as zero, are not written.
CUtensorMap make_row_map(const RowTensor& tensor, bool is_bf16, int box_rows);

}  // namespace fm3::host
