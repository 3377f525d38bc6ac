// Role 3, two or three warpgroups of 64 rows each: scores, mask, softmax, output.
//
// A warpgroup works on one stream of blocks, across tiles: while the products of one block run, the softmax of the
// block before is computed, and the first scores of a tile are under way before the output of the tile before is
// finished.
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
    entry_ = read_entry(blocks_);
    while (!entry_.stops()) {
      if (entry_.is_first()) {
        open_tile();
        clear_output();
      }
      if (sees_block()) {
        start_run();
        do {
          while (is_plain()) continue_plainly();
        } while (continue_run());
        finish_run();
      } else {
        skip_block();
      }
    }
    finish_store();
  }

 private:
  static constexpr int kDim = kConfig.head_dim;
  static constexpr int kScoreSteps = kDim / 16;
  static constexpr int kOutputSteps = kBlockKeys / 16;
  static constexpr ptx::Element kElement = kConfig.dtype == Dtype::kBf16 ? ptx::Element::kBf16 : ptx::Element::kFp16;
  using ScoreProduct = ptx::Wgmma<kElement, kBlockKeys>;
  using OutputProduct = ptx::Wgmma<kElement, kDim>;
  using Stages = tile::Cursor<kConfig.stages>;

  // --- A run: blocks that this warpgroup sees, one behind the other. Between its steps the products P V of the pending
  // --- block are still to come: the one in the stage before, entry_ being the block after it.

  // Scores and softmax of a run's first block.
  __device__ __forceinline__ void start_run() {
    take_turn();
    issue_scores();
    pass_turn();
    ptx::warpgroup_wait<0>();
    ptx::pin(scores_);
    finish_scores();
    softmax_.rescale(output_);
    finish_probabilities();
    next_block(peek_block());
  }

  // A block in the middle of a tile that no span cuts: most of a long sequence.
  __device__ __forceinline__ bool is_plain() const {
    return !entry_.is_first() && sees_block() && (flags() & kCutFlags) == 0;
  }

  __device__ __forceinline__ void continue_plainly() {
    take_turn();
    issue_scores();
    issue_output();
    pass_turn();
    ptx::warpgroup_wait<1>();
    ptx::pin(scores_);
    release(smem_.barriers.k_empty[blocks_.stage]);
    softmax_.first_half(scores_, params_.scale_log2, exponentials_);
    finish_output();
    const BlockEntry next = peek_block();
    softmax_.rescale(output_);
    finish_probabilities();
    finish_store();
    next_block(next);
  }

  // P V of the pending block beside the scores of this one; false where the run ends before this one.
  __device__ __forceinline__ bool continue_run() {
    if (!sees_block()) return false;
    const bool opens = entry_.is_first();
    const Tile finished = tile_;
    const OnlineSoftmax finished_softmax = softmax_;
    const int finished_stage = rows_.stage;
    if (opens) open_tile();
    take_turn();
    issue_scores();
    issue_output();
    pass_turn();
    ptx::warpgroup_wait<1>();
    ptx::pin(scores_);
    finish_scores();
    finish_output();
    const BlockEntry next = peek_block();
    if (opens) [[unlikely]] {
      store_output(finished, finished_softmax, finished_stage);
      clear_output();
    } else {
      softmax_.rescale(output_);
      finish_store();
    }
    finish_probabilities();
    next_block(next);
    return true;
  }

  // P V of the pending block alone.
  __device__ __forceinline__ void finish_run() {
    issue_output();
    finish_output();
    if (pending_is_last_) store_output(tile_, softmax_, rows_.stage);
  }

  // Moves on; the block just dealt with becomes the pending one.
  __device__ __forceinline__ void next_block(const BlockEntry& next) {
    pending_is_last_ = entry_.is_last();
    blocks_.advance();
    entry_ = next;
    if (pending_is_last_) finish_store();  // the next tile's rows may be waiting for that room
  }

  // Hands a block on unread, in the order of the list.
  __device__ __forceinline__ void skip_block() {
    finish_store();  // the rows of the next tile, and these values behind them, may be waiting for that room
    take_turn();
    pass_turn();
    release(smem_.barriers.k_empty[blocks_.stage]);
    smem_.barriers.v_full[blocks_.stage].wait(blocks_.parity);
    release(smem_.barriers.v_empty[blocks_.stage]);
    if (entry_.is_last()) store_output(tile_, softmax_, rows_.stage);
    next_block(peek_block());
  }

  // The block behind the current one, once its keys are there. Nothing is waiting for this warpgroup meanwhile: keys
  // are loaded before the rows of a new tile, and K of the block before the current one is free.
  __device__ __forceinline__ BlockEntry peek_block() {
    Stages next = blocks_;
    next.advance();
    return read_entry(next);
  }

  __device__ __forceinline__ BlockEntry read_entry(const Stages& stages) {
    smem_.barriers.k_full[stages.stage].wait(stages.parity);
    return smem_.entries[stages.stage];
  }

  __device__ __forceinline__ uint32_t flags() const { return entry_.flags >> (kFlagBits * warpgroup_); }
  __device__ __forceinline__ bool sees_block() const { return (flags() & kVisibleFlags) != 0; }

  __device__ __forceinline__ void open_tile() {
    rows_.advance();
    smem_.barriers.q_full[rows_.stage].wait(rows_.parity);
    tile_ = smem_.tiles[rows_.stage];
    position_.row = row_start(tile_) + tile::fragment_row(thread_);
    softmax_ = OnlineSoftmax{};
  }

  __device__ __forceinline__ int row_start(const Tile& tile) const {
    return tile.row_block * kConfig.block_rows() + 64 * warpgroup_;
  }

  // S = Q K^T of the block in the current stage.
  __device__ __forceinline__ void issue_scores() {
    const ptx::Operand q = tile::k_major(ptx::shared_address(smem_.q[rows_.stage][warpgroup_]));
    const ptx::Operand k = tile::k_major(ptx::shared_address(smem_.k[blocks_.stage]));
    ptx::pin(scores_);
    ptx::warpgroup_arrive();
    ScoreProduct::template product_ss<false>(scores_, q, k);
#pragma unroll
    for (int step = 1; step < kScoreSteps; ++step) {
      ScoreProduct::template product_ss<true>(scores_, q + tile::k_major_step(step, 64),
                                              k + tile::k_major_step(step, kBlockKeys));
    }
    ptx::warpgroup_commit();
  }

  // Scores to the first half of the exponentials; K and its columns fall free.
  __device__ __forceinline__ void finish_scores() {
    const uint32_t cuts = flags() & kCutFlags;
    if (cuts != 0) [[unlikely]] {
      apply_mask(scores_, cuts, smem_.columns[blocks_.stage], entry_.key_block() * kBlockKeys, position_);
      __syncwarp();
    }
    release(smem_.barriers.k_empty[blocks_.stage]);
    softmax_.first_half(scores_, params_.scale_log2, exponentials_);
  }

  // The rest; no product may be reading P any more.
  __device__ __forceinline__ void finish_probabilities() {
    softmax_.template second_half<kElement>(scores_, params_.scale_log2, exponentials_, probabilities_, output_);
  }

  // O += P V of the pending block.
  __device__ __forceinline__ void issue_output() {
    const Stages pending = blocks_.previous();
    smem_.barriers.v_full[pending.stage].wait(pending.parity);
    const ptx::Operand v = tile::mn_major(ptx::shared_address(smem_.v[pending.stage]), kBlockKeys);
    ptx::pin(output_);
    ptx::pin(probabilities_);
    ptx::warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kOutputSteps; ++step) {
      OutputProduct::product_rs(output_, probabilities_ + 4 * step, v + tile::mn_major_step(step));
    }
    ptx::warpgroup_commit();
  }

  __device__ __forceinline__ void finish_output() {
    ptx::warpgroup_wait<0>();
    ptx::pin(output_);
    ptx::pin(probabilities_);
    release(smem_.barriers.v_empty[blocks_.previous().stage]);
  }

  __device__ __forceinline__ void clear_output() {
#pragma unroll
    for (float& value : output_) value = 0.f;
  }

  // O / sum to global memory by way of the tile's rows of Q; LSE beside it.
  __device__ __forceinline__ void store_output(const Tile& tile, const OnlineSoftmax& softmax, int stage) {
    finish_store();
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = tile::row_sum(softmax.sum[h]);
      inverse[h] = sum > 0.f ? 1.f / sum : 0.f;
      const int row = row_start(tile) + tile::fragment_row(thread_) + 8 * h;
      if (thread_ % 4 == 0 && row < params_.num_rows) {
        constexpr float kLn2 = 0.6931471805599453f;
        const float lse = sum > 0.f ? (softmax.max[h] * params_.scale_log2 + ptx::log2(sum)) * kLn2 : kHidden;
        const int64_t head = static_cast<int64_t>(tile.batch) * params_.query_heads + tile.head;
        params_.lse[head * params_.num_rows + row] = lse;
      }
    }
    sync_output();  // every warp is done with these rows of Q
    storing_ = true;
    storing_stage_ = stage;
    if constexpr (kConfig.float_output) return store_float(tile, inverse);
    const uint32_t staged = ptx::shared_address(smem_.q[stage][warpgroup_]);
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
    if (thread_ == 0 && row_start(tile) < params_.num_rows) {
      ptx::store_tensor_5d(&params_.out, staged, 0, row_start(tile), 0, tile.head, tile.batch);
      ptx::commit_bulk();
    }
  }

  // O / sum in float32, straight from registers.
  __device__ __forceinline__ void store_float(const Tile& tile, const float (&inverse)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = row_start(tile) + tile::fragment_row(thread_) + 8 * h;
      if (row >= params_.num_rows) continue;
      const int64_t token = static_cast<int64_t>(tile.batch) * params_.num_rows + row;
      float* out =
          params_.out_float + (token * params_.query_heads + tile.head) * kDim + tile::fragment_column(thread_);
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i) {
        const float* o = output_ + 4 * i + 2 * h;
        *reinterpret_cast<float2*>(out + 8 * i) = make_float2(o[0] * inverse[h], o[1] * inverse[h]);
      }
    }
  }

  // Hands the room of a stored output back.
  __device__ __forceinline__ void finish_store() {
    if (!storing_) return;
    storing_ = false;
    if (thread_ != 0) return;
    ptx::wait_bulk_read<0>();
    smem_.barriers.q_empty[storing_stage_].arrive();
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
  ScorePosition position_{};
  BlockEntry entry_{};                                // the block in the current stage
  Tile tile_{};                                       // the tile whose scores are computed
  OnlineSoftmax softmax_;                             // of its rows
  Stages blocks_;                                     // of entry_
  bool pending_is_last_ = false;                      // of its tile
  bool storing_ = false;                              // an output may still be leaving
  int storing_stage_ = 0;                             // from here
  tile::Cursor<kRowStages> rows_{kRowStages - 1, 1};  // of tile_; advanced when a tile opens
  float scores_[kBlockKeys / 2];
  float exponentials_[kBlockKeys / 4];      // the first half of P, not yet packed
  uint32_t probabilities_[kBlockKeys / 4];  // P of the pending block, which products may be reading
  float output_[kDim / 2];
};

}  // namespace fm3::attention
