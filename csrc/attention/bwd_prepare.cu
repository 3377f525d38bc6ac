#include "attention/bwd_prepare.h"

#include "attention/bwd_classify.cuh"
#include "host/error.h"

namespace fm3::attention {
namespace {

constexpr int kThreads = 256;  // of the CTA of one block
constexpr int kWarps = kThreads / 32;

// The result over a CTA's threads, for every thread. combine: over a warp's lanes; nothing: what changes no result.
template <typename Combine>
__device__ int over_all_threads(int value, int nothing, Combine combine) {
  __shared__ int of_warps[kWarps];
  value = combine(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  return combine(threadIdx.x % 32 < kWarps ? of_warps[threadIdx.x % 32] : nothing);
}

__device__ int sum_over_all_threads(int value) {
  return over_all_threads(value, 0, [](int x) { return static_cast<int>(__reduce_add_sync(~0u, x)); });
}

// One CTA for one key block: which row blocks it visits. records: [head, key blocks].
__global__ void __launch_bounds__(kThreads)
    count_key_blocks(const PreparedMask mask, int4* records, int num_row_blocks) {
  const int head = blockIdx.x / mask.num_key_blocks;
  const int key_block = blockIdx.x % mask.num_key_blocks;
  int first = num_row_blocks, last = -1, count = 0;
  for (int row_block = threadIdx.x; row_block < num_row_blocks; row_block += kThreads) {
    if (classify_row_block(mask, head, key_block, row_block) == 0) continue;
    first = min(first, row_block);
    last = row_block;
    ++count;
  }
  first = over_all_threads(first, num_row_blocks, [](int x) { return __reduce_min_sync(~0u, x); });
  last = over_all_threads(last, -1, [](int x) { return __reduce_max_sync(~0u, x); });
  count = sum_over_all_threads(count);
  if (threadIdx.x == 0) records[blockIdx.x] = make_int4(key_block, first, last, count);
}

// One CTA for one key block: its place among the head's.
__global__ void __launch_bounds__(kThreads) sort_key_blocks(const int4* records, int4* sorted, int num_key_blocks) {
  const int64_t head_start = static_cast<int64_t>(blockIdx.x / num_key_blocks) * num_key_blocks;
  const int4 mine = records[blockIdx.x];
  int place = 0;
  for (int other = threadIdx.x; other < num_key_blocks; other += kThreads) {
    const int first = records[head_start + other].y;
    place += first > mine.y || (first == mine.y && other < mine.x);
  }
  place = sum_over_all_threads(place);
  if (threadIdx.x == 0) sorted[head_start + place] = mine;
}

// One CTA for one row block: which places of the order visit it, a warp for each word. visits: [head, row blocks,
// words].
__global__ void __launch_bounds__(kThreads)
    list_visits(const PreparedMask mask, const int4* sorted, uint2* visits, int num_row_blocks, int heads_per_order) {
  __shared__ uint32_t bits_of[kWarps];
  const int head = blockIdx.x / num_row_blocks;
  const int row_block = blockIdx.x % num_row_blocks;
  const int warp = threadIdx.x / 32, words = (mask.num_key_blocks + 31) / 32;
  const int4* order = sorted + static_cast<int64_t>(head / heads_per_order * heads_per_order) * mask.num_key_blocks;
  uint32_t before = 0;
  for (int first_word = 0; first_word < words; first_word += kWarps) {
    const int place = 32 * first_word + static_cast<int>(threadIdx.x);
    const bool visited = place < mask.num_key_blocks && classify_row_block(mask, head, order[place].x, row_block) != 0;
    const uint32_t bits = __ballot_sync(~0u, visited);
    if (threadIdx.x % 32 == 0) bits_of[warp] = bits;
    __syncthreads();
    uint32_t before_mine = before;
    for (int other = 0; other < kWarps; ++other) {
      const uint32_t number = __popc(bits_of[other]);
      if (other < warp) before_mine += number;
      before += number;
    }
    if (threadIdx.x % 32 == 0 && first_word + warp < words) {
      visits[static_cast<int64_t>(blockIdx.x) * words + first_word + warp] = make_uint2(bits, before_mine);
    }
    __syncthreads();
  }
}

}  // namespace

BwdListSizes bwd_list_sizes(int batch, int heads, int num_rows, int num_keys) {
  const int64_t masks = static_cast<int64_t>(batch) * heads;
  const int64_t key_blocks = (num_keys + kBlockKeys - 1) / kBlockKeys;
  const int64_t row_blocks = (num_rows + kBwdRows - 1) / kBwdRows;
  return {masks * key_blocks * 16, masks * key_blocks * 16, masks * row_blocks * ((key_blocks + 31) / 32) * 8};
}

void prepare_bwd_lists(const PreparedMask& mask, const BwdLists& lists, int kv_heads, cudaStream_t stream) {
  if (kv_heads < 1 || (mask.heads % kv_heads != 0 && kv_heads % mask.heads != 0)) {
    throw Error("prepare_backward: of mask heads and kv heads one must be a multiple of the other");
  }
  const int64_t masks = static_cast<int64_t>(mask.batch) * mask.heads;
  const int64_t key_blocks = masks * mask.num_key_blocks, row_blocks = masks * lists.num_row_blocks;
  if (key_blocks > INT32_MAX || row_blocks > INT32_MAX) throw Error("prepare_backward: more than 2^31 - 1 blocks");
  auto* records = const_cast<int4*>(lists.records);
  auto* sorted = const_cast<int4*>(lists.sorted);
  if (key_blocks == 0) return;
  count_key_blocks<<<static_cast<int>(key_blocks), kThreads, 0, stream>>>(mask, records, lists.num_row_blocks);
  check(cudaGetLastError(), "count_key_blocks");
  sort_key_blocks<<<static_cast<int>(key_blocks), kThreads, 0, stream>>>(records, sorted, mask.num_key_blocks);
  check(cudaGetLastError(), "sort_key_blocks");
  if (row_blocks == 0) return;
  const int heads_per_order = mask.heads > kv_heads ? mask.heads / kv_heads : 1;
  list_visits<<<static_cast<int>(row_blocks), kThreads, 0, stream>>>(mask, sorted, const_cast<uint2*>(lists.visits),
                                                                     lists.num_row_blocks, heads_per_order);
  check(cudaGetLastError(), "list_visits");
}

}  // namespace fm3::attention
