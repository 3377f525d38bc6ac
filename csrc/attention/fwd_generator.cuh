// Role 1, one warp: the KV index generator. Takes tiles, classifies their key blocks 32 at a time, queues those to
// visit.
#pragma once

#include "attention/block_classify.cuh"
#include "attention/fwd_smem.cuh"
#include "attention/ready_flags.cuh"
#include "attention/scheduler.cuh"

namespace fm3::attention {

template <FwdConfig kConfig>
class Generator {
 public:
  __device__ Generator(const FwdParams& params, FwdSmem<kConfig>& smem)
      : params_(params),
        smem_(smem),
        lane_(threadIdx.x % 32),
        all_arrived_(params.ready.epochs == nullptr),
        all_told_(all_arrived_) {}

  __device__ void run() {
    for (int index = blockIdx.x; index < params_.num_tiles;) {
      int taken = 0;
      if (lane_ == 0) taken = atomicAdd(params_.next_tile, 1);
      queue_tile(locate_tile(params_, index));
      index = static_cast<int>(gridDim.x) + __shfl_sync(~0u, taken, 0);
    }
    publish(Tile{}, lane_ == 0, {BlockEntry::kStop, 0});
  }

 private:
  __device__ void queue_tile(const ScheduledTile& scheduled) {
    const int first = scheduled.row_block.y, last = scheduled.row_block.z;
    if (first > last) return publish(scheduled.tile, lane_ == 0, {BlockEntry::kFirst | BlockEntry::kLast, 0});
    if (!all_arrived_) all_arrived_ = find_all_arrived();
    const int4* extrema = params_.mask.extrema + scheduled.mask_head * params_.mask.num_key_blocks * 4;
    const int row_start = scheduled.tile.row_block * kConfig.block_rows();
    const uint8_t* keep = params_.mask.keep;
    if (keep != nullptr) {
      const int64_t line = scheduled.mask_head * params_.mask.num_row_blocks + scheduled.tile.row_block;
      keep += line * params_.mask.num_key_blocks;
    }
    for (int base = first; base <= last; base += kQueueEntries) {
      const int key_block = base + lane_;
      uint32_t flags = 0;
      if (key_block <= last && (keep == nullptr || keep[key_block] != 0)) {
        flags = classify_block<kConfig.consumer_warpgroups>(extrema, key_block, row_start, params_.num_rows);
      }
      if (__any_sync(~0u, flags != 0)) {
        uint32_t marks = (key_block == first ? BlockEntry::kFirst : 0) | (key_block == last ? BlockEntry::kLast : 0);
        if (flags != 0 && (all_arrived_ || has_arrived(params_.ready, key_block / params_.ready.blocks_per_chunk))) {
          marks |= BlockEntry::kArrived;
        }
        publish(scheduled.tile, flags != 0, {key_block | marks, flags});
      }
    }
  }

  // This role has time to look, the loader has not.
  __device__ bool find_all_arrived() const {
    const int num_chunks =
        (params_.mask.num_key_blocks + params_.ready.blocks_per_chunk - 1) / params_.ready.blocks_per_chunk;
    bool all = true;
    for (int chunk = lane_; all && chunk < num_chunks; chunk += 32) all = has_arrived(params_.ready, chunk);
    return __all_sync(~0u, all);
  }

  // The lanes that have an entry append it, in lane order.
  __device__ void publish(const Tile& tile, bool has_entry, const BlockEntry& entry) {
    QueueStage& stage = smem_.queue[cursor_.stage];
    const uint32_t lanes = __ballot_sync(~0u, has_entry);
    smem_.barriers.queue_empty[cursor_.stage].wait(cursor_.parity ^ 1);
    if (has_entry) stage.entries[__popc(lanes & ((1u << lane_) - 1))] = entry;
    if (lane_ == 0) {
      stage.tile = tile;
      stage.count = __popc(lanes);
      stage.brings_news = !all_told_;
    }
    all_told_ = all_arrived_;
    __syncwarp();
    if (lane_ == 0) smem_.barriers.queue_full[cursor_.stage].arrive();
    cursor_.advance();
  }

  const FwdParams& params_;
  FwdSmem<kConfig>& smem_;
  const int lane_;
  bool all_arrived_;  // all chunks of keys
  bool all_told_;     // and the loader knows
  tile::Cursor<kQueueStages> cursor_;
};

}  // namespace fm3::attention
