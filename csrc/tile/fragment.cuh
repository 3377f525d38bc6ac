// Which element of a 64-row accumulator a thread holds (PTX ISA, "Register Fragments for wgmma.mma_async", D).
//
// Register 4 j + 2 h + c of a thread is row 16 warp + lane / 4 + 8 h, column 8 j + 2 (lane % 4) + c. Packed in pairs,
// the same registers are the A operand of a product that sums over those columns.
#pragma once

#include <cstdint>

#include "ptx/math.cuh"
#include "ptx/wgmma.cuh"

namespace fm3::tile {

// Row of this thread's registers with h = 0; the others are 8 rows further.
__device__ __forceinline__ int fragment_row(int thread) { return (thread / 32 % 4) * 16 + (thread % 32) / 4; }

// First of this thread's columns in every group of eight.
__device__ __forceinline__ int fragment_column(int thread) { return 2 * (thread % 4); }

template <ptx::Element kElement>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  if constexpr (kElement == ptx::Element::kBf16) return ptx::pack_bf16(low, high);
  return ptx::pack_fp16(low, high);
}

// The four lanes that share a row agree on the largest (the sum).
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

}  // namespace fm3::tile
