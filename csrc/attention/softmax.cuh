// Online softmax of a thread's two rows (Milakov and Gimelshein 2018), in base 2 with the scale folded in.
#pragma once

#include <cstdint>

#include "ptx/math.cuh"
#include "tile/fragment.cuh"

namespace fm3::attention {

// Exponentials are taken relative to a maximum that follows the true one only when it must: the result is the same,
// since numerator and denominator share it, and what it saves is the reduction on the way to every exponential. It must
// once a thread's sum over one block exceeds this bound; so no exponential ever does.
constexpr float kLargestSum = 256.f;

struct OnlineSoftmax {
  float max[2] = {-__builtin_huge_valf(), -__builtin_huge_valf()};  // of the raw scores; -inf: nothing visible yet
  float sum[2] = {0.f, 0.f};                                        // of this thread's columns only
  float factor[2] = {1.f, 1.f};                                     // by which the last block shrank what came before
  bool rescales = false;                                            // some factor of the warp may not be 1
  bool known = false;                                               // no maximum of the warp is -inf

  // Exponentials of the first half of a block's scores.
  template <int kScores>
  __device__ __forceinline__ void first_half(const float (&scores)[kScores], float scale_log2,
                                             float (&exponentials)[kScores / 2]) {
    float partial[2];
    rescales = false;
    factor[0] = factor[1] = 1.f;
    if (!known) [[unlikely]]
      raise(scores, scale_log2);
    for (;;) {
      exponentiate<0>(scores, scale_log2, exponentials, partial);
      // This branch depends on every exponential so far. The assembler moves arithmetic behind a later wait for
      // products as it likes, but not across such a branch: so they overlap those products.
      if (!exceeds(partial)) [[likely]]
        break;
      raise(scores, scale_log2);
    }
    sum[0] += partial[0];
    sum[1] += partial[1];
  }

  // The second half, and all of them packed; packing the first hides behind computing the second. No product may be
  // writing `output` or reading `probabilities`.
  template <ptx::Element kElement, int kScores, int kOutputs>
  __device__ __forceinline__ void second_half(const float (&scores)[kScores], float scale_log2,
                                              float (&first)[kScores / 2], uint32_t (&probabilities)[kScores / 2],
                                              float (&output)[kOutputs]) {
    float second[kScores / 2], partial[2];
    exponentiate<kScores / 2>(scores, scale_log2, second, partial);
    if (exceeds(partial)) [[unlikely]] {
      factor[0] = factor[1] = 1.f;
      raise(scores, scale_log2);
      rescale(output);
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) first[i] *= factor[i / 2 % 2];
      exponentiate<kScores / 2>(scores, scale_log2, second, partial);
    }
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
    if (!rescales) [[likely]]
      return;
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) output[i] *= factor[i / 2 % 2];
  }

 private:
  __device__ __forceinline__ static bool exceeds(const float (&partial)[2]) {
    return __any_sync(~0u, partial[0] > kLargestSum || partial[1] > kLargestSum);
  }

  // Brings the maximum up to that of these scores.
  template <int kScores>
  __device__ __forceinline__ void raise(const float (&scores)[kScores], float scale_log2) {
    rescales = true;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float lanes[2] = {scores[2 * h], scores[2 * h + 1]};
#pragma unroll
      for (int j = 1; j < kScores / 4; ++j) {
        lanes[0] = fmaxf(lanes[0], scores[4 * j + 2 * h]);
        lanes[1] = fmaxf(lanes[1], scores[4 * j + 2 * h + 1]);
      }
      const float previous = max[h];
      max[h] = fmaxf(previous, tile::row_max(fmaxf(lanes[0], lanes[1])));
      const float shrink = max[h] == previous ? 1.f : ptx::exp2((previous - max[h]) * scale_log2);  // 0 from -inf
      factor[h] *= shrink;
      sum[h] *= shrink;
    }
    known = !__any_sync(~0u, max[0] == -__builtin_huge_valf() || max[1] == -__builtin_huge_valf());
  }

  // Of one half of the scores; partial: their sums.
  template <int kStart, int kScores>
  __device__ __forceinline__ void exponentiate(const float (&scores)[kScores], float scale_log2,
                                               float (&exponentials)[kScores / 2], float (&partial)[2]) const {
    float base[2], lanes[2][2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) base[h] = max[h] == -__builtin_huge_valf() ? 0.f : max[h] * scale_log2;
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) {
      const int h = i / 2 % 2;
      exponentials[i] = ptx::exp2(fmaf(scores[kStart + i], scale_log2, -base[h]));
      lanes[h][i % 2] += exponentials[i];
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) partial[h] = lanes[h][0] + lanes[h][1];
  }
};

}  // namespace fm3::attention
