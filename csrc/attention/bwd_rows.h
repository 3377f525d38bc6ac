// What comes before and after the backward kernel, a row block at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "attention/bwd_config.h"

namespace fm3::attention {

// A [batch, rows, heads, head_dim] tensor of 16-bit values: contiguous head dim, strides in elements, multiples of 8.
struct RowView {
  void* data = nullptr;
  int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
};

struct RowProblem {
  Dtype dtype = Dtype::kBf16;
  int head_dim = 0;
  int batch = 0;
  int heads = 0;  // query heads
  int num_rows = 0;
  int num_row_blocks = 0;  // of kBwdRows rows
};

// Before: row_terms, and zeros in turns (see BwdParams). lse, d_lse: [batch, heads, rows] float32, natural logarithm;
// d_lse may be null. Where out.data is null, rowsum(dO O) is taken for 0: whoever has it otherwise puts its negative
// into d_lse.
void prepare_rows(const RowProblem& problem, const RowView& out, const RowView& d_out, const float* lse,
                  const float* d_lse, float* row_terms, int32_t* turns, cudaStream_t stream);

// After: dq = scale * dq_sums, rounded once; 0 where turns says that nothing was added.
void convert_dq(const RowProblem& problem, const float* dq_sums, const int32_t* turns, float scale, const RowView& dq,
                cudaStream_t stream);

}  // namespace fm3::attention
