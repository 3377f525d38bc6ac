// Role 4, two threads that take turns: bring the staged dQ of a block to the sums in global memory. The first key block
// of a row block stores it there, so that nothing need be there before; the others add theirs one after the other, in
// the order in which tiles are taken, so that the sums have the same bits each time.
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
    for (uint32_t n = writer_;; n += kDqWriters) {
      const DqTarget target = smem_.dq_places[n % kDqRing].await(n);
      if (target.block == DqTarget::kStop) return;
      await_turn(target);  // mostly before the block is done
      smem_.barriers.dq_full[writer_].wait(n / kDqWriters % 2);
      float* sums = params_.dq_sums + static_cast<int64_t>(target.block) * kFloats;
      if (target.turn == 0) {
        ptx::store_bytes(sums, ptx::shared_address(smem_.dq), 4 * kFloats);
      } else {
        ptx::reduce_add_bytes(sums, ptx::shared_address(smem_.dq), 4 * kFloats);
      }
      ptx::commit_bulk();
      ptx::wait_bulk_read<0>();
      smem_.barriers.dq_empty[writer_].arrive();
      pass_turn(target.block);
    }
  }

 private:
  // Until the key blocks before this one in the order have added theirs.
  __device__ void await_turn(const DqTarget& target) {
    while (ptx::load_acquire(params_.turns + target.block) != target.turn) {
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
