// The row spans applied to transposed scores: a thread has two keys and sixteen rows of a block.
#pragma once

#include <cstdint>

#include "attention/block_classify.cuh"
#include "attention/mask.cuh"

namespace fm3::attention {

// First and last rows of what hides from one key, counted from the thread's first row.
struct KeyLimits {
  int lower_start, lower_end, upper_start, upper_end;
};

// Limits that `flags` do not ask for are such that they never decide. columns: [4, kBlockKeys] in shared memory.
__device__ __forceinline__ KeyLimits key_limits(uint32_t flags, const int32_t* columns, int key, int diagonal_end,
                                                int first_row) {
  KeyLimits limits{kFar, kFar, kFar, -kFar};
  if ((flags & (kLowerStart | kLowerEnd)) != 0) {
    limits.lower_start = (flags & kLowerStart) != 0 ? columns[key] - first_row : -kFar;
    if ((flags & kLowerEnd) != 0) limits.lower_end = columns[kBlockKeys + key] - first_row;
  }
  if ((flags & kUpperDiagonal) != 0) {
    limits.upper_start = -kFar;
    limits.upper_end = diagonal_end - first_row;
  } else if ((flags & (kUpperStart | kUpperEnd)) != 0) {
    limits.upper_start = (flags & kUpperStart) != 0 ? columns[2 * kBlockKeys + key] - first_row : -kFar;
    limits.upper_end = (flags & kUpperEnd) != 0 ? columns[3 * kBlockKeys + key] - first_row : kFar;
  }
  return limits;
}

// Hides rows by comparing with the kEnds of each key's limits. scores: transposed, rows 8 j + c counted from the first.
template <uint32_t kEnds, int kScores>
__device__ __forceinline__ void hide_rows(float (&scores)[kScores], const KeyLimits (&limits)[2]) {
#pragma unroll
  for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = 8 * j + c;
        bool lower = (kEnds & (kLowerStart | kLowerEnd)) != 0;
        bool upper = (kEnds & (kUpperStart | kUpperEnd)) != 0;
        if constexpr ((kEnds & kLowerStart) != 0) lower = lower && row >= limits[h].lower_start;
        if constexpr ((kEnds & kLowerEnd) != 0) lower = lower && row < limits[h].lower_end;
        if constexpr ((kEnds & kUpperStart) != 0) upper = upper && row >= limits[h].upper_start;
        if constexpr ((kEnds & kUpperEnd) != 0) upper = upper && row < limits[h].upper_end;
        if (lower || upper) scores[4 * j + 2 * h + c] = kHidden;
      }
    }
  }
}

// key: of the thread's first key within the block, the other is 8 further. diagonal_end: the row from which the causal
// span shows that first key. first_row: of the thread's rows.
template <int kScores>
__device__ __forceinline__ void apply_transposed_mask(float (&scores)[kScores], uint32_t flags, const int32_t* columns,
                                                      int key, int diagonal_end, int first_row) {
  const KeyLimits limits[2] = {key_limits(flags, columns, key, diagonal_end, first_row),
                               key_limits(flags, columns, key + 8, diagonal_end + 8, first_row)};
  const bool plain = (flags & (kLowerEnd | kUpperStart)) == 0;
  const bool lower = (flags & (kLowerStart | kLowerEnd)) != 0;
  const bool upper = (flags & (kUpperStart | kUpperEnd | kUpperDiagonal)) != 0;
  if (plain && !lower) {
    hide_rows<kUpperEnd>(scores, limits);
  } else if (plain && !upper) {
    hide_rows<kLowerStart>(scores, limits);
  } else if (plain) {
    hide_rows<kLowerStart | kUpperEnd>(scores, limits);
  } else {
    hide_rows<kVectorFlags>(scores, limits);
  }
}

}  // namespace fm3::attention
