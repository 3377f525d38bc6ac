// Role 2, one thread: issues the bulk copies of the queued blocks, and nothing else.
#pragma once

#include "attention/block_classify.cuh"
#include "attention/bwd_params.h"
#include "attention/bwd_smem.cuh"
#include "ptx/bulk_copy.cuh"

namespace fm3::attention {

template <BwdConfig kConfig>
class BwdLoader {
 public:
  __device__ BwdLoader(const BwdParams& params, BwdSmem<kConfig>& smem) : params_(params), smem_(smem) {}

  __device__ void run() {
    for (bool stops = false; !stops; queue_.advance()) {
      smem_.barriers.queue_full[queue_.stage].wait(queue_.parity);
      stops = load_blocks(smem_.queue[queue_.stage]);
      smem_.barriers.queue_empty[queue_.stage].arrive();
    }
  }

 private:
  // Returns whether the list ends here. A tile's rows are asked for before its keys: room for keys is only free once the
  // tile before is through, room for rows is free earlier.
  __device__ bool load_blocks(const RowQueueStage& stage) {
    const KeyTile tile = stage.tile;
    const int count = stage.count;
    for (int i = 0; i < count; ++i) {
      RowEntry entry = stage.entries[i];
      if (keys_parity_ != 0) entry.row_block_and_marks |= RowEntry::kOddKeys;
      load_row_gradients(entry, tile);
      load_rows(entry, tile);
      if (entry.is_first() && entry.flags != 0) load_keys(tile);
      if (entry.stops()) return true;
    }
    return false;
  }

  __device__ void load_row_gradients(const RowEntry& entry, const KeyTile& tile) {
    const int stage = d_out_.stage;
    tile::Barrier& full = smem_.barriers.do_full[stage];
    smem_.barriers.do_empty[stage].wait(d_out_.parity ^ 1);
    d_out_.advance();
    if (entry.flags == 0) return full.arrive();
    full.arrive_expect_bytes(Smem::kRowBytes);
    ptx::load_tensor_5d(ptx::shared_address(smem_.d_out[stage]), &params_.d_out, full.address(), 0,
                        entry.row_block() * kBwdRows, 0, tile.head, tile.batch);
  }

  __device__ void load_rows(const RowEntry& entry, const KeyTile& tile) {
    const int stage = q_.stage;
    tile::Barrier& full = smem_.barriers.q_full[stage];
    smem_.barriers.q_empty[stage].wait(q_.parity ^ 1);
    q_.advance();
    smem_.entries[stage] = entry;
    smem_.tiles[stage] = tile;
    if (entry.flags == 0) return full.arrive();
    const bool needs_columns = (entry.flags & kVectorsOfAll) != 0;
    full.arrive_expect_bytes(Smem::kRowBytes + Smem::kTermBytes + (needs_columns ? Smem::kColumnBytes : 0));
    ptx::load_tensor_5d(ptx::shared_address(smem_.q[stage]), &params_.q, full.address(), 0,
                        entry.row_block() * kBwdRows, 0, tile.head, tile.batch);
    ptx::load_bytes(ptx::shared_address(smem_.terms[stage]),
                    params_.row_terms + static_cast<int64_t>(entry.block) * (2 * kBwdRows), Smem::kTermBytes,
                    full.address());
    if (needs_columns) {
      const int mask_head = tile.head * params_.mask.heads / params_.query_heads;
      const int mask_batch = params_.mask.batch == 1 ? 0 : tile.batch;
      const int64_t block =
          (static_cast<int64_t>(mask_batch) * params_.mask.heads + mask_head) * params_.mask.num_key_blocks +
          tile.key_block;
      ptx::load_bytes(ptx::shared_address(smem_.columns[stage]), params_.mask.columns + block * (4 * kBlockKeys),
                      Smem::kColumnBytes, full.address());
    }
  }

  __device__ void load_keys(const KeyTile& tile) {
    smem_.barriers.k_empty.wait(keys_parity_ ^ 1);
    smem_.barriers.k_full.arrive_expect_bytes(Smem::kKeyBytes);
    ptx::load_tensor_5d(ptx::shared_address(smem_.k), &params_.k, smem_.barriers.k_full.address(), 0,
                        tile.key_block * kBlockKeys, 0, tile.kv_head, tile.batch);
    smem_.barriers.v_empty.wait(keys_parity_ ^ 1);
    smem_.barriers.v_full.arrive_expect_bytes(Smem::kKeyBytes);
    ptx::load_tensor_5d(ptx::shared_address(smem_.v), &params_.v, smem_.barriers.v_full.address(), 0,
                        tile.key_block * kBlockKeys, 0, tile.kv_head, tile.batch);
    keys_parity_ ^= 1;
  }

  using Smem = BwdSmem<kConfig>;
  static constexpr uint32_t kVectorsOfAll = kVectorFlags * 0x0101u;

  const BwdParams& params_;
  Smem& smem_;
  tile::Cursor<kBwdQueueStages> queue_;
  tile::Cursor<kConfig.q_stages> q_;
  tile::Cursor<kConfig.do_stages> d_out_;
  uint32_t keys_parity_ = 0;
};

}  // namespace fm3::attention
