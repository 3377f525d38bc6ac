// What a block of rows and keys is, decided from the extrema of its columns; one definition for whoever walks blocks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "attention/fwd_config.h"

namespace fm3::attention {

constexpr int kFar = 1 << 30;  // beyond every row

// How one warpgroup (64 rows) meets one key block (128 keys).
enum BlockFlag : uint32_t {
  kLeftVisible = 1,     // some pair of the first 64 keys is visible
  kRightVisible = 2,    // some pair of the last 64 keys is visible
  kLowerStart = 4,      // hidden where row >= lts
  kLowerEnd = 8,        // ... and row < lte (else every lower span that matters reaches below the block)
  kUpperStart = 16,     // hidden where row >= uts (else every upper span that matters starts above the block) ...
  kUpperEnd = 32,       // ... and row < ute
  kUpperDiagonal = 64,  // hidden where row < key - (keys - rows): no column vector is needed
};
constexpr uint32_t kVisibleFlags = kLeftVisible | kRightVisible;
constexpr uint32_t kVectorFlags = kLowerStart | kLowerEnd | kUpperStart | kUpperEnd;
constexpr uint32_t kCutFlags = kVectorFlags | kUpperDiagonal;
constexpr int kFlagBits = 8;  // of one warpgroup in a word

// Over the columns whose span is not empty. Packed into an int4 with two marks in the sign bits.
struct SpanExtrema {
  int start_min = kFar, start_max = -1, end_min = kFar, end_max = 0;
  bool some_empty = false;  // some column's span is empty
  bool diagonal = true;     // every column's span is [0, max(0, key - (keys - rows)))

  __device__ static SpanExtrema unpack(int4 packed) {
    SpanExtrema extrema;
    extrema.start_min = packed.x & 0x7fffffff;
    extrema.start_max = packed.y;
    extrema.end_min = packed.z & 0x7fffffff;
    extrema.end_max = packed.w;
    extrema.some_empty = packed.x < 0;
    extrema.diagonal = packed.z < 0;
    return extrema;
  }
  __device__ int4 pack() const {
    return make_int4(start_min | (some_empty ? 1 << 31 : 0), start_max, end_min | (diagonal ? 1 << 31 : 0), end_max);
  }
  __device__ SpanExtrema merged(const SpanExtrema& other) const {
    SpanExtrema extrema;
    extrema.start_min = min(start_min, other.start_min);
    extrema.start_max = max(start_max, other.start_max);
    extrema.end_min = min(end_min, other.end_min);
    extrema.end_max = max(end_max, other.end_max);
    extrema.some_empty = some_empty || other.some_empty;
    extrema.diagonal = diagonal && other.diagonal;
    return extrema;
  }
  __device__ bool touches(int row_start, int row_end) const { return row_start < end_max && row_end > start_min; }
  __device__ bool hides_all(int row_start, int row_end) const {
    return !some_empty && row_start >= start_max && row_end <= end_min;
  }
  // Which ends must be compared; a span that hides whole columns and leaves others alone is told apart by its start.
  __device__ uint32_t ends_to_compare(int row_start, int row_end, uint32_t start_flag, uint32_t end_flag) const {
    if (!touches(row_start, row_end)) return 0;
    const uint32_t flags = (start_max > row_start ? start_flag : 0) | (end_min < row_end ? end_flag : 0);
    return flags != 0 ? flags : start_flag;
  }
};

struct ColumnExtrema {
  SpanExtrema lower, upper;

  __device__ bool hides_all(int row_start, int row_end) const {
    return row_start >= row_end || lower.hides_all(row_start, row_end) || upper.hides_all(row_start, row_end);
  }
};

// Flags of rows [row_start, row_end) against the 64 + 64 keys of one block; 0 where nothing is visible.
__device__ inline uint32_t classify_rows(const ColumnExtrema& left, const ColumnExtrema& right, int row_start,
                                         int row_end) {
  const uint32_t visible = (left.hides_all(row_start, row_end) ? 0 : kLeftVisible) |
                           (right.hides_all(row_start, row_end) ? 0 : kRightVisible);
  if (visible == 0) return 0;
  const SpanExtrema lower = left.lower.merged(right.lower);
  const SpanExtrema upper = left.upper.merged(right.upper);
  uint32_t cuts = lower.ends_to_compare(row_start, row_end, kLowerStart, kLowerEnd);
  if (upper.touches(row_start, row_end)) {
    cuts |= upper.diagonal ? kUpperDiagonal : upper.ends_to_compare(row_start, row_end, kUpperStart, kUpperEnd);
  }
  return visible | cuts;
}

// Flags of every warpgroup's 64 rows against key block `key_block`, kFlagBits each; 0 where nobody sees anything.
// extrema: [key blocks * 2, 2] of one batch entry and mask head.
template <int kWarpgroups>
__device__ inline uint32_t classify_block(const int4* extrema, int key_block, int row_start, int num_rows) {
  const int4* packed = extrema + 4 * static_cast<int64_t>(key_block);
  const ColumnExtrema left{SpanExtrema::unpack(packed[0]), SpanExtrema::unpack(packed[1])};
  const ColumnExtrema right{SpanExtrema::unpack(packed[2]), SpanExtrema::unpack(packed[3])};
  uint32_t flags = 0;
#pragma unroll
  for (int group = 0; group < kWarpgroups; ++group) {
    const int start = row_start + 64 * group;
    flags |= classify_rows(left, right, start, min(start + 64, num_rows)) << (kFlagBits * group);
  }
  return flags;
}

}  // namespace fm3::attention
