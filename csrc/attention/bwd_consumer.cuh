// Role 3, two warpgroups of 64 keys each: transposed scores, their gradient, and the three products that use it.
//
// A warpgroup's stretch of visible row blocks is a pipeline. While exponentials are taken the products for dP run,
// while dS is formed those for dV run, while both warpgroups meet those for dK run, and while dQ leaves those for the
// next block's scores and dP run.
#pragma once

#include "attention/bwd_dq.cuh"
#include "attention/bwd_mask.cuh"
#include "attention/bwd_params.h"
#include "attention/bwd_smem.cuh"
#include "attention/bwd_store.cuh"
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
      : params_(params), smem_(smem), store_(params, smem), warpgroup_(warpgroup), thread_(threadIdx.x % 128) {}

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
    store_.finish();
  }

 private:
  static constexpr int kDim = kConfig.head_dim;
  // Products of few columns wait for their operands: where registers suffice, K and V are read once a tile.
  static constexpr bool kHoldsKeys = kDim == 64;
  static constexpr int kHeldRegisters = kHoldsKeys ? kDim / 4 : 1;
  static constexpr int kDqColumns = kDim / 2;  // of one warpgroup
  static constexpr ptx::Element kElement = kConfig.dtype == Dtype::kBf16 ? ptx::Element::kBf16 : ptx::Element::kFp16;
  using ScoreProduct = ptx::SharedProduct<kElement, kBwdRows, ptx::Major::kSummed>;
  using HeldProduct = ptx::HeldProduct<kElement, kBwdRows>;
  using DqProduct = ptx::SharedProduct<kElement, kDqColumns, ptx::Major::kOuter>;
  using KeyProduct = ptx::Wgmma<kElement, kDim>;
  using Order = DqOrder<kDim>;
  static_assert(kConfig.do_stages % 2 == 0, "dS alternates with dO");

  // A run: row blocks of one tile that this warpgroup sees, one behind the other. At the head of the loop the scores
  // and dP of the current block are under way. Returns whether the tile goes on.
  //
  // While products run shared memory answers late: what comes from there is asked for a step ahead, and all waiting for
  // other roles is done beside the products of dK, dQ and the next scores.
  __device__ __forceinline__ bool run_blocks() {
    issue_scores();
    issue_dp();
    for (;;) {
      Terms terms;
      read_terms<0, 2>(terms, 0);
      ptx::warpgroup_wait<1>();  // the scores
      ptx::pin(scores_);
      finish_scores(terms);
      read_terms<0, 4>(terms, 1);
      issue_dv();
      ptx::warpgroup_wait<1>();  // dP
      ptx::pin(dp_);
      form_ds(terms);
      issue_dk();
      const bool sees_other = sees_half(1 - warpgroup_), last = is_last();
      const int rows = q_.stage;
      if (!last) {
        q_.advance();
        take_block();
      }
      ptx::fence_async_shared();
      sync_consumers();
      issue_dq(sees_other);
      ptx::warpgroup_wait<2>();  // dV
      ptx::pin(probabilities_);
      release(smem_.barriers.do_empty[d_out_.stage]);
      if (last) {
        end_run();
        return false;
      }
      if (!sees_block()) {
        end_run();
        release(smem_.barriers.q_empty[rows]);
        return true;
      }
      issue_scores();
      await_dq_room();
      ptx::warpgroup_wait<1>();  // dK and dQ
      pin_dq();
      ptx::pin(ds_);
      d_out_.advance();
      release(smem_.barriers.q_empty[rows]);
      stage_dq();
      issue_dp();
      hand_over_dq();
    }
  }

  // The last block of a run leaves nothing under way.
  __device__ __forceinline__ void end_run() {
    await_dq_room();
    finish_products();
    pin_dq();
    d_out_.advance();
    send_dq();
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
    store_.finish();
    sync_consumers();  // dS and dQ may be written again
    key_start_ = smem_.tiles[q_.stage].key_block * kBlockKeys;
    const uint32_t parity = (marks_ & RowEntry::kOddKeys) != 0;
    smem_.barriers.k_full.wait(parity);
    smem_.barriers.v_full.wait(parity);
    if constexpr (kHoldsKeys) {
      hold(keys_, smem_.k);
      hold(values_, smem_.v);
    }
  }

  // This warpgroup's rows of K or V, as the operand in registers of the products that all row blocks share.
  __device__ __forceinline__ void hold(uint32_t (&operand)[kHeldRegisters], const uint8_t* rows) const {
    const uint32_t lane = thread_ % 32;
    const uint32_t row = kHalfKeys * warpgroup_ + 16 * (thread_ / 32) + lane % 16;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const uint32_t at = ptx::shared_address(rows) + tile::swizzled_offset(row, 2 * step + lane / 16);
      ptx::load_matrix_x4(operand + 4 * step, at);
    }
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
  __device__ __forceinline__ void issue_scores() { issue_rows_product(scores_, smem_.k, keys_, smem_.q[q_.stage]); }

  // dP^T = V dO^T.
  __device__ __forceinline__ void issue_dp() {
    smem_.barriers.do_full[d_out_.stage].wait(d_out_.parity);
    issue_rows_product(dp_, smem_.v, values_, smem_.d_out[d_out_.stage]);
  }

  __device__ __forceinline__ void issue_rows_product(float (&result)[kBwdRows / 2], const uint8_t* keys,
                                                     uint32_t (&held)[kHeldRegisters], const uint8_t* rows) {
    const ptx::Operand b = tile::k_major(ptx::shared_address(rows));
    if constexpr (kHoldsKeys) {
      ptx::pin(held);
      ptx::warpgroup_arrive();
      HeldProduct::overwrite(result, held, b);
#pragma unroll
      for (int step = 1; step < kDim / 16; ++step) {
        HeldProduct::accumulate(result, held + 4 * step, b + tile::k_major_step(step, kBwdRows));
      }
    } else {
      const ptx::Operand a = tile::k_major(ptx::shared_address(keys) + warpgroup_ * (kHalfKeys * tile::kPanelRowBytes));
      ptx::warpgroup_arrive();
      ScoreProduct::overwrite(result, a, b);
#pragma unroll
      for (int step = 1; step < kDim / 16; ++step) {
        ScoreProduct::accumulate(result, a + tile::k_major_step(step, kBlockKeys),
                                 b + tile::k_major_step(step, kBwdRows));
      }
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
    const uint32_t staged = ptx::shared_address(smem_.ds[d_out_.stage % 2]);
#pragma unroll
    for (int i = 0; i < kBwdRows / 16; ++i) {
      ptx::store_matrix_x4(staged + tile::swizzled_offset(key, 2 * i + lane / 16), ds_[4 * i], ds_[4 * i + 1],
                           ds_[4 * i + 2], ds_[4 * i + 3]);
    }
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
    const ptx::Operand a = tile::mn_major(ptx::shared_address(smem_.ds[d_out_.stage % 2]) + half_bytes, kBlockKeys);
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
    stage_dq();
    hand_over_dq();
  }
  __device__ __forceinline__ void stage_dq() {
    const uint32_t thread = ptx::thread_index() - 128;
    const uint32_t staged = ptx::shared_address(smem_.dq) + thread / 32 * (Order::kWarpFloats * 4) + thread % 32 * 16;
#pragma unroll
    for (int j = 0; j < Order::kGroups; ++j) {
      ptx::store_shared_x4(staged + 512 * j, dp_[4 * j], dp_[4 * j + 1], dp_[4 * j + 2], dp_[4 * j + 3]);
    }
  }
  __device__ __forceinline__ void hand_over_dq() {
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

  // --- The end of a tile.

  // dK and dV leave by way of the room of dQ and dS.
  __device__ __forceinline__ void store_tile(const KeyTile& tile) {
    store_.finish();
    await_dq_room();
    sync_consumers();  // dS is read
    store_.store(dk_, dv_, tile);
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
  KeyGradientStore<kConfig> store_;
  const int warpgroup_;
  const int thread_;
  uint32_t marks_ = 0, flags_ = 0;         // of the row block in the current stage of q
  tile::Cursor<kConfig.q_stages> q_;       // of that block
  tile::Cursor<kConfig.do_stages> d_out_;  // of the block that is worked on; its dS lies in ds[stage % 2]
  uint32_t num_dq_ = 0;                    // blocks handed to the writers
  int key_start_ = 0;                      // first key of the tile
  float scores_[kBwdRows / 2];
  float dp_[kBwdRows / 2];
  uint32_t probabilities_[kBwdRows / 4];
  uint32_t ds_[kBwdRows / 4];
  uint32_t keys_[kHeldRegisters];
  uint32_t values_[kHeldRegisters];
  float dk_[kDim / 2];
  float dv_[kDim / 2];
};

}  // namespace fm3::attention
