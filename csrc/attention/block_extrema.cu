#include "attention/block_extrema.h"

#include <limits>

#include "host/error.h"

namespace fm3::attention {
namespace {

constexpr int kWarpSize = 32;
constexpr int kWarpsPerCta = 8;
constexpr unsigned kAllLanes = ~0u;

struct SpanExtrema {
  int32_t max_start, min_end;      // over all columns
  int32_t max_hidden, min_hidden;  // end and start, over the columns whose span is not empty
};

__device__ void include(SpanExtrema& extrema, int32_t start, int32_t end) {
  extrema.max_start = max(extrema.max_start, start);
  extrema.min_end = min(extrema.min_end, end);
  if (start < end) {
    extrema.max_hidden = max(extrema.max_hidden, end);
    extrema.min_hidden = min(extrema.min_hidden, start);
  }
}

// Called by whole warps; the first lane writes. Lines of the table are `line` elements apart.
__device__ void reduce_and_store(const SpanExtrema& mine, int32_t* place, int64_t line) {
  const int32_t max_start = __reduce_max_sync(kAllLanes, mine.max_start);
  const int32_t min_end = __reduce_min_sync(kAllLanes, mine.min_end);
  const int32_t max_hidden = __reduce_max_sync(kAllLanes, mine.max_hidden);
  const int32_t min_hidden = __reduce_min_sync(kAllLanes, mine.min_hidden);
  if (threadIdx.x % kWarpSize != 0) return;
  place[0] = max_start;
  place[line] = min_end;
  place[2 * line] = max_hidden;
  place[3 * line] = min_hidden;
}

// One warp for one key block of one mask.
__global__ void __launch_bounds__(kWarpSize* kWarpsPerCta)
    block_extrema_kernel(BlockExtremaParams params, int64_t num_blocks) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarpsPerCta + threadIdx.x / kWarpSize;
  const int64_t line = params.num_masks * num_blocks;
  if (unit >= line) return;
  const int64_t mask_start = unit / num_blocks * params.num_keys;
  const int64_t first_key = unit % num_blocks * params.block_keys;
  const int64_t end_key = min(first_key + params.block_keys, params.num_keys);

  SpanExtrema lower{0, params.num_rows, 0, params.num_rows};
  SpanExtrema upper = lower;
  for (int64_t key = first_key + threadIdx.x % kWarpSize; key < end_key; key += kWarpSize) {
    const int64_t column = mask_start + key;
    include(lower, params.lts[column], params.lte[column]);
    include(upper, params.uts[column], params.ute[column]);
  }
  reduce_and_store(lower, params.table + unit, line);
  reduce_and_store(upper, params.table + 4 * line + unit, line);
}

}  // namespace

void block_extrema(const BlockExtremaParams& params, cudaStream_t stream) {
  if (params.num_masks < 0 || params.num_keys < 0 || params.num_rows < 0 || params.block_keys < 1) {
    throw Error("block_extrema: sizes must not be negative, and block_keys at least 1");
  }
  const int64_t num_blocks = (params.num_keys + params.block_keys - 1) / params.block_keys;
  const int64_t num_ctas = (params.num_masks * num_blocks + kWarpsPerCta - 1) / kWarpsPerCta;
  if (num_ctas == 0) return;
  if (num_ctas > std::numeric_limits<int32_t>::max()) throw Error("block_extrema: more blocks than one grid holds");
  block_extrema_kernel<<<static_cast<unsigned>(num_ctas), kWarpSize * kWarpsPerCta, 0, stream>>>(params, num_blocks);
  check(cudaGetLastError(), "block_extrema");
}

}  // namespace fm3::attention
