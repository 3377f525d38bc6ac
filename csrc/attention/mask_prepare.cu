#include "attention/mask_prepare.h"

#include "attention/block_classify.cuh"
#include "host/error.h"

namespace fm3::attention {
namespace {

constexpr int kWarpsPerCta = 8;

// Span of one column, clamped, in the form the kernels compare with.
struct Span {
  int start, end;
  __device__ bool empty() const { return start >= end; }
};

__device__ Span load_span(const int32_t* starts, const int32_t* ends, int64_t index, int num_rows) {
  const int start = min(max(starts[index], 0), num_rows);
  const int end = min(max(ends[index], 0), num_rows);
  return start < end ? Span{start, end} : Span{kFar, 0};
}

__device__ SpanExtrema reduce_warp(SpanExtrema mine) {
  SpanExtrema all;
  all.start_min = __reduce_min_sync(~0u, mine.start_min);
  all.start_max = __reduce_max_sync(~0u, mine.start_max);
  all.end_min = __reduce_min_sync(~0u, mine.end_min);
  all.end_max = __reduce_max_sync(~0u, mine.end_max);
  all.some_empty = __any_sync(~0u, mine.some_empty);
  all.diagonal = __all_sync(~0u, mine.diagonal);
  return all;
}

__device__ void include(SpanExtrema& extrema, Span span, bool diagonal) {
  if (span.empty()) {
    extrema.some_empty = true;
  } else {
    extrema.start_min = min(extrema.start_min, span.start);
    extrema.start_max = max(extrema.start_max, span.start);
    extrema.end_min = min(extrema.end_min, span.end);
    extrema.end_max = max(extrema.end_max, span.end);
  }
  extrema.diagonal = extrema.diagonal && diagonal;
}

// One warp for 64 keys: columns [head, key blocks, 4, kBlockKeys] and extrema [head, key blocks * 2, 2].
__global__ void __launch_bounds__(32 * kWarpsPerCta)
    prepare_columns(ColumnVectors vectors, int32_t* columns, int4* extrema, int num_rows, int num_keys,
                    int num_key_blocks, int num_heads) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarpsPerCta + threadIdx.x / 32;
  const int num_halves = 2 * num_key_blocks;
  if (unit >= static_cast<int64_t>(num_heads) * num_halves) return;
  const int64_t head = unit / num_halves;
  const int half = static_cast<int>(unit % num_halves);
  int32_t* block = columns + (head * num_key_blocks + half / 2) * 4 * kBlockKeys + (half % 2) * kHalfKeys;

  ColumnExtrema mine;
  for (int i = threadIdx.x % 32; i < kHalfKeys; i += 32) {
    const int key = half * kHalfKeys + i;
    Span lower{kFar, 0}, upper{0, kFar};
    if (key < num_keys) {
      const int64_t index = head * num_keys + key;
      lower = load_span(vectors.lts, vectors.lte, index, num_rows);
      upper = load_span(vectors.uts, vectors.ute, index, num_rows);
      const int causal_end = max(key - (num_keys - num_rows), 0);
      include(mine.lower, lower, false);
      include(mine.upper, upper, upper.empty() ? causal_end == 0 : upper.start == 0 && upper.end == causal_end);
    } else {
      // Behind the last key: hidden from every row, and no reason to visit a block or to compare lower spans.
      include(mine.upper, upper, true);
    }
    block[i] = lower.start;
    block[kBlockKeys + i] = lower.end;
    block[2 * kBlockKeys + i] = upper.start;
    block[3 * kBlockKeys + i] = upper.end;
  }
  const SpanExtrema lower = reduce_warp(mine.lower), upper = reduce_warp(mine.upper);
  if (threadIdx.x % 32 == 0) {
    extrema[2 * unit] = lower.pack();
    extrema[2 * unit + 1] = upper.pack();
  }
}

// One warp for one row block: which key blocks it visits. unsorted: [head, row blocks].
template <int kWarpgroups>
__global__ void __launch_bounds__(32 * kWarpsPerCta)
    count_row_blocks(const int4* extrema, const uint8_t* keep, int4* unsorted, int num_rows, int num_key_blocks,
                     int num_row_blocks, int num_heads) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarpsPerCta + threadIdx.x / 32;
  if (unit >= static_cast<int64_t>(num_heads) * num_row_blocks) return;
  const int64_t head = unit / num_row_blocks;
  const int row_block = static_cast<int>(unit % num_row_blocks);
  const int4* head_extrema = extrema + head * num_key_blocks * 4;
  int first = num_key_blocks, last = -1, count = 0;
  for (int key_block = threadIdx.x % 32; key_block < num_key_blocks; key_block += 32) {
    if (keep != nullptr && keep[unit * num_key_blocks + key_block] == 0) continue;
    if (classify_block<kWarpgroups>(head_extrema, key_block, 64 * kWarpgroups * row_block, num_rows) == 0) continue;
    first = min(first, key_block);
    last = key_block;
    ++count;
  }
  first = __reduce_min_sync(~0u, first);
  last = __reduce_max_sync(~0u, last);
  count = __reduce_add_sync(~0u, count);
  if (threadIdx.x % 32 == 0) unsorted[unit] = make_int4(row_block, first, last, count);
}

