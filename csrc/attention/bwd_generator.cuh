// Role 1, one warp: takes tiles, classifies their row blocks 32 at a time, queues those to visit.
#pragma once

#include "attention/bwd_classify.cuh"
#include "attention/bwd_params.h"
#include "attention/bwd_smem.cuh"
#include "ptx/sync.cuh"

namespace fm3::attention {

template <BwdConfig kConfig>
class BwdGenerator {
 public:
  __device__ BwdGenerator(const BwdParams& params, BwdSmem<kConfig>& smem) : params_(params), smem_(smem) {}

  __device__ void run() {
    // Every tile is taken from the counter: a CTA that has not started owns none, so whoever waits for an addition of a
    // tile before its own waits for a CTA that runs.
    for (int index = take_tile(); index < params_.num_tiles; index = take_tile()) {
      queue_tile(index);
      await_loader();
    }
    publish(lane() == 0, {RowEntry::kStop, 0, 0, 0});
  }

 private:
  __device__ int take_tile() {
    int taken = 0;
    if (lane() == 0) taken = atomicAdd(params_.next_tile, 1);
    return __shfl_sync(~0u, taken, 0);
  }

  // Tiles come in sections of pairs whose rows fit in L2 together; within a section key blocks in their sorted order,
  // and for each the section's pairs side by side.
  __device__ void queue_tile(int index) {
    const int key_blocks = params_.mask.num_key_blocks;
    const int num_pairs = params_.batch * params_.kv_heads;
    const int section = index / (key_blocks * params_.section_pairs);
    const int first_pair = section * params_.section_pairs;
    const int pairs = min(params_.section_pairs, num_pairs - first_pair);
    const int within = index - first_pair * key_blocks;
    place_ = within / pairs;
    const int pair = first_pair + within - place_ * pairs;
    tile_.batch = pair / params_.kv_heads;
    tile_.kv_head = pair - tile_.batch * params_.kv_heads;

    const int group = params_.query_heads / params_.kv_heads;
    const int first_head = tile_.kv_head * group;
    tile_.key_block = params_.lists.sorted[static_cast<int64_t>(mask_of(first_head)) * key_blocks + place_].x;
    int last_head = first_head + group - 1;
    while (last_head >= first_head && record_of(last_head).w == 0) --last_head;
    tile_.head = first_head;
    if (last_head < first_head) return publish(lane() == 0, {RowEntry::kFirst | RowEntry::kLast, 0, 0, 0});
    mark_ = RowEntry::kFirst;
    smem_.last_head = last_head;  // every lane writes the same, and reads it below
    for (; tile_.head <= smem_.last_head; ++tile_.head) queue_rows();
  }

  __device__ void queue_rows() {
    const int4 record = record_of(tile_.head);
    const int first = record.y, last = record.z;
    const int mask = mask_of(tile_.head);
    const int row_blocks = params_.lists.num_row_blocks;
    for (int base = first; base <= last; base += kBwdQueueEntries) {
      const int row_block = base + lane();
      uint32_t flags = 0;
      if (row_block <= last) flags = classify_row_block(params_.mask, mask, tile_.key_block, row_block);
      const uint32_t lanes = __ballot_sync(~0u, flags != 0);
      if (lanes == 0) continue;
      RowEntry entry{static_cast<uint32_t>(row_block), flags, 0, 0};
      if ((lanes & ((1u << lane()) - 1)) == 0) entry.row_block_and_marks |= mark_;
      if (row_block == last && tile_.head == smem_.last_head) entry.row_block_and_marks |= RowEntry::kLast;
      entry.block = (tile_.batch * params_.query_heads + tile_.head) * row_blocks + row_block;
      if (flags != 0) entry.turn = turn_of(static_cast<int64_t>(mask) * row_blocks + row_block);
      publish(flags != 0, entry);
      mark_ = 0;
    }
  }

  // Of the tile's key block at a row block that it visits.
  __device__ int turn_of(int64_t mask_row_block) const {
    const int words = (params_.mask.num_key_blocks + 31) / 32;
    const uint2 visits = params_.lists.visits[mask_row_block * words + place_ / 32];
    return static_cast<int>(visits.y) + __popc(visits.x & ((1u << (place_ % 32)) - 1));
  }

  // Until the loader has dealt with all that is queued. Whoever takes a tile must begin it soon: others may be waiting.
  __device__ void await_loader() {
    const uint32_t last = num_published_ - 1;
    smem_.barriers.queue_empty[last % kBwdQueueStages].wait(last / kBwdQueueStages % 2);
  }

  // Read anew each time: this role has few registers.
  __device__ int lane() const { return ptx::thread_index() % 32; }

  // Index into [batch, heads] of the prepared mask.
  __device__ int mask_of(int head) const {
    const int mask_batch = params_.mask.batch == 1 ? 0 : tile_.batch;
    return mask_batch * params_.mask.heads + head * params_.mask.heads / params_.query_heads;
  }
  __device__ int4 record_of(int head) const {
    return params_.lists.records[static_cast<int64_t>(mask_of(head)) * params_.mask.num_key_blocks + tile_.key_block];
  }

  // The lanes that have an entry append it, in lane order.
  __device__ void publish(bool has_entry, const RowEntry& entry) {
    const uint32_t at = num_published_ % kBwdQueueStages;
    RowQueueStage& stage = smem_.queue[at];
    const uint32_t lanes = __ballot_sync(~0u, has_entry);
    smem_.barriers.queue_empty[at].wait(num_published_ / kBwdQueueStages % 2 ^ 1);
    ++num_published_;
    if (has_entry) stage.entries[__popc(lanes & ((1u << lane()) - 1))] = entry;
    if (lane() == 0) {
      stage.tile = tile_;
      stage.count = __popc(lanes);
    }
    __syncwarp();
    if (lane() == 0) smem_.barriers.queue_full[at].arrive();
  }

  const BwdParams& params_;
  BwdSmem<kConfig>& smem_;
  KeyTile tile_{};
  int place_ = 0;               // of the tile's key block in the order
  uint32_t mark_ = 0;           // of the next entry
  uint32_t num_published_ = 0;  // queue stages
};

}  // namespace fm3::attention
