// The row spans applied to the scores of a PARTIAL block: no more comparisons than its flags ask for.
#pragma once

#include <cstdint>

#include "attention/block_classify.cuh"
#include "tile/fragment.cuh"

namespace fm3::attention {

// Where a thread's scores lie in the mask.
struct ScorePosition {
  int row;       // of the fragment rows with h = 0
  int column;    // first of the thread's columns within the block
  int diagonal;  // num_keys - num_rows: row i sees keys up to i + diagonal under the causal span
};

constexpr float kHidden = -__builtin_huge_valf();

// Hides what the column vectors of the kEnds spans hide. columns: [4, kBlockKeys] in shared memory.
template <uint32_t kEnds, int kScores>
__device__ __forceinline__ void hide_spans(float (&scores)[kScores], const int32_t* columns,
                                           const ScorePosition& position) {
#pragma unroll
  for (int j = 0; j < kScores / 4; ++j) {
    const int32_t* at = columns + position.column + 8 * j;
    int2 lts{}, lte{}, uts{}, ute{};
    if constexpr ((kEnds & kLowerStart) != 0) lts = *reinterpret_cast<const int2*>(at);
    if constexpr ((kEnds & kLowerEnd) != 0) lte = *reinterpret_cast<const int2*>(at + kBlockKeys);
    if constexpr ((kEnds & kUpperStart) != 0) uts = *reinterpret_cast<const int2*>(at + 2 * kBlockKeys);
    if constexpr ((kEnds & kUpperEnd) != 0) ute = *reinterpret_cast<const int2*>(at + 3 * kBlockKeys);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = position.row + 8 * h;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        bool lower = (kEnds & (kLowerStart | kLowerEnd)) != 0;
        bool upper = (kEnds & (kUpperStart | kUpperEnd)) != 0;
        if constexpr ((kEnds & kLowerStart) != 0) lower = lower && row >= (c == 0 ? lts.x : lts.y);
        if constexpr ((kEnds & kLowerEnd) != 0) lower = lower && row < (c == 0 ? lte.x : lte.y);
        if constexpr ((kEnds & kUpperStart) != 0) upper = upper && row >= (c == 0 ? uts.x : uts.y);
        if constexpr ((kEnds & kUpperEnd) != 0) upper = upper && row < (c == 0 ? ute.x : ute.y);
        if (lower || upper) scores[4 * j + 2 * h + c] = kHidden;
      }
    }
  }
}

// Hides keys beyond row + diagonal.
template <int kScores>
__device__ __forceinline__ void hide_beyond_diagonal(float (&scores)[kScores], int key_start,
                                                     const ScorePosition& position) {
  const int limit = position.row + position.diagonal - key_start - position.column;
#pragma unroll
  for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (8 * j + c - 8 * h > limit) scores[4 * j + 2 * h + c] = kHidden;
      }
    }
  }
}

template <int kScores>
__device__ __forceinline__ void apply_mask(float (&scores)[kScores], uint32_t flags, const int32_t* columns,
                                           int key_start, const ScorePosition& position) {
  if ((flags & kUpperDiagonal) != 0) hide_beyond_diagonal(scores, key_start, position);
  const uint32_t ends = flags & kVectorFlags;
  if (ends == 0) return;
  if (ends == kLowerStart) {
    hide_spans<kLowerStart>(scores, columns, position);
  } else if (ends == kUpperEnd) {
    hide_spans<kUpperEnd>(scores, columns, position);
  } else if (ends == (kLowerStart | kUpperEnd)) {
    hide_spans<kLowerStart | kUpperEnd>(scores, columns, position);
  } else {
    hide_spans<kVectorFlags>(scores, columns, position);
  }
}

}  // namespace fm3::attention
