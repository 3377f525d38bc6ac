#include "attention/bwd_rows.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attention/bwd_dq.cuh"
#include "host/error.h"
#include "tile/fragment.cuh"

namespace fm3::attention {
namespace {

constexpr int kThreads = 256;

// Where a CTA's rows are.
struct RowBlock {
  int batch, head, row_start;

  __device__ RowBlock(const RowProblem& problem) {
    const int pair = blockIdx.x / problem.num_row_blocks;
    batch = pair / problem.heads;
    head = pair - batch * problem.heads;
    row_start = (blockIdx.x - pair * problem.num_row_blocks) * kBwdRows;
  }
  __device__ int64_t offset(const RowView& view, int row) const {
    return batch * view.batch_stride + (row_start + row) * view.row_stride + head * view.head_stride;
  }
};

template <Dtype kDtype>
__device__ float2 unpack(uint32_t packed) {
  if constexpr (kDtype == Dtype::kBf16) return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&packed));
  return __half22float2(*reinterpret_cast<const __half2*>(&packed));
}

// One CTA for one row block of one head.
template <Dtype kDtype, int kHeadDim>
__global__ void __launch_bounds__(kThreads)
    prepare_row_block(RowProblem problem, RowView out, RowView d_out, const float* lse, const float* d_lse,
                      float* row_terms, int32_t* turns) {
  constexpr int kLanes = kHeadDim / 8;  // threads of one row, 16 bytes each
  constexpr float kLog2E = 1.4426950408889634f;
  const RowBlock block(problem);
  const int64_t index = blockIdx.x;
  const int lane = threadIdx.x % kLanes;
#pragma unroll
  for (int row = threadIdx.x / kLanes; row < kBwdRows; row += kThreads / kLanes) {
    const bool exists = block.row_start + row < problem.num_rows;
    float sum = 0.f;
    if (exists && out.data != nullptr) {
      const uint4 a =
          *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(out.data) + block.offset(out, row) + 8 * lane);
      const uint4 b = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(d_out.data) +
                                                      block.offset(d_out, row) + 8 * lane);
      const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 u = unpack<kDtype>(x[i]), w = unpack<kDtype>(y[i]);
        sum = fmaf(u.x, w.x, fmaf(u.y, w.y, sum));
      }
    }
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane != 0) continue;
    float minus_lse = -__builtin_huge_valf(), term = 0.f;
    if (exists) {
      const int64_t at =
          static_cast<int64_t>(blockIdx.x / problem.num_row_blocks) * problem.num_rows + block.row_start + row;
      const float row_lse = lse[at];
      if (row_lse != -__builtin_huge_valf()) {
        minus_lse = -row_lse * kLog2E;
        term = sum - (d_lse != nullptr ? d_lse[at] : 0.f);
      }
    }
    row_terms[index * (2 * kBwdRows) + term_place(row)] = minus_lse;
    row_terms[index * (2 * kBwdRows) + kBwdRows + term_place(row)] = term;
  }
  if (threadIdx.x == 0) turns[index] = 0;
}

// One CTA of eight warps for one row block of one head; each warp has the fragments of one warp of the kernel.
template <Dtype kDtype, int kHeadDim>
__global__ void __launch_bounds__(kThreads)
    convert_dq_block(RowProblem problem, const float* dq_sums, const int32_t* turns, float scale, RowView dq) {
  using Order = DqOrder<kHeadDim>;
  constexpr ptx::Element kElement = kDtype == Dtype::kBf16 ? ptx::Element::kBf16 : ptx::Element::kFp16;
  constexpr int kPitch = kHeadDim + 8;  // of a staged row, so that neighbouring rows lie in other banks
  __shared__ __align__(16) uint16_t staged[kBwdRows * kPitch];
  const RowBlock block(problem);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float4* sums = reinterpret_cast<const float4*>(
      dq_sums + static_cast<int64_t>(blockIdx.x) * Order::kBlockFloats + warp * Order::kWarpFloats);
  const bool is_set = turns[blockIdx.x] != 0;
  const int row = 16 * (warp % 4) + lane / 4;
  uint16_t* at = staged + row * kPitch + warp / 4 * (kHeadDim / 2) + 2 * (lane % 4);
#pragma unroll
  for (int j = 0; j < Order::kGroups; ++j) {
    const float4 x = is_set ? sums[32 * j + lane] : make_float4(0.f, 0.f, 0.f, 0.f);
    *reinterpret_cast<uint32_t*>(at + 8 * j) = tile::pack<kElement>(x.x * scale, x.y * scale);
    *reinterpret_cast<uint32_t*>(at + 8 * kPitch + 8 * j) = tile::pack<kElement>(x.z * scale, x.w * scale);
  }
  __syncthreads();
  constexpr int kLanes = kHeadDim / 8;
#pragma unroll
  for (int i = threadIdx.x / kLanes; i < kBwdRows; i += kThreads / kLanes) {
    if (block.row_start + i >= problem.num_rows) break;
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(dq.data) + block.offset(dq, i) + 8 * (threadIdx.x % kLanes)) =
        *reinterpret_cast<const uint4*>(staged + i * kPitch + 8 * (threadIdx.x % kLanes));
  }
}

// The kernel of the problem's dtype and head dim.
template <typename Function>
Function choose(const RowProblem& problem, Function bf16_64, Function bf16_128, Function fp16_64, Function fp16_128) {
  if (problem.head_dim != 64 && problem.head_dim != 128) throw Error("backward rows: head_dim must be 64 or 128");
  if (problem.dtype == Dtype::kBf16) return problem.head_dim == 64 ? bf16_64 : bf16_128;
  return problem.head_dim == 64 ? fp16_64 : fp16_128;
}

int num_ctas(const RowProblem& problem) { return problem.batch * problem.heads * problem.num_row_blocks; }

}  // namespace

void prepare_rows(const RowProblem& problem, const RowView& out, const RowView& d_out, const float* lse,
                  const float* d_lse, float* row_terms, int32_t* turns, cudaStream_t stream) {
  if (num_ctas(problem) == 0) return;
  const auto kernel = choose(problem, prepare_row_block<Dtype::kBf16, 64>, prepare_row_block<Dtype::kBf16, 128>,
                             prepare_row_block<Dtype::kFp16, 64>, prepare_row_block<Dtype::kFp16, 128>);
  kernel<<<num_ctas(problem), kThreads, 0, stream>>>(problem, out, d_out, lse, d_lse, row_terms, turns);
  check(cudaGetLastError(), "prepare_row_block");
}

void convert_dq(const RowProblem& problem, const float* dq_sums, const int32_t* turns, float scale, const RowView& dq,
                cudaStream_t stream) {
  if (num_ctas(problem) == 0) return;
  const auto kernel = choose(problem, convert_dq_block<Dtype::kBf16, 64>, convert_dq_block<Dtype::kBf16, 128>,
                             convert_dq_block<Dtype::kFp16, 64>, convert_dq_block<Dtype::kFp16, 128>);
  kernel<<<num_ctas(problem), kThreads, 0, stream>>>(problem, dq_sums, turns, scale, dq);
  check(cudaGetLastError(), "convert_dq_block");
}

}  // namespace fm3::attention
