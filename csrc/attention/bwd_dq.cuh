// Orders shared by the backward kernel and the small kernels before and after it.
#pragma once

#include <cstdint>

#include "attention/bwd_config.h"

namespace fm3::attention {

// A thread of the kernel needs the terms of rows 8 j + 2 q + c (j < 8, c < 2; q its place among four lanes): for two
// neighbouring j they lie side by side, so that one 16-byte load brings four.
__host__ __device__ constexpr int term_place(int row) {
  const int j = row / 8, q = row % 8 / 2, c = row % 2;
  return (j / 2) * 16 + q * 4 + (j % 2) * 2 + c;
}

// dq_sums of one block: [8 warps][head_dim / 16 groups][32 lanes][4]. Warp w = 4 g + r holds rows 16 r..16 r + 15 and
// columns g * head_dim / 2 + 0..head_dim / 2 - 1; its group j is eight of those columns, and a lane's four floats are
// those of its accumulator fragment.
template <int kHeadDim>
struct DqOrder {
  static constexpr int kGroups = kHeadDim / 16;
  static constexpr int kWarpFloats = kGroups * 128;
  static constexpr int kBlockFloats = 8 * kWarpFloats;
};

}  // namespace fm3::attention