// One warp for one row block: its place among the head's row blocks, most key blocks first, ties in ascending order.
__global__ void __launch_bounds__(32 * kWarpsPerCta)
    sort_row_blocks(const int4* unsorted, int4* sorted, int num_row_blocks, int num_heads) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarpsPerCta + threadIdx.x / 32;
  if (unit >= static_cast<int64_t>(num_heads) * num_row_blocks) return;
  const int64_t head = unit / num_row_blocks;
  const int4* blocks = unsorted + head * num_row_blocks;
  const int4 mine = unsorted[unit];
  int place = 0;
  for (int other = threadIdx.x % 32; other < num_row_blocks; other += 32) {
    const int count = blocks[other].w;
    place += count > mine.w || (count == mine.w && other < mine.x);
  }
  place = __reduce_add_sync(~0u, place);
  if (threadIdx.x % 32 == 0) sorted[head * num_row_blocks + place] = mine;
}

int ctas_for(int64_t warps) { return static_cast<int>((warps + kWarpsPerCta - 1) / kWarpsPerCta); }

}  // namespace

PreparedSizes prepared_sizes(int batch, int heads, int num_rows, int num_keys, int block_rows) {
  const int64_t masks = static_cast<int64_t>(batch) * heads;
  const int64_t key_blocks = (num_keys + kBlockKeys - 1) / kBlockKeys;
  const int64_t row_blocks = (num_rows + block_rows - 1) / block_rows;
  return {masks * key_blocks * 4 * kBlockKeys * 4, masks * key_blocks * 4 * 16, masks * row_blocks * 16,
          masks * row_blocks * 16};
}

void prepare_mask(const ColumnVectors& vectors, const PreparedMask& mask, int4* unsorted, int block_rows,
                  cudaStream_t stream) {
  const int num_heads = mask.batch * mask.heads;
  const int threads = 32 * kWarpsPerCta;
  const int64_t halves = static_cast<int64_t>(num_heads) * mask.num_key_blocks * 2;
  const int64_t row_blocks = static_cast<int64_t>(num_heads) * mask.num_row_blocks;
  auto* columns = const_cast<int32_t*>(mask.columns);
  auto* extrema = const_cast<int4*>(mask.extrema);
  auto* sorted = const_cast<int4*>(mask.row_blocks);
  if (halves > 0) {
    prepare_columns<<<ctas_for(halves), threads, 0, stream>>>(vectors, columns, extrema, mask.num_rows, mask.num_keys,
                                                              mask.num_key_blocks, num_heads);
    check(cudaGetLastError(), "prepare_columns");
  }
  if (row_blocks == 0) return;
  auto count = block_rows == 64    ? count_row_blocks<1>
               : block_rows == 128 ? count_row_blocks<2>
               : block_rows == 192 ? count_row_blocks<3>
                                   : nullptr;
  if (count == nullptr) throw Error("prepare_mask: block_rows must be 64, 128 or 192");
  count<<<ctas_for(row_blocks), threads, 0, stream>>>(mask.extrema, mask.keep, unsorted, mask.num_rows,
                                                      mask.num_key_blocks, mask.num_row_blocks, num_heads);
  check(cudaGetLastError(), "count_row_blocks");
  sort_row_blocks<<<ctas_for(row_blocks), threads, 0, stream>>>(unsorted, sorted, mask.num_row_blocks, num_heads);
  check(cudaGetLastError(), "sort_row_blocks");
}

}  // namespace fm3::attention
