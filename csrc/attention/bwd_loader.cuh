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
  // Returns whether the list ends here. Rows are asked for before their gradients, which are wanted later and whose
  // room falls free later; a tile's rows before its keys, whose room is only free once the tile before is through. An
  // entry without flags takes no room for gradients. This role has few registers, so it keeps no entry: it reads what
  // it needs, when it needs it.
  __device__ bool load_blocks(const RowQueueStage& queued) {
    for (int i = 0; i < queued.count; ++i) {
      const RowEntry& entry = queued.entries[i];
      load_rows(entry, queued.tile);
      if (entry.flags != 0) load_row_gradients(entry, queued.tile);
      if (entry.is_first() && entry.flags != 0) load_keys(queued.tile);
      if (entry.stops()) return true;
    }
    return false;
  }

  __device__ void load_row_gradients(const RowEntry& entry, const KeyTile& tile) {
    const int stage = d_out_.stage;
    tile::Barrier& full = smem_.barriers.do_full[stage];
    smem_.barriers.do_empty[stage].wait(d_out_.parity ^ 1);
    d_out_.advance();
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
    if (keys_parity_ != 0) smem_.entries[stage].row_block_and_marks |= RowEntry::kOddKeys;
    smem_.tiles[stage] = tile;
    announce_dq(entry);
    if (entry.flags == 0) return full.arrive();
    const bool needs_columns = (entry.flags & kVectorsOfAll) != 0;
    full.arrive_expect_bytes(Smem::kRowBytes + Smem::kTermBytes + (needs_columns ? Smem::kColumnBytes : 0));
    ptx::load_tensor_5d(ptx::shared_address(smem_.q[stage]), &params_.q, full.address(), 0,
                        entry.row_block() * kBwdRows, 0, tile.head, tile.batch);
    ptx::load_bytes(ptx::shared_address(smem_.terms[stage]),
                    params_.row_terms + static_cast<int64_t>(entry.block) * (2 * kBwdRows), Smem::kTermBytes,
                    full.address());
    if (needs_columns) load_columns(tile, stage);
  }

  __device__ void announce_dq(const RowEntry& entry) {
    if (entry.stops()) {
      for (int i = 0; i < kDqWriters; ++i) announce({DqTarget::kStop, 0});
    } else if (entry.flags != 0) {
      announce({entry.block, entry.turn});
    }
  }

  __device__ void announce(const DqTarget& target) {
    smem_.dq_places[num_dq_ % kDqRing].set(target, num_dq_);
    ++num_dq_;
  }

  __device__ void load_columns(const KeyTile& tile, int stage) {
    const int mask_head = tile.head * params_.mask.heads / params_.query_heads;
    const int mask_batch = params_.mask.batch == 1 ? 0 : tile.batch;
    const int64_t block =
        static_cast<int64_t>(mask_batch * params_.mask.heads + mask_head) * params_.mask.num_key_blocks +
        tile.key_block;
    ptx::load_bytes(ptx::shared_address(smem_.columns[stage]), params_.mask.columns + block * (4 * kBlockKeys),
                    Smem::kColumnBytes, smem_.barriers.q_full[stage].address());
  }

  __device__ void load_keys(const KeyTile& tile) {
    load_key_rows(tile, params_.k, smem_.k, smem_.barriers.k_full, smem_.barriers.k_empty);
    load_key_rows(tile, params_.v, smem_.v, smem_.barriers.v_full, smem_.barriers.v_empty);
    keys_parity_ ^= 1;
  }

  __device__ void load_key_rows(const KeyTile& tile, const CUtensorMap& map, const uint8_t* room, tile::Barrier& full,
                                tile::Barrier& empty) {
    empty.wait(keys_parity_ ^ 1);
    full.arrive_expect_bytes(Smem::kKeyBytes);
    ptx::load_tensor_5d(ptx::shared_address(room), &map, full.address(), 0, tile.key_block * kBlockKeys, 0,
                        tile.kv_head, tile.batch);
  }

  using Smem = BwdSmem<kConfig>;
  static constexpr uint32_t kVectorsOfAll = kVectorFlags * 0x0101u;

  const BwdParams& params_;
  Smem& smem_;
  tile::Cursor<kBwdQueueStages> queue_;
  tile::Cursor<kConfig.q_stages> q_;
  tile::Cursor<kConfig.do_stages> d_out_;
  uint32_t keys_parity_ = 0;
  uint32_t num_dq_ = 0;
};

}  // namespace fm3::attention
