// A barrier in shared memory, and the position of a role in a ring of stages.
#pragma once

#include <cstdint>

#include "ptx/mbarrier.cuh"

namespace fm3::tile {

struct Barrier {
  uint64_t word;

  __device__ __forceinline__ void init(uint32_t num_arrivals) {
    ptx::mbarrier_init(ptx::shared_address(&word), num_arrivals);
  }
  __device__ __forceinline__ void arrive() { ptx::mbarrier_arrive(ptx::shared_address(&word)); }
  __device__ __forceinline__ void arrive_expect_bytes(uint32_t bytes) {
    ptx::mbarrier_arrive_expect_bytes(ptx::shared_address(&word), bytes);
  }
  __device__ __forceinline__ uint32_t address() const { return ptx::shared_address(&word); }

  // Whether the phase of this parity is complete; may take a while to say that it is not.
  __device__ __forceinline__ bool has_passed(uint32_t parity) {
    return ptx::mbarrier_try_wait(ptx::shared_address(&word), parity);
  }

  // Returns once the phase of this parity is complete.
  __device__ __forceinline__ void wait(uint32_t parity) {
    const uint32_t address = ptx::shared_address(&word);
    while (!ptx::mbarrier_try_wait(address, parity)) {
    }
  }
};

// Where a role stands in a ring of kStages: the stage, and the parity of the phase it waits for there.
template <int kStages>
struct Cursor {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }

  // Where the role stood before it last advanced.
  __device__ __forceinline__ Cursor previous() const {
    return stage == 0 ? Cursor{kStages - 1, parity ^ 1} : Cursor{stage - 1, parity};
  }
};

}  // namespace fm3::tile
