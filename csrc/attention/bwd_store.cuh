// The end of a tile: dK and dV of a warpgroup's keys to global memory, and word of them to whoever waits for chunks.
#pragma once

#include "attention/bwd_params.h"
#include "attention/bwd_smem.cuh"
#include "ptx/bulk_copy.cuh"
#include "ptx/math.cuh"
#include "ptx/reduce.cuh"
#include "ptx/sync.cuh"
#include "tile/descriptor.cuh"
#include "tile/fragment.cuh"

namespace fm3::attention {

// Thread and warpgroup are read anew where they are needed, so that no register holds them throughout a tile.
template <BwdConfig kConfig>
class KeyGradientStore {
 public:
  __device__ KeyGradientStore(const BwdParams& params, BwdSmem<kConfig>& smem) : params_(params), smem_(smem) {}

  // By way of the warpgroup's rooms of dQ and dS, which must be free; in float32 straight from registers.
  __device__ __forceinline__ void store(const float (&dk)[kConfig.head_dim / 2],
                                        const float (&dv)[kConfig.head_dim / 2], const KeyTile& tile) {
    const int thread = ptx::thread_index() % 128;
    const int warpgroup = ptx::thread_index() / 128 - 1;
    if (params_.dk_float != nullptr) {
      write_keys(dv, 1.f, params_.dv_float, tile, thread, warpgroup);
      write_keys(dk, params_.scale, params_.dk_float, tile, thread, warpgroup);
      if (params_.done.epochs != nullptr) {
        ptx::barrier_sync(static_cast<int>(BwdNamedBarrier::kOutput) + warpgroup, 128);
        if (thread == 0) smem_.stored_chunk[warpgroup] = tile.key_block / params_.done.blocks_per_chunk;
      }
      return;
    }
    stage_keys(dv, 1.f, smem_.ds[warpgroup], thread);
    stage_keys(dk, params_.scale, smem_.dq[warpgroup], thread);
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

  // Until the tile stored last has left shared memory; where others wait for chunks, until it is in place, and says so.
  __device__ __forceinline__ void finish() {
    if (ptx::thread_index() % 128 != 0) return;
    if (params_.done.epochs == nullptr) return ptx::wait_bulk_read<0>();
    ptx::wait_bulk<0>();
    count_stored_tile();
  }

 private:
  static constexpr int kDim = kConfig.head_dim;
  static constexpr ptx::Element kElement = kConfig.dtype == Dtype::kBf16 ? ptx::Element::kBf16 : ptx::Element::kFp16;

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

  // result: [batch, keys, kv heads, head_dim].
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

  // Counts this warpgroup's part of the tile stored last, if there is one that was not; the last of a chunk sets its
  // epoch.
  __device__ __forceinline__ void count_stored_tile() {
    const DoneFlags& done = params_.done;
    const int warpgroup = ptx::thread_index() / 128 - 1;
    const int chunk = smem_.stored_chunk[warpgroup];
    if (chunk < 0) return;
    smem_.stored_chunk[warpgroup] = -1;
    const int blocks = min(done.blocks_per_chunk, params_.mask.num_key_blocks - chunk * done.blocks_per_chunk);
    ptx::fence_async();
    const int before = ptx::add_acquire_release(done.stored + chunk, 1);
    if (before + 1 == kBwdWarpgroups * blocks * params_.batch * params_.kv_heads) {
      ptx::store_release_system(done.epochs + chunk, done.epoch);
    }
  }

  const BwdParams& params_;
  BwdSmem<kConfig>& smem_;
};

}  // namespace fm3::attention
