// What a block is to each consumer warpgroup of the backward kernel: 64 rows against that warpgroup's 64 keys.
#pragma once

#include "attention/block_classify.cuh"
#include "attention/bwd_config.h"
#include "attention/fwd_params.h"

namespace fm3::attention {

// Flags of rows [row_start, row_end) against one half of a key block; kLeftVisible where some pair is visible, else 0.
__device__ inline uint32_t classify_half(const ColumnExtrema& half, int row_start, int row_end) {
  if (half.hides_all(row_start, row_end)) return 0;
  uint32_t cuts = half.lower.ends_to_compare(row_start, row_end, kLowerStart, kLowerEnd);
  if (half.upper.touches(row_start, row_end)) {
    cuts |=
        half.upper.diagonal ? kUpperDiagonal : half.upper.ends_to_compare(row_start, row_end, kUpperStart, kUpperEnd);
  }
  return kLeftVisible | cuts;
}

// Whether the map of blocks to keep, if the mask has one, keeps this one. head: index into [batch, heads] of the mask.
__device__ inline bool keeps_row_block(const PreparedMask& mask, int head, int key_block, int row_block) {
  if (mask.keep == nullptr) return true;
  const int64_t rows = static_cast<int64_t>(head) * mask.num_row_blocks + row_block / kBwdBlocksOfKeep;
  return mask.keep[rows * mask.num_key_blocks + key_block] != 0;
}

// Flags of both halves of key block `key_block` against row block `row_block`, kFlagBits each.
__device__ inline uint32_t classify_row_block(const PreparedMask& mask, int head, int key_block, int row_block) {
  const int4* packed = mask.extrema + 4 * (static_cast<int64_t>(head) * mask.num_key_blocks + key_block);
  const int start = kBwdRows * row_block;
  const int end = min(start + kBwdRows, mask.num_rows);
  uint32_t flags = 0;
#pragma unroll 1  // few registers matter more than time here
  for (int half = 0; half < kBwdWarpgroups; ++half) {
    const ColumnExtrema columns{SpanExtrema::unpack(packed[2 * half]), SpanExtrema::unpack(packed[2 * half + 1])};
    flags |= classify_half(columns, start, end) << (kFlagBits * half);
  }
  return keeps_row_block(mask, head, key_block, row_block) ? flags : 0;
}

}  // namespace fm3::attention
