// Online softmax of a thread's two rows (Milakov and Gimelshein 2018), in base 2 with the scale folded in.
#pragma once

#include <cstdint>

#include "ptx/math.cuh"
#include "tile/exponential.cuh"
#include "tile/fragment.cuh"

namespace fm3::attention {

// The maximum that scores are taken relative to only follows the true one once it lags by 2^kLag: the result is the
// same, since numerator and denominator share it, and most blocks need no rescaling of the output.
constexpr float kLag = 8.f;

struct OnlineSoftmax {
  float max[2] = {-__builtin_huge_valf(), -__builtin_huge_valf()};  // of the raw scores; -inf: nothing visible yet
  float sum[2] = {0.f, 0.f};                                         // of this thread's columns only
  float factor[2] = {1.f, 1.f};                                      // by which the last block shrank what came before
  bool rescales = false;                                             // some factor of the warp is not 1

  // Before a tile's first block: nothing is known of its maximum.
  template <int kScores>
  __device__ __forceinline__ void start(const float (&scores)[kScores]) {
    float largest[2];
    largest_scores(scores, largest);
    max[0] = tile::row_max(largest[0]);
    max[1] = tile::row_max(largest[1]);
    sum[0] = sum[1] = 0.f;
  }

  // Exponentials of the first half of the scores, computed relative to the maximum known before this block: that saves a
  // reduction on the way to them. Only where this block exceeds it by 2^kLag is the work done again.
  // kPolynomial n > 0: every n-th by polynomial, for finite scores only.
  template <int kPolynomial, int kScores>
  __device__ __forceinline__ void first_half(const float (&scores)[kScores], float scale_log2,
                                             float (&exponentials)[kScores / 2]) {
    rescales = false;
    factor[0] = factor[1] = 1.f;
    for (;;) {
      float largest[2], partial[2] = {0.f, 0.f};
      exponentiate<kPolynomial, 0, kScores / 2>(scores, scale_log2, exponentials, partial);
      largest_scores(scores, largest);
      const bool exceeds = (largest[0] - max[0]) * scale_log2 > kLag || (largest[1] - max[1]) * scale_log2 > kLag;
      // A sum is never negative. It is asked because the assembler moves arithmetic behind a later wait for products as
      // it likes, but not across a branch that depends on it: so the exponentials overlap those products.
      if (!__any_sync(~0u, exceeds || partial[0] < 0.f || partial[1] < 0.f)) [[likely]] {
        sum[0] = fmaf(sum[0], factor[0], partial[0]);
        sum[1] = fmaf(sum[1], factor[1], partial[1]);
        return;
      }
      rescales = true;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float previous = max[h];
        const float candidate = tile::row_max(largest[h]);
        max[h] = (candidate - previous) * scale_log2 > kLag ? candidate : previous;  // false for -inf - -inf
        factor[h] = max[h] == previous ? factor[h] : ptx::exp2((previous - max[h]) * scale_log2);
      }
    }
  }

  // The second half, and all of them packed; packing the first hides behind computing the second.
  template <ptx::Element kElement, int kPolynomial, int kScores>
  __device__ __forceinline__ void second_half(const float (&scores)[kScores], float scale_log2,
                                              const float (&first)[kScores / 2],
                                              uint32_t (&probabilities)[kScores / 2]) {
    float second[kScores / 2];
    float partial[2] = {0.f, 0.f};
    exponentiate<kPolynomial, kScores / 2, kScores>(scores, scale_log2, second, partial);
#pragma unroll
    for (int i = 0; i < kScores / 4; ++i) {
      probabilities[i] = tile::pack<kElement>(first[2 * i], first[2 * i + 1]);
      probabilities[kScores / 4 + i] = tile::pack<kElement>(second[2 * i], second[2 * i + 1]);
    }
    sum[0] += partial[0];
    sum[1] += partial[1];
  }

  // Brings what was accumulated before the last block to its maximum.
  template <int kOutputs>
  __device__ __forceinline__ void rescale(float (&output)[kOutputs]) const {
    if (!rescales) [[likely]] return;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) output[i] *= factor[i / 2 % 2];
  }

 private:
  template <int kScores>
  __device__ __forceinline__ static void largest_scores(const float (&scores)[kScores], float (&largest)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float lanes[2] = {scores[2 * h], scores[2 * h + 1]};
#pragma unroll
      for (int j = 1; j < kScores / 4; ++j) {
        lanes[0] = fmaxf(lanes[0], scores[4 * j + 2 * h]);
        lanes[1] = fmaxf(lanes[1], scores[4 * j + 2 * h + 1]);
      }
      largest[h] = fmaxf(lanes[0], lanes[1]);
    }
  }

  // Of scores [kStart, kEnd); partial: their sums.
  template <int kPolynomial, int kStart, int kEnd, int kScores>
  __device__ __forceinline__ void exponentiate(const float (&scores)[kScores], float scale_log2,
                                               float (&exponentials)[kEnd - kStart], float (&partial)[2]) const {
    float base[2], lanes[2][2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) base[h] = max[h] == -__builtin_huge_valf() ? 0.f : max[h] * scale_log2;
#pragma unroll
    for (int i = 0; i < kEnd - kStart; ++i) {
      const int h = i / 2 % 2;
      const float exponent = fmaf(scores[kStart + i], scale_log2, -base[h]);
      const bool by_polynomial = kPolynomial > 0 && i % (kPolynomial > 0 ? kPolynomial : 1) == 1;
      exponentials[i] = by_polynomial ? tile::exp2_by_polynomial(exponent) : ptx::exp2(exponent);
      lanes[h][i % 2] += exponentials[i];
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) partial[h] = lanes[h][0] + lanes[h][1];
  }
};

}  // namespace fm3::attention
