// Role 3, two warpgroups of 64 keys each: transposed scores, their gradient, and the three products that use it.
//
// A warpgroup's stretch of visible row blocks is a pipeline. While exponentials are taken the products for dP run,
// while dS is formed those for dV run, and while dQ leaves those for dK and for the next block's scores run.
#pragma once

#include "attention/bwd_dq.cuh"
#include "attention/bwd_mask.cuh"
#include "attention/bwd_params.h"
#include "attention/bwd_smem.cuh"
#include "ptx/bulk_copy.cuh"
#include "ptx/math.cuh"
#include "ptx/reduce.cuh"
#include "ptx/sync.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/wgmma_shared.cuh"
#include "tile/descriptor.cuh"
#include "tile/fragment.cuh"

namespace fm3::attention {

template <BwdConfig kConfig>
class BwdConsumer {
 public:
  __device__ BwdConsumer(const BwdParams& params, BwdSmem<kConfig>& smem, int warpgroup)
      : params_(params), smem_(smem), warpgroup_(warpgroup), thread_(threadIdx.x % 128) {}

  __device__ void run() {
    take_block();
    while (!whole_warp((marks_ & RowEntry::kStop) != 0)) {
      clear(dk_);
      clear(dv_);
      if (whole_warp(flags_ != 0)) {
        open_tile();
        for (bool more = true; more;) more = sees_block() ? run_blocks() : skip_block();
        release(smem_.barriers.k_empty);
        release(smem_.barriers.v_empty);
      }
      const KeyTile tile = smem_.tiles[q_.stage];
      __syncwarp();
      release(smem_.barriers.q_empty[q_.stage]);
      q_.advance();
      store_tile(tile);
      take_block();
    }
    finish_stores();
    stop_writers();
  }

 private:
  static constexpr int kDim = kConfig.head_dim;
  static constexpr int kDqColumns = kDim / 2;  // of one warpgroup
  static constexpr ptx::Element kElement = kConfig.dtype == Dtype::kBf16 ? ptx::Element::kBf16 : ptx::Element::kFp16;
  using ScoreProduct = ptx::SharedProduct<kElement, kBwdRows, ptx::Major::kSummed>;
  using DqProduct = ptx::SharedProduct<kElement, kDqColumns, ptx::Major::kOuter>;
  using KeyProduct = ptx::Wgmma<kElement, kDim>;
  using Order = DqOrder<kDim>;
  static_assert(kConfig.do_stages == 2, "dS alternates with dO");

  // A run: row blocks of one tile that this warpgroup sees, one behind the other. At the head of the loop the scores
  // and dP of the current block are under way, and behind the first one dK of the block before. Returns whether the
  // tile goes on.
  //
  // While products run shared memory answers late: what comes from there is asked for a step ahead, and all waiting for
  // other roles is done beside the products of dQ and dK.
  __device__ __forceinline__ bool run_blocks() {
    clear(ds_);
    issue_scores();
    issue_dp();
    for (bool owes_rows = false;; owes_rows = true) {
      Terms terms;
      read_terms<0, 2>(terms, 0);
      ptx::warpgroup_wait<1>();  // the scores, and dK of the block before
      ptx::pin(scores_);
      ptx::pin(ds_);
      if (owes_rows) release(smem_.barriers.q_empty[q_.previous().stage]);
      finish_scores(terms);
      read_terms<0, 4>(terms, 1);
      issue_dv();
      ptx::warpgroup_wait<1>();  // dP
      ptx::pin(dp_);
      form_ds(terms);
      const bool sees_other = sees_half(1 - warpgroup_), last = is_last();
      sync_consumers();
      issue_dq(sees_other);
      issue_dk();
      const tile::Cursor<kConfig.q_stages> current = q_;
      if (!last) {
        q_.advance();
        take_block();
      }
      await_dq_room();
      ptx::warpgroup_wait<1>();  // dV and dQ
      pin_dq();
      ptx::pin(probabilities_);
      release(smem_.barriers.do_empty[d_out_.stage]);
      d_out_.advance();
      if (last) {
        send_dq();
        finish_products();
        return false;
      }
      if (!sees_block()) {
        send_dq();
        finish_products();
        release(smem_.barriers.q_empty[current.stage]);
        return true;
      }
      issue_scores();
      send_dq();
      issue_dp();
    }
  }

