// Online softmax of a thread's two rows (Milakov and Gimelshein 2018), in base 2 with the scale folded in.
#pragma once

#include <cstdint>

#include "ptx/math.cuh"
#include "ptx/sync.cuh"
#include "tile/fragment.cuh"

namespace fm3::attention {

// The maximum that scores are taken relative to only follows the true one once it lags by 2^kLag: the result is the
// same, since numerator and denominator share it, and most blocks need no rescaling of the output.
constexpr float kLag = 8.f;

struct OnlineSoftmax {
  float max[2] = {-__builtin_huge_valf(), -__builtin_huge_valf()};  // of the raw scores; -inf: nothing visible yet
  float sum[2] = {0.f, 0.f};                                         // of this thread's columns only
  float factor[2] = {1.f, 1.f};                                      // by which the last update shrank what came before

  // Turns raw scores into exponentials.
  template <int kScores>
  __device__ __forceinline__ void update(float (&scores)[kScores], float scale_log2) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float largest[2] = {scores[2 * h], scores[2 * h + 1]};
#pragma unroll
      for (int j = 1; j < kScores / 4; ++j) {
        largest[0] = fmaxf(largest[0], scores[4 * j + 2 * h]);
        largest[1] = fmaxf(largest[1], scores[4 * j + 2 * h + 1]);
      }
      const float candidate = fmaxf(max[h], tile::row_max(fmaxf(largest[0], largest[1])));
      const float previous = max[h];
      max[h] = (candidate - previous) * scale_log2 > kLag ? candidate : previous;  // false for -inf - -inf
      factor[h] = max[h] == previous ? 1.f : ptx::exp2((previous - max[h]) * scale_log2);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float base = max[h] == -__builtin_huge_valf() ? 0.f : max[h] * scale_log2;
      float partial[2] = {0.f, 0.f};
#pragma unroll
      for (int j = 0; j < kScores / 4; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& score = scores[4 * j + 2 * h + c];
          score = ptx::exp2(fmaf(score, scale_log2, -base));
          partial[c] += score;
        }
      }
      sum[h] = fmaf(sum[h], factor[h], partial[0] + partial[1]);
    }
  }

  // The assembler moves register arithmetic behind a wait for products as it likes, but not across a branch that
  // depends on it. Sums of exponentials are never negative: the branch is never taken.
  __device__ __forceinline__ void complete() const {
    if (sum[0] < 0.f || sum[1] < 0.f) ptx::sleep(1);
  }

  // Brings what was accumulated before the last update to its base.
  template <int kOutputs>
  __device__ __forceinline__ void rescale(float (&output)[kOutputs]) const {
    if (!__any_sync(~0u, factor[0] != 1.f || factor[1] != 1.f)) return;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) output[i] *= factor[i / 2 % 2];
  }
};

}  // namespace fm3::attention
