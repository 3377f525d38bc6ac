// Role 3, two or three warpgroups of 64 rows each: scores, mask, softmax, output.
#pragma once

#include "attention/fwd_params.h"
#include "attention/fwd_smem.cuh"
#include "attention/mask.cuh"
#include "attention/softmax.cuh"
#include "ptx/bulk_copy.cuh"
#include "ptx/sync.cuh"
#include "ptx/wgmma.cuh"
#include "tile/descriptor.cuh"
#include "tile/fragment.cuh"

namespace fm3::attention {

template <FwdConfig kConfig>
class Consumer {
 public:
  __device__ Consumer(const FwdParams& params, FwdSmem<kConfig>& smem, int warpgroup)
      : params_(params), smem_(smem), warpgroup_(warpgroup), thread_(threadIdx.x % 128) {
    position_.column = tile::fragment_column(thread_);
    position_.diagonal = params.mask.num_keys - params.mask.num_rows;
  }

  __device__ void run() {
    if constexpr (kConfig.ping_pong) {
      if (warpgroup_ == kConfig.consumer_warpgroups - 1) pass_turn();
    }
    for (;; rows_.advance()) {
      smem_.barriers.q_full.wait(rows_.parity);
      const Tile tile = smem_.tile;
      if (tile.state == TileState::kStop) break;
      row_start_ = tile.row_block * kConfig.block_rows() + 64 * warpgroup_;
      position_.row = row_start_ + tile::fragment_row(thread_);
      softmax_ = OnlineSoftmax{};
#pragma unroll
      for (float& value : output_) value = 0.f;
      if (tile.state == TileState::kBlocks) {
        visit_blocks();
      } else {
        release(smem_.barriers.q_empty);
      }
      store_output(tile);
    }
    if (thread_ == 0) ptx::wait_bulk_read<0>();
  }

 private:
  static constexpr int kDim = kConfig.head_dim;
  static constexpr int kScoreSteps = kDim / 16;
  static constexpr int kOutputSteps = kBlockKeys / 16;
  static constexpr ptx::Element kElement =
      kConfig.dtype == Dtype::kBf16 ? ptx::Element::kBf16 : ptx::Element::kFp16;
  using ScoreProduct = ptx::Wgmma<kElement, kBlockKeys>;
  using OutputProduct = ptx::Wgmma<kElement, kDim>;

  // Runs of blocks that this warpgroup sees are overlapped; a block that only others see ends a run.
  __device__ __forceinline__ void visit_blocks() {
    bool more = true;
    while (more) {
      take_block();
      if (!sees_block()) {
        more = !entry_.is_last();
        skip_block();
        continue;
      }
      take_turn();
      issue_scores();
      pass_turn();
      ptx::warpgroup_wait<0>();
      ptx::pin(scores_);
      finish_scores();
      softmax_.rescale(output_);
      pack_probabilities();
      bool skips = false;
      while (!entry_.is_last()) {
        const int pending = blocks_.stage;
        const uint32_t pending_parity = blocks_.parity;
        blocks_.advance();
        take_block();
        if (!sees_block()) {
          skips = true;
          smem_.barriers.v_full[pending].wait(pending_parity);
          ptx::warpgroup_arrive();
          issue_output(pending);
          ptx::warpgroup_wait<0>();
          ptx::pin(output_);
          release(smem_.barriers.v_empty[pending]);
          break;
        }
        take_turn();
        issue_scores();
        smem_.barriers.v_full[pending].wait(pending_parity);
        issue_output(pending);
        pass_turn();
        ptx::warpgroup_wait<1>();
        ptx::pin(scores_);
        finish_scores();
        ptx::warpgroup_wait<0>();
        ptx::pin(output_);
        ptx::pin(probabilities_);
        release(smem_.barriers.v_empty[pending]);
        softmax_.rescale(output_);
        pack_probabilities();
      }
      if (skips) {
        more = !entry_.is_last();
        skip_block();
        continue;
      }
      smem_.barriers.v_full[blocks_.stage].wait(blocks_.parity);
      ptx::warpgroup_arrive();
      issue_output(blocks_.stage);
      ptx::warpgroup_wait<0>();
      ptx::pin(output_);
      release(smem_.barriers.v_empty[blocks_.stage]);
      blocks_.advance();
      more = false;
    }
  }

  __device__ __forceinline__ void take_block() {
    smem_.barriers.k_full[blocks_.stage].wait(blocks_.parity);
    entry_ = smem_.entries[blocks_.stage];
  }

  __device__ __forceinline__ uint32_t flags() const { return entry_.flags >> (kFlagBits * warpgroup_); }
  __device__ __forceinline__ bool sees_block() const { return (flags() & kVisibleFlags) != 0; }

  // Hands a block on unread, in the order of the list.
  __device__ __forceinline__ void skip_block() {
    take_turn();
    pass_turn();
    release(smem_.barriers.k_empty[blocks_.stage]);
    if (entry_.is_last()) release(smem_.barriers.q_empty);
    smem_.barriers.v_full[blocks_.stage].wait(blocks_.parity);
    release(smem_.barriers.v_empty[blocks_.stage]);
    blocks_.advance();
  }