  // A block that only the other warpgroup sees: half of its dQ is still this one's to do. Returns whether the tile goes
  // on.
  __device__ __forceinline__ bool skip_block() {
    sync_consumers();
    ptx::warpgroup_arrive();
    issue_dq_half(1 - warpgroup_, true);
    ptx::warpgroup_commit();
    ptx::warpgroup_wait<0>();
    pin_dq();
    release(smem_.barriers.do_empty[d_out_.stage]);
    d_out_.advance();
    await_dq_room();
    send_dq();
    if (is_last()) return false;
    release(smem_.barriers.q_empty[q_.stage]);
    q_.advance();
    take_block();
    return true;
  }

  __device__ __forceinline__ void finish_products() {
    ptx::warpgroup_wait<0>();
    ptx::pin(ds_);
    ptx::pin(dk_);
    ptx::pin(dv_);
  }

  __device__ __forceinline__ void take_block() {
    smem_.barriers.q_full[q_.stage].wait(q_.parity);
    marks_ = smem_.entries[q_.stage].row_block_and_marks;
    flags_ = smem_.entries[q_.stage].flags;
  }

  __device__ __forceinline__ bool is_last() const { return whole_warp((marks_ & RowEntry::kLast) != 0); }

  // The vote says nothing new, but from it the compiler knows that whole warps agree; else it serialises the products
  // and computes their operands in vector registers.
  __device__ __forceinline__ static bool whole_warp(bool condition) { return __any_sync(~0u, condition); }

  __device__ __forceinline__ bool sees_half(int half) const {
    return whole_warp((flags_ >> (kFlagBits * half) & kVisibleFlags) != 0);
  }
  __device__ __forceinline__ bool sees_block() const { return sees_half(warpgroup_); }

  __device__ __forceinline__ void open_tile() {
    finish_stores();
    sync_consumers();  // dS and dQ may be written again
    key_start_ = smem_.tiles[q_.stage].key_block * kBlockKeys;
    const uint32_t parity = (marks_ & RowEntry::kOddKeys) != 0;
    smem_.barriers.k_full.wait(parity);
    smem_.barriers.v_full.wait(parity);
  }

  // One term of each of the thread's sixteen rows.
  struct Terms {
    float of_rows[kBwdRows / 4];
  };

  template <int kFirst, int kLast>
  __device__ __forceinline__ void read_terms(Terms& terms, int which) const {
    const uint32_t first = ptx::shared_address(smem_.terms[q_.stage][which]) + 16 * (thread_ % 4);
#pragma unroll
    for (int i = kFirst; i < kLast; ++i) {
      float* to = terms.of_rows + 4 * i;
      ptx::load_shared_x4(first + 64 * i, to[0], to[1], to[2], to[3]);
    }
  }

  // S^T = K Q^T, this warpgroup's keys by the block's rows.
  __device__ __forceinline__ void issue_scores() { issue_rows_product(scores_, smem_.k, smem_.q[q_.stage]); }

  // dP^T = V dO^T.
  __device__ __forceinline__ void issue_dp() {
    smem_.barriers.do_full[d_out_.stage].wait(d_out_.parity);
    issue_rows_product(dp_, smem_.v, smem_.d_out[d_out_.stage]);
  }

  __device__ __forceinline__ void issue_rows_product(float (&result)[kBwdRows / 2], const uint8_t* keys,
                                                     const uint8_t* rows) {
    const ptx::Operand a = tile::k_major(ptx::shared_address(keys) + warpgroup_ * (kHalfKeys * tile::kPanelRowBytes));
    const ptx::Operand b = tile::k_major(ptx::shared_address(rows));
    ptx::warpgroup_arrive();
    ScoreProduct::overwrite(result, a, b);
#pragma unroll
    for (int step = 1; step < kDim / 16; ++step) {
      ScoreProduct::accumulate(result, a + tile::k_major_step(step, kBlockKeys),
                               b + tile::k_major_step(step, kBwdRows));
    }
    ptx::warpgroup_commit();
  }

