// Role 1, one warp: the KV index generator. Takes tiles, classifies their key blocks 32 at a time, queues those to visit.
#pragma once

#include "attention/block_classify.cuh"
#include "attention/fwd_smem.cuh"
#include "attention/scheduler.cuh"

namespace fm3::attention {

template <FwdConfig kConfig>
class Generator {
 public:
  __device__ Generator(const FwdParams& params, FwdSmem<kConfig>& smem)
      : params_(params), smem_(smem), lane_(threadIdx.x % 32) {}

  __device__ void run() {
    for (int index = blockIdx.x; index < params_.num_tiles;) {
      int taken = 0;
      if (lane_ == 0) taken = atomicAdd(params_.next_tile, 1);
      queue_tile(locate_tile(params_, index));
      index = static_cast<int>(gridDim.x) + __shfl_sync(~0u, taken, 0);
    }
    publish(Tile{}, true, 0, 0);
  }

 private:
  __device__ void queue_tile(const ScheduledTile& scheduled) {
    if (scheduled.tile.state == TileState::kEmpty) return publish(scheduled.tile, true, 0, 0);
    const int4* extrema = params_.mask.extrema + scheduled.mask_head * params_.mask.num_key_blocks * 4;
    const int row_start = scheduled.tile.row_block * kConfig.block_rows();
    const int last = scheduled.row_block.z;
    bool starts_tile = true;
    for (int base = scheduled.row_block.y; base <= last; base += kQueueEntries) {
      const int key_block = base + lane_;
      uint32_t flags = 0;
      if (key_block <= last) {
        flags = classify_block<kConfig.consumer_warpgroups>(extrema, key_block, row_start, params_.num_rows);
      }
      if (__any_sync(~0u, flags != 0)) {
        publish(scheduled.tile, starts_tile, flags, BlockEntry::make(key_block, key_block == last, 0).key_block_and_last);
        starts_tile = false;
      }
    }
  }

  // Lanes with flags append their entry, in lane order.
  __device__ void publish(const Tile& tile, bool starts_tile, uint32_t flags, uint32_t key_block_and_last) {
    QueueStage& stage = smem_.queue[cursor_.stage];
    const uint32_t visible = __ballot_sync(~0u, flags != 0);
    smem_.barriers.queue_empty[cursor_.stage].wait(cursor_.parity ^ 1);
    if (flags != 0) stage.entries[__popc(visible & ((1u << lane_) - 1))] = {key_block_and_last, flags};
    if (lane_ == 0) {
      stage.tile = tile;
      stage.count = __popc(visible);
      stage.starts_tile = starts_tile;
    }
    __syncwarp();
    if (lane_ == 0) smem_.barriers.queue_full[cursor_.stage].arrive();
    cursor_.advance();
  }

  const FwdParams& params_;
  FwdSmem<kConfig>& smem_;
  const int lane_;
  tile::Cursor<kQueueStages> cursor_;
};

}  // namespace fm3::attention
