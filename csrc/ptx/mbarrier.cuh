// Shared-memory barriers that count arrivals and transferred bytes (PTX ISA, "Parallel Synchronization: mbarrier").
#pragma once

#include <cstdint>

namespace fm3::ptx {

// 32-bit shared-memory address of a pointer, the form every wrapper below takes.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// mbarrier.init: visible to the copy engine and to other threads only after fence_barrier_init and a thread barrier.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t num_arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(num_arrivals) : "memory");
}

// mbarrier.arrive: release at CTA scope; what this thread wrote before is seen by whoever waits for the phase.
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// mbarrier.arrive.expect_tx: the same, and the phase also waits for `bytes` of bulk copies.
__device__ __forceinline__ void mbarrier_arrive_expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// mbarrier.try_wait.parity: acquire at CTA scope when it returns true; may suspend the thread for a while.
__device__ __forceinline__ bool mbarrier_try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred complete;\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 complete, [%1], %2;\n"
      "selp.u32 %0, 1, 0, complete;\n"
      "}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

}  // namespace fm3::ptx
