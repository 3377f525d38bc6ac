// Role 4, one thread for each consumer warpgroup: adds its staged dQ to the sums in global memory, in turn if asked.
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
  __device__ DqWriter(const BwdParams& params, BwdSmem<kConfig>& smem, int warpgroup)
      : params_(params), smem_(smem), warpgroup_(warpgroup) {}

  __device__ void run() {
    constexpr int kFloats = BwdSmem<kConfig>::kHalfDqBytes / 4;
    for (uint32_t parity = 0;; parity ^= 1) {
      smem_.barriers.dq_full[warpgroup_].wait(parity);
      const int part = 2 * smem_.staged_dq[warpgroup_].block + warpgroup_;
      if (part < 0) return;
      if (params_.turns != nullptr) await_turn(part);
      ptx::reduce_add_bytes(params_.dq_sums + static_cast<int64_t>(part) * kFloats,
                            ptx::shared_address(smem_.dq[warpgroup_]), BwdSmem<kConfig>::kHalfDqBytes);
      ptx::commit_bulk();
      ptx::wait_bulk_read<0>();
      smem_.barriers.dq_empty[warpgroup_].arrive();
      if (params_.turns != nullptr) pass_turn(part);
    }
  }

 private:
  // Until the key blocks before this one in the order have added theirs.
  __device__ void await_turn(int part) {
    const int turn = smem_.staged_dq[warpgroup_].turn;
    while (ptx::load_acquire(params_.turns + part) != turn) {
    }
    ptx::fence_async();
  }

  // Lets the next key block add, once what was sent is there.
  __device__ void pass_turn(int part) {
    ptx::wait_bulk<0>();
    ptx::fence_async();
    ptx::add_release(params_.turns + part, 1);
  }

  const BwdParams& params_;
  BwdSmem<kConfig>& smem_;
  const int warpgroup_;
};

}  // namespace fm3::attention
