// Role 4, two threads that take turns: add the staged dQ of a block to the sums in global memory, in order if asked.
// In order the first addition is a store: nothing need be there before.
#pragma once

#include "attention/bwd_dq.cuh"
#include "attention/bwd_params.h"
#include "attention/bwd_smem.cuh"
#include "ptx/bulk_copy.cuh"
#include "ptx/reduce.cuh"

namespace fm3::attention {

template <BwdConfig kConfig>
class DqWriter {
 public:
  __device__ DqWriter(const BwdParams& params, BwdSmem<kConfig>& smem, int writer)
      : params_(params), smem_(smem), writer_(writer) {}

  __device__ void run() {
    constexpr int kFloats = DqOrder<kConfig.head_dim>::kBlockFloats;
    for (int n = writer_;; n += kDqWriters) {
      smem_.barriers.dq_full[writer_].wait(n / kDqWriters % 2);
      const int block = smem_.dq_targets[n % kDqRing].block;
      if (block == DqTarget::kStop) return;
      const int turn = smem_.dq_targets[n % kDqRing].turn;
      float* sums = params_.dq_sums + static_cast<int64_t>(block) * kFloats;
      if (params_.turns != nullptr && turn == 0) {
        ptx::store_bytes(sums, ptx::shared_address(smem_.dq), 4 * kFloats);
      } else {
        if (params_.turns != nullptr) await_turn(block, turn);
        ptx::reduce_add_bytes(sums, ptx::shared_address(smem_.dq), 4 * kFloats);
      }
      ptx::commit_bulk();
      ptx::wait_bulk_read<0>();
      smem_.barriers.dq_empty[writer_].arrive();
      if (params_.turns != nullptr) pass_turn(block);
    }
  }

 private:
  // Until the key blocks before this one in the order have added theirs.
  __device__ void await_turn(int block, int turn) {
    while (ptx::load_acquire(params_.turns + block) != turn) {
    }
    ptx::fence_async();
  }

  // Lets the next key block add, once what was sent is there.
  __device__ void pass_turn(int block) {
    ptx::wait_bulk<0>();
    ptx::fence_async();
    ptx::add_release(params_.turns + block, 1);
  }

  const BwdParams& params_;
  BwdSmem<kConfig>& smem_;
  const int writer_;
};

}  // namespace fm3::attention
