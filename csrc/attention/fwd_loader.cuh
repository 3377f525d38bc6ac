// Role 2, one thread: the KV loader. Issues the bulk copies of the queued blocks, and nothing else.
#pragma once

#include "attention/block_classify.cuh"
#include "attention/fwd_params.h"
#include "attention/fwd_smem.cuh"
#include "ptx/bulk_copy.cuh"

namespace fm3::attention {

template <FwdConfig kConfig>
class Loader {
 public:
  __device__ Loader(const FwdParams& params, FwdSmem<kConfig>& smem) : params_(params), smem_(smem) {}

  __device__ void run() {
    for (;;) {
      smem_.barriers.queue_full[queue_.stage].wait(queue_.parity);
      const QueueStage& stage = smem_.queue[queue_.stage];
      const Tile tile = stage.tile;
      if (tile.state != TileState::kBlocks) {
        announce_tile(tile);
        if (tile.state == TileState::kStop) return;
      } else {
        load_blocks(stage, tile);
      }
      smem_.barriers.queue_empty[queue_.stage].arrive();
      queue_.advance();
    }
  }

 private:
  __device__ void load_blocks(const QueueStage& stage, const Tile& tile) {
    const int kv_head = tile.head * params_.kv_heads / params_.query_heads;
    const int mask_head = tile.head * params_.mask.heads / params_.query_heads;
    const int mask_batch = params_.mask.batch == 1 ? 0 : tile.batch;
    const int64_t first_block =
        (static_cast<int64_t>(mask_batch) * params_.mask.heads + mask_head) * params_.mask.num_key_blocks;
    const int count = stage.count;
    for (int i = 0; i < count; ++i) {
      const BlockEntry entry = stage.entries[i];
      load_keys(entry, tile.batch, kv_head, first_block);
      if (i == 0 && stage.starts_tile) load_rows(tile);  // behind the first keys: Q's room is the last to fall free
      load_values(entry, tile.batch, kv_head);
      blocks_.advance();
    }
  }

  __device__ void load_keys(const BlockEntry& entry, int batch, int kv_head, int64_t first_block) {
    const int stage = blocks_.stage;
    tile::Barrier& full = smem_.barriers.k_full[stage];
    smem_.barriers.k_empty[stage].wait(blocks_.parity ^ 1);
    smem_.entries[stage] = entry;
    const bool needs_columns = (entry.flags & kVectorsOfAll) != 0;
    full.arrive_expect_bytes(Smem::kBlockBytes + (needs_columns ? Smem::kColumnBytes : 0));
    ptx::load_tensor_5d(ptx::shared_address(smem_.k[stage]), &params_.k, full.address(), 0,
                        entry.key_block() * kBlockKeys, 0, kv_head, batch);
    if (needs_columns) {
      const int32_t* columns = params_.mask.columns + (first_block + entry.key_block()) * (4 * kBlockKeys);
      ptx::load_bytes(ptx::shared_address(smem_.columns[stage]), columns, Smem::kColumnBytes, full.address());
    }
  }

  __device__ void load_values(const BlockEntry& entry, int batch, int kv_head) {
    const int stage = blocks_.stage;
    tile::Barrier& full = smem_.barriers.v_full[stage];
    smem_.barriers.v_empty[stage].wait(blocks_.parity ^ 1);
    full.arrive_expect_bytes(Smem::kBlockBytes);
    ptx::load_tensor_5d(ptx::shared_address(smem_.v[stage]), &params_.v, full.address(), 0,
                        entry.key_block() * kBlockKeys, 0, kv_head, batch);
  }

  __device__ void load_rows(const Tile& tile) {
    wait_for_rows();
    smem_.tile = tile;
    smem_.barriers.q_full.arrive_expect_bytes(Smem::kRowBytes);
    ptx::load_tensor_5d(ptx::shared_address(smem_.q), &params_.q, smem_.barriers.q_full.address(), 0,
                        tile.row_block * kConfig.block_rows(), 0, tile.head, tile.batch);
  }

  // A tile without rows to load: nothing visible, or the end.
  __device__ void announce_tile(const Tile& tile) {
    wait_for_rows();
    smem_.tile = tile;
    smem_.barriers.q_full.arrive();
  }

  __device__ void wait_for_rows() {
    smem_.barriers.q_empty.wait(rows_.parity ^ 1);
    rows_.advance();
  }

  using Smem = FwdSmem<kConfig>;
  static constexpr uint32_t kVectorsOfAll = kVectorFlags * 0x01010101u;

  const FwdParams& params_;
  Smem& smem_;
  tile::Cursor<kQueueStages> queue_;
  tile::Cursor<kConfig.stages> blocks_;
  tile::Cursor<1> rows_;
};

}  // namespace fm3::attention