  // Scores to probabilities: exp2(scale S - LSE).
  __device__ __forceinline__ void finish_scores(Terms& terms) {
    const uint32_t cuts = flags_ >> (kFlagBits * warpgroup_) & kCutFlags;
    if (cuts != 0) {
      const int key = kHalfKeys * warpgroup_ + tile::fragment_row(thread_);
      apply_transposed_mask(scores_, cuts, smem_.columns[q_.stage], key,
                            key_start_ + key - (params_.mask.num_keys - params_.mask.num_rows),
                            static_cast<int>(marks_ & RowEntry::kRowBlock) * kBwdRows + tile::fragment_column(thread_));
      __syncwarp();
    }
    read_terms<2, 4>(terms, 0);
#pragma unroll
    for (int i = 0; i < kBwdRows / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            float& score = scores_[8 * i + 4 * j + 2 * h + c];
            score = ptx::exp2(fmaf(score, params_.scale_log2, terms.of_rows[4 * i + 2 * j + c]));
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kBwdRows / 4; ++i) {
      probabilities_[i] = tile::pack<kElement>(scores_[2 * i], scores_[2 * i + 1]);
    }
  }

  // dS = P (dP - terms), kept in registers for dK and written for dQ.
  __device__ __forceinline__ void form_ds(const Terms& terms) {
    const uint32_t thread = ptx::thread_index() - 128;
#pragma unroll
    for (int i = 0; i < kBwdRows / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int at = 8 * i + 4 * j + 2 * h;
          ds_[at / 2] = tile::pack<kElement>(scores_[at] * (dp_[at] - terms.of_rows[4 * i + 2 * j]),
                                             scores_[at + 1] * (dp_[at + 1] - terms.of_rows[4 * i + 2 * j + 1]));
        }
      }
    }
    const uint32_t lane = thread % 32;
    const uint32_t key = 16 * (thread / 32) + lane % 16;
    const uint32_t staged = ptx::shared_address(smem_.ds[d_out_.stage]);
#pragma unroll
    for (int i = 0; i < kBwdRows / 16; ++i) {
      ptx::store_matrix_x4(staged + tile::swizzled_offset(key, 2 * i + lane / 16), ds_[4 * i], ds_[4 * i + 1],
                           ds_[4 * i + 2], ds_[4 * i + 3]);
    }
    ptx::fence_async_shared();
  }

  // dV += P^T dO.
  __device__ __forceinline__ void issue_dv() { issue_keys_product(dv_, probabilities_, smem_.d_out[d_out_.stage]); }

  // dK += dS^T Q.
  __device__ __forceinline__ void issue_dk() { issue_keys_product(dk_, ds_, smem_.q[q_.stage]); }

  __device__ __forceinline__ void issue_keys_product(float (&result)[kDim / 2], uint32_t (&a)[kBwdRows / 4],
                                                     const uint8_t* rows) {
    const ptx::Operand b = tile::mn_major(ptx::shared_address(rows), kBwdRows);
    ptx::pin(a);
    ptx::warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kBwdRows / 16; ++step) {
      KeyProduct::product_rs(result, a + 4 * step, b + tile::mn_major_step(step));
    }
    ptx::warpgroup_commit();
  }

  // dQ = dS K, this warpgroup's columns, over the halves of the keys that somebody sees.
  __device__ __forceinline__ void issue_dq(bool sees_other) {
    if (sees_other) {
      ptx::warpgroup_arrive();
      issue_dq_half(warpgroup_, true);
      issue_dq_half(1 - warpgroup_, false);
      ptx::warpgroup_commit();
    } else {
      ptx::warpgroup_arrive();
      issue_dq_half(warpgroup_, true);
      ptx::warpgroup_commit();
    }
  }

  __device__ __forceinline__ void issue_dq_half(int half, bool overwrites) {
    const uint32_t half_bytes = half * (kHalfKeys * tile::kPanelRowBytes);
    const ptx::Operand a = tile::mn_major(ptx::shared_address(smem_.ds[d_out_.stage]) + half_bytes, kBlockKeys);
    const uint32_t columns =
        kDim == 128 ? warpgroup_ * (kBlockKeys * tile::kPanelRowBytes) : warpgroup_ * (kDqColumns * 2);
    const ptx::Operand b = tile::mn_major(ptx::shared_address(smem_.k) + half_bytes + columns, kBlockKeys);
    if (overwrites) {
      DqProduct::overwrite(dq(), a, b);
    } else {
      DqProduct::accumulate(dq(), a, b);
    }
#pragma unroll
    for (int step = 1; step < kHalfKeys / 16; ++step) {
      DqProduct::accumulate(dq(), a + tile::mn_major_step(step), b + tile::mn_major_step(step));
    }
  }

  // dQ takes the registers of dP: one is spent before the other is made.
  __device__ __forceinline__ float (&dq()) [kDqColumns / 2] {
    if constexpr (kDqColumns == kBwdRows) {
      return dp_;
    } else {
      return *reinterpret_cast<float (*)[kDqColumns / 2]>(&dp_);
    }
  } __device__ __forceinline__ void pin_dq() {
    ptx::pin(dq());
  }

  // Hands this warpgroup's part of dQ to the writers. There must be room.
  __device__ __forceinline__ void send_dq() {
    const uint32_t thread = ptx::thread_index() - 128;
    const uint32_t staged = ptx::shared_address(smem_.dq) + thread / 32 * (Order::kWarpFloats * 4) + thread % 32 * 16;
#pragma unroll
    for (int j = 0; j < Order::kGroups; ++j) {
      ptx::store_shared_x4(staged + 512 * j, dp_[4 * j], dp_[4 * j + 1], dp_[4 * j + 2], dp_[4 * j + 3]);
    }
    ptx::fence_async_shared();
    __syncwarp();
    release(smem_.barriers.dq_full[num_dq_ % kDqWriters]);
    ++num_dq_;
  }

  // Until the dQ handed over last is read.
  __device__ __forceinline__ void await_dq_room() {
    const uint32_t last = num_dq_ - 1;
    smem_.barriers.dq_empty[last % kDqWriters].wait(last / kDqWriters % 2);
  }

  __device__ __forceinline__ void stop_writers() {
    await_dq_room();
    __syncwarp();
    for (int i = 0; i < kDqWriters; ++i) release(smem_.barriers.dq_full[i]);
  }

  // --- The end of a tile.

  // dK and dV to global memory by way of the room of dQ and dS.
  __device__ __forceinline__ void store_tile(const KeyTile& tile) {
    finish_stores();
    await_dq_room();
    sync_consumers();  // dS is read
    // Read anew, so that no register holds what only this needs throughout the tile.
    const int thread = ptx::thread_index() % 128;
    const int warpgroup = ptx::thread_index() / 128 - 1;
    if (params_.dk_float != nullptr) {
      write_keys(dv_, 1.f, params_.dv_float, tile, thread, warpgroup);
      write_keys(dk_, params_.scale, params_.dk_float, tile, thread, warpgroup);
      if (params_.done.epochs != nullptr) {
        ptx::barrier_sync(static_cast<int>(BwdNamedBarrier::kOutput) + warpgroup, 128);
        if (thread == 0) smem_.stored_chunk[warpgroup] = tile.key_block / params_.done.blocks_per_chunk;
      }
      return;
    }
    stage_keys(dv_, 1.f, smem_.ds[warpgroup], thread);
    stage_keys(dk_, params_.scale, smem_.dq[warpgroup], thread);
    ptx::fence_async_shared();
    ptx::barrier_sync(static_cast<int>(BwdNamedBarrier::kOutput) + warpgroup, 128);
    if (thread != 0) return;
    if (params_.done.epochs != nullptr) smem_.stored_chunk[warpgroup] = tile.key_block / params_.done.blocks_per_chunk;
    const int key = tile.key_block * kBlockKeys + warpgroup * kHalfKeys;
    if (key < params_.mask.num_keys) {
      ptx::store_tensor_5d(&params_.dv, ptx::shared_address(smem_.ds[warpgroup]), 0, key, 0, tile.kv_head, tile.batch);
      ptx::store_tensor_5d(&params_.dk, ptx::shared_address(smem_.dq[warpgroup]), 0, key, 0, tile.kv_head, tile.batch);
      ptx::commit_bulk();
    }
  }

  __device__ __forceinline__ void stage_keys(const float (&values)[kDim / 2], float factor, const uint8_t* room,
                                             int thread) {
    const int lane = thread % 32;
    const int row = 16 * (thread / 32) + lane % 16;
    const uint32_t staged = ptx::shared_address(room);
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      const int word = 2 * i + lane / 16;
      const float* x = values + 8 * i;
      ptx::store_matrix_x4(
          staged + (word / 8) * (kHalfKeys * tile::kPanelRowBytes) + tile::swizzled_offset(row, word % 8),
          tile::pack<kElement>(x[0] * factor, x[1] * factor), tile::pack<kElement>(x[2] * factor, x[3] * factor),
          tile::pack<kElement>(x[4] * factor, x[5] * factor), tile::pack<kElement>(x[6] * factor, x[7] * factor));
    }
  }

  // The same without rounding, straight from registers. result: [batch, keys, kv heads, head_dim].
  __device__ __forceinline__ void write_keys(const float (&values)[kDim / 2], float factor, float* result,
                                             const KeyTile& tile, int thread, int warpgroup) {
    const int first = tile.key_block * kBlockKeys + warpgroup * kHalfKeys + tile::fragment_row(thread);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int key = first + 8 * h;
      if (key >= params_.mask.num_keys) continue;
      const int64_t row =
          (static_cast<int64_t>(tile.batch) * params_.mask.num_keys + key) * params_.kv_heads + tile.kv_head;
      float* at = result + row * kDim + tile::fragment_column(thread);
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
        *reinterpret_cast<float2*>(at + 8 * j) =
            make_float2(values[4 * j + 2 * h] * factor, values[4 * j + 2 * h + 1] * factor);
      }
    }
  }

  // Until the tile stored last has left shared memory; where others wait for chunks, until it is in place, and says so.
  __device__ __forceinline__ void finish_stores() {
    if (thread_ != 0) return;
    if (params_.done.epochs == nullptr) return ptx::wait_bulk_read<0>();
    ptx::wait_bulk<0>();
    count_stored_tile();
  }

  // Counts this warpgroup's part of the tile stored last, if there is one that was not; the last of a chunk sets its
  // epoch.
  __device__ __forceinline__ void count_stored_tile() {
    const DoneFlags& done = params_.done;
    const int chunk = smem_.stored_chunk[warpgroup_];
    if (chunk < 0) return;
    smem_.stored_chunk[warpgroup_] = -1;
    const int blocks = min(done.blocks_per_chunk, params_.mask.num_key_blocks - chunk * done.blocks_per_chunk);
    ptx::fence_async();
    const int before = ptx::add_acquire_release(done.stored + chunk, 1);
    if (before + 1 == kBwdWarpgroups * blocks * params_.batch * params_.kv_heads) {
      ptx::store_release_system(done.epochs + chunk, done.epoch);
    }
  }

  __device__ __forceinline__ void sync_consumers() {
    ptx::barrier_sync(static_cast<int>(BwdNamedBarrier::kConsumers), 128 * kBwdWarpgroups);
  }

  // One arrival a warp. The warp's own reads are over: products were waited for, lanes are together.
  __device__ __forceinline__ void release(tile::Barrier& barrier) {
    if (thread_ % 32 == 0) barrier.arrive();
  }

  template <typename T, int kCount>
  __device__ __forceinline__ void clear(T (&values)[kCount]) {
#pragma unroll
    for (T& value : values) value = 0;
  }

  const BwdParams& params_;
  BwdSmem<kConfig>& smem_;
  const int warpgroup_;
  const int thread_;
  uint32_t marks_ = 0, flags_ = 0;         // of the row block in the current stage of q
  tile::Cursor<kConfig.q_stages> q_;       // of that block
  tile::Cursor<kConfig.do_stages> d_out_;  // of that block; its dS lies in the stage of ds with the same number
  uint32_t num_dq_ = 0;                    // blocks handed to the writers
  int key_start_ = 0;                      // first key of the tile
  float scores_[kBwdRows / 2];
  float dp_[kBwdRows / 2];
  uint32_t probabilities_[kBwdRows / 4];
  uint32_t ds_[kBwdRows / 4];
  float dk_[kDim / 2];
  float dv_[kDim / 2];
};

}  // namespace fm3::attention
