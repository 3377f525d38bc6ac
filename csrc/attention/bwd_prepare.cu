#include "attention/bwd_prepare.h"

#include "attention/bwd_classify.cuh"
#include "host/error.h"

namespace fm3::attention {
namespace {

constexpr int kWarpsPerCta = 8;

// One warp for one key block: which row blocks it visits. records: [head, key blocks].
__global__ void __launch_bounds__(32 * kWarpsPerCta)
    count_key_blocks(const PreparedMask mask, int4* records, int num_row_blocks) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarpsPerCta + threadIdx.x / 32;
  if (unit >= static_cast<int64_t>(mask.batch) * mask.heads * mask.num_key_blocks) return;
  const int head = static_cast<int>(unit / mask.num_key_blocks);
  const int key_block = static_cast<int>(unit % mask.num_key_blocks);
  int first = num_row_blocks, last = -1, count = 0;
  for (int row_block = threadIdx.x % 32; row_block < num_row_blocks; row_block += 32) {
    if (classify_row_block(mask, head, key_block, row_block) == 0) continue;
    first = min(first, row_block);
    last = row_block;
    ++count;
  }
  first = __reduce_min_sync(~0u, first);
  last = __reduce_max_sync(~0u, last);
  count = __reduce_add_sync(~0u, count);
  if (threadIdx.x % 32 == 0) records[unit] = make_int4(key_block, first, last, count);
}

// One warp for one key block: its place among the head's, ties in ascending order.
__global__ void __launch_bounds__(32 * kWarpsPerCta)
    sort_key_blocks(const int4* records, int4* sorted, KeyOrder order, int num_key_blocks, int num_heads) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarpsPerCta + threadIdx.x / 32;
  if (unit >= static_cast<int64_t>(num_heads) * num_key_blocks) return;
  const int64_t head = unit / num_key_blocks;
  const int4* blocks = records + head * num_key_blocks;
  const int4 mine = records[unit];
  const int my_weight = order == KeyOrder::kHeaviestFirst ? mine.w : mine.y;
  int place = 0;
  for (int other = threadIdx.x % 32; other < num_key_blocks; other += 32) {
    const int weight = order == KeyOrder::kHeaviestFirst ? blocks[other].w : blocks[other].y;
    place += weight > my_weight || (weight == my_weight && other < mine.x);
  }
  place = __reduce_add_sync(~0u, place);
  if (threadIdx.x % 32 == 0) sorted[head * num_key_blocks + place] = mine;
}

// One warp for one row block: which places of the order visit it. visits: [head, row blocks, words].
__global__ void __launch_bounds__(32 * kWarpsPerCta)
    list_visits(const PreparedMask mask, const int4* sorted, uint2* visits, int num_row_blocks, int heads_per_order) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarpsPerCta + threadIdx.x / 32;
  if (unit >= static_cast<int64_t>(mask.batch) * mask.heads * num_row_blocks) return;
  const int head = static_cast<int>(unit / num_row_blocks);
  const int row_block = static_cast<int>(unit % num_row_blocks);
  const int lane = threadIdx.x % 32, words = (mask.num_key_blocks + 31) / 32;
  const int first_head = head / heads_per_order * heads_per_order;
  const int4* order = sorted + static_cast<int64_t>(first_head) * mask.num_key_blocks;
  uint32_t before = 0;
  for (int word = 0; word < words; ++word) {
    const int place = 32 * word + lane;
    const bool visited = place < mask.num_key_blocks && classify_row_block(mask, head, order[place].x, row_block) != 0;
    const uint32_t bits = __ballot_sync(~0u, visited);
    if (lane == 0) visits[unit * words + word] = make_uint2(bits, before);
    before += __popc(bits);
  }
}

// One CTA for one row block: the first place of the order that visits it. openers: [head, row blocks].
__global__ void __launch_bounds__(32 * kWarpsPerCta)
    find_openers(const PreparedMask mask, const int4* sorted, int32_t* openers, int num_row_blocks,
                 int heads_per_order) {
  __shared__ int first;
  const int head = blockIdx.x / num_row_blocks;
  const int row_block = blockIdx.x % num_row_blocks;
  const int4* order = sorted + static_cast<int64_t>(head / heads_per_order * heads_per_order) * mask.num_key_blocks;
  if (threadIdx.x == 0) first = mask.num_key_blocks;
  __syncthreads();
  for (int base = 0; base < mask.num_key_blocks; base += blockDim.x) {
    const int place = base + static_cast<int>(threadIdx.x);
    const bool visited = place < mask.num_key_blocks && classify_row_block(mask, head, order[place].x, row_block) != 0;
    if (visited) atomicMin(&first, place);
    if (__syncthreads_or(visited)) break;
  }
  if (threadIdx.x == 0) openers[blockIdx.x] = first;
}

int ctas_for(int64_t warps) { return static_cast<int>((warps + kWarpsPerCta - 1) / kWarpsPerCta); }

}  // namespace

BwdListSizes bwd_list_sizes(int batch, int heads, int num_rows, int num_keys) {
  const int64_t masks = static_cast<int64_t>(batch) * heads;
  const int64_t key_blocks = (num_keys + kBlockKeys - 1) / kBlockKeys;
  const int64_t row_blocks = (num_rows + kBwdRows - 1) / kBwdRows;
  return {masks * key_blocks * 16, masks * key_blocks * 16, masks * row_blocks * ((key_blocks + 31) / 32) * 8,
          masks * row_blocks * 4};
}

void prepare_bwd_lists(const PreparedMask& mask, const BwdLists& lists, KeyOrder order, int kv_heads,
                       cudaStream_t stream) {
  const int num_heads = mask.batch * mask.heads;
  const int threads = 32 * kWarpsPerCta;
  const int64_t key_blocks = static_cast<int64_t>(num_heads) * mask.num_key_blocks;
  const int64_t row_blocks = static_cast<int64_t>(num_heads) * lists.num_row_blocks;
  auto* records = const_cast<int4*>(lists.records);
  auto* sorted = const_cast<int4*>(lists.sorted);
  if (key_blocks == 0) return;
  count_key_blocks<<<ctas_for(key_blocks), threads, 0, stream>>>(mask, records, lists.num_row_blocks);
  check(cudaGetLastError(), "count_key_blocks");
  sort_key_blocks<<<ctas_for(key_blocks), threads, 0, stream>>>(records, sorted, order, mask.num_key_blocks, num_heads);
  check(cudaGetLastError(), "sort_key_blocks");
  if (row_blocks == 0) return;
  if (mask.heads % kv_heads != 0 && kv_heads % mask.heads != 0) {
    throw Error("prepare_backward_lists: of mask heads and kv heads one must be a multiple of the other");
  }
  const int heads_per_order = mask.heads > kv_heads ? mask.heads / kv_heads : 1;
  if (lists.visits != nullptr) {
    list_visits<<<ctas_for(row_blocks), threads, 0, stream>>>(mask, sorted, const_cast<uint2*>(lists.visits),
                                                              lists.num_row_blocks, heads_per_order);
    check(cudaGetLastError(), "list_visits");
  }
  if (lists.openers != nullptr) {
    find_openers<<<static_cast<int>(row_blocks), threads, 0, stream>>>(
        mask, sorted, const_cast<int32_t*>(lists.openers), lists.num_row_blocks, heads_per_order);
    check(cudaGetLastError(), "find_openers");
  }
}

}  // namespace fm3::attention
