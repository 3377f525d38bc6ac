// Role 2, one thread: the KV loader. Issues the bulk copies of the queued blocks, and nothing else.
#pragma once

#include "attention/block_classify.cuh"
#include "attention/fwd_params.h"
#include "attention/fwd_smem.cuh"
#include "attention/ready_flags.cuh"
#include "ptx/bulk_copy.cuh"
#include "ptx/sync.cuh"

namespace fm3::attention {

template <FwdConfig kConfig>
class Loader {
 public:
  __device__ Loader(const FwdParams& params, FwdSmem<kConfig>& smem) : params_(params), smem_(smem) {}

  __device__ void run() {
    for (bool stops = false; !stops; queue_.advance()) {
      smem_.barriers.queue_full[queue_.stage].wait(queue_.parity);
      stops = load_blocks(smem_.queue[queue_.stage]);
      smem_.barriers.queue_empty[queue_.stage].arrive();
    }
  }

 private:
  // Returns whether the list ends here.
  __device__ bool load_blocks(const QueueStage& stage) {
    const Tile tile = stage.tile;
    const int kv_head = tile.head * params_.kv_heads / params_.query_heads;
    const int mask_head = tile.head * params_.mask.heads / params_.query_heads;
    const int mask_batch = params_.mask.batch == 1 ? 0 : tile.batch;
    const int64_t first_block =
        (static_cast<int64_t>(mask_batch) * params_.mask.heads + mask_head) * params_.mask.num_key_blocks;
    const int count = stage.count;
    // What the generator has seen to be there, copies see from here on: the queue's barrier hands its acquire on.
    if (stage.brings_news) ptx::fence_async_global();
    for (int i = 0; i < count; ++i) {
      const BlockEntry entry = stage.entries[i];
      if (entry.flags != 0 && !entry.has_arrived()) await_chunk(entry.key_block());
      // Keys are wanted a step before the values of their block, and their room falls free a step earlier.
      load_keys(entry, tile.batch, kv_head, first_block);
      if (entry.is_first()) load_rows(tile);
      load_values();
      if (entry.stops()) return true;
      owed_ = {true, entry.flags != 0, entry.key_block() * kBlockKeys, kv_head, tile.batch};
    }
    return false;
  }

  __device__ void load_rows(const Tile& tile) {
    const int stage = rows_.stage;
    tile::Barrier& full = smem_.barriers.q_full[stage];
    smem_.barriers.q_empty[stage].wait(rows_.parity ^ 1);
    smem_.tiles[stage] = tile;
    full.arrive_expect_bytes(kConfig.consumer_warpgroups * Smem::kGroupBytes);
#pragma unroll
    for (int group = 0; group < kConfig.consumer_warpgroups; ++group) {
      ptx::load_tensor_5d(ptx::shared_address(smem_.q[stage][group]), &params_.q, full.address(), 0,
                          tile.row_block * kConfig.block_rows() + 64 * group, 0, tile.head, tile.batch);
    }
    rows_.advance();
  }

  __device__ void load_keys(const BlockEntry& entry, int batch, int kv_head, int64_t first_block) {
    const int stage = keys_.stage;
    tile::Barrier& full = smem_.barriers.k_full[stage];
    smem_.barriers.k_empty[stage].wait(keys_.parity ^ 1);
    keys_.advance();
    smem_.entries[stage] = entry;
    if (entry.flags == 0) return full.arrive();
    const bool needs_columns = (entry.flags & kVectorsOfAll) != 0;
    full.arrive_expect_bytes(Smem::kBlockBytes + (needs_columns ? Smem::kColumnBytes : 0));
    ptx::load_tensor_5d(ptx::shared_address(smem_.k[stage]), &params_.k, full.address(), 0,
                        entry.key_block() * kBlockKeys, 0, kv_head, batch);
    if (needs_columns) {
      const int32_t* columns = params_.mask.columns + (first_block + entry.key_block()) * (4 * kBlockKeys);
      ptx::load_bytes(ptx::shared_address(smem_.columns[stage]), columns, Smem::kColumnBytes, full.address());
    }
  }

  // Waits until the chunk that holds a key block has arrived; values come with their keys. This stands before the wait
  // for room, so that reading the flag costs nothing while there is none.
  __device__ void await_chunk(int key_block) {
    const int chunk = key_block / params_.ready.blocks_per_chunk;
    if (chunk == ready_chunk_) return;
    while (!has_arrived(params_.ready, chunk)) ptx::sleep(200);
    ptx::fence_async_global();
    ready_chunk_ = chunk;
  }

  // Of the entry before, if there was one.
  __device__ void load_values() {
    if (!owed_.exists) return;
    const int stage = values_.stage;
    tile::Barrier& full = smem_.barriers.v_full[stage];
    smem_.barriers.v_empty[stage].wait(values_.parity ^ 1);
    values_.advance();
    if (!owed_.is_read) return full.arrive();
    full.arrive_expect_bytes(Smem::kBlockBytes);
    ptx::load_tensor_5d(ptx::shared_address(smem_.v[stage]), &params_.v, full.address(), 0, owed_.key_start, 0,
                        owed_.kv_head, owed_.batch);
  }

  // A block whose keys are on their way and whose values are not.
  struct Owed {
    bool exists = false;
    bool is_read = false;  // somebody sees it
    int key_start = 0;
    int kv_head = 0;
    int batch = 0;
  };

  using Smem = FwdSmem<kConfig>;
  static constexpr uint32_t kVectorsOfAll = kVectorFlags * 0x01010101u;

  const FwdParams& params_;
  Smem& smem_;
  tile::Cursor<kQueueStages> queue_;
  tile::Cursor<kConfig.stages> keys_;
  tile::Cursor<kConfig.stages> values_;
  tile::Cursor<kRowStages> rows_;
  Owed owed_;
  int ready_chunk_ = -1;  // the last one that was waited for
};

}  // namespace fm3::attention