  // S = Q K^T of the block in the current stage.
  __device__ __forceinline__ void issue_scores() {
    const uint64_t q = tile::k_major(ptx::shared_address(smem_.q) + warpgroup_ * 64 * tile::kPanelRowBytes);
    const uint64_t k = tile::k_major(ptx::shared_address(smem_.k[blocks_.stage]));
    ptx::pin(scores_);
    ptx::warpgroup_arrive();
    ScoreProduct::template product_ss<false>(scores_, q, k);
#pragma unroll
    for (int step = 1; step < kScoreSteps; ++step) {
      ScoreProduct::template product_ss<true>(scores_, q + tile::k_major_step(step, kConfig.block_rows()),
                                              k + tile::k_major_step(step, kBlockKeys));
    }
    ptx::warpgroup_commit();
  }

  // O += P V of the block in `stage`.
  __device__ __forceinline__ void issue_output(int stage) {
    const uint64_t v = tile::mn_major(ptx::shared_address(smem_.v[stage]), kBlockKeys);
    ptx::pin(output_);
    ptx::pin(probabilities_);
    ptx::warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kOutputSteps; ++step) {
      OutputProduct::product_rs(output_, probabilities_ + 4 * step, v + tile::mn_major_step(step));
    }
    ptx::warpgroup_commit();
  }

  // Scores to exponentials; K, its columns and, behind the last block, Q fall free.
  __device__ __forceinline__ void finish_scores() {
    const uint32_t cuts = flags() & kCutFlags;
    if (cuts != 0) {
      apply_mask(scores_, cuts, smem_.columns[blocks_.stage], entry_.key_block() * kBlockKeys, position_);
      __syncwarp();
    }
    release(smem_.barriers.k_empty[blocks_.stage]);
    if (entry_.is_last()) release(smem_.barriers.q_empty);
    softmax_.update(scores_, params_.scale_log2);
  }

  __device__ __forceinline__ void pack_probabilities() {
#pragma unroll
    for (int i = 0; i < kBlockKeys / 4; ++i) {
      probabilities_[i] = tile::pack<kElement>(scores_[2 * i], scores_[2 * i + 1]);
    }
  }

  // O / sum to global memory through the staging area; LSE beside it.
  __device__ __forceinline__ void store_output(const Tile& tile) {
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = tile::row_sum(softmax_.sum[h]);
      inverse[h] = sum > 0.f ? 1.f / sum : 0.f;
      const int row = position_.row + 8 * h;
      if (thread_ % 4 == 0 && row < params_.num_rows) {
        constexpr float kLn2 = 0.6931471805599453f;
        const float lse = sum > 0.f ? (softmax_.max[h] * params_.scale_log2 + ptx::log2(sum)) * kLn2 : kHidden;
        const int64_t head = static_cast<int64_t>(tile.batch) * params_.query_heads + tile.head;
        params_.lse[head * params_.num_rows + row] = lse;
      }
    }
    const uint32_t staged = ptx::shared_address(smem_.out) + warpgroup_ * (64 * kDim * 2);
    if (thread_ == 0) ptx::wait_bulk_read<0>();
    sync_output();
    const int lane = thread_ % 32;
    const int row = 16 * (thread_ / 32) + lane % 16;
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      const int word = 2 * i + lane / 16;
      const float* o = output_ + 8 * i;
      ptx::store_matrix_x4(staged + (word / 8) * (64 * tile::kPanelRowBytes) + tile::swizzled_offset(row, word % 8),
                           tile::pack<kElement>(o[0] * inverse[0], o[1] * inverse[0]),
                           tile::pack<kElement>(o[2] * inverse[1], o[3] * inverse[1]),
                           tile::pack<kElement>(o[4] * inverse[0], o[5] * inverse[0]),
                           tile::pack<kElement>(o[6] * inverse[1], o[7] * inverse[1]));
    }
    ptx::fence_async_shared();
    sync_output();
    if (thread_ == 0 && row_start_ < params_.num_rows) {
      ptx::store_tensor_5d(&params_.out, staged, 0, row_start_, 0, tile.head, tile.batch);
      ptx::commit_bulk();
    }
  }

  __device__ __forceinline__ void sync_output() {
    ptx::barrier_sync(static_cast<int>(NamedBarrier::kOutput) + warpgroup_, 128);
  }

  // One arrival a warp. The warp's own reads are over: products were waited for, lanes are together.
  __device__ __forceinline__ void release(tile::Barrier& barrier) {
    if (thread_ % 32 == 0) barrier.arrive();
  }

  // Between take_turn and pass_turn only one warpgroup issues products; every list entry passes the turn once.
  __device__ __forceinline__ void take_turn() {
    if constexpr (kConfig.ping_pong) ptx::barrier_sync(static_cast<int>(NamedBarrier::kTurn) + warpgroup_, 256);
  }
  __device__ __forceinline__ void pass_turn() {
    if constexpr (kConfig.ping_pong) {
      const int next = warpgroup_ + 1 == kConfig.consumer_warpgroups ? 0 : warpgroup_ + 1;
      ptx::barrier_arrive(static_cast<int>(NamedBarrier::kTurn) + next, 256);
    }
  }

  const FwdParams& params_;
  FwdSmem<kConfig>& smem_;
  const int warpgroup_;
  const int thread_;
  int row_start_ = 0;
  ScorePosition position_{};
  BlockEntry entry_{};
  OnlineSoftmax softmax_;
  tile::Cursor<1> rows_;
  tile::Cursor<kConfig.stages> blocks_;
  float scores_[kBlockKeys / 2];
  uint32_t probabilities_[kBlockKeys / 4];
  float output_[kDim / 2];
};

}  // namespace fm3::attention
