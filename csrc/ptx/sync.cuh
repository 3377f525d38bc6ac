// Named barriers, proxy fences and register reallocation (PTX ISA, "Parallel Synchronization", "Miscellaneous").
#pragma once

#include <cstdint>

namespace fm3::ptx {

// barrier.sync: waits until `num_threads` threads (whole warps) have arrived; orders their memory accesses.
__device__ __forceinline__ void barrier_sync(int barrier, int num_threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(num_threads) : "memory");
}

// barrier.arrive: counts this warp in without waiting.
__device__ __forceinline__ void barrier_arrive(int barrier, int num_threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(barrier), "r"(num_threads) : "memory");
}

// fence.mbarrier_init: barrier words just initialised become visible to bulk copies.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// fence.proxy.async: ordinary shared-memory stores of this thread come before later accesses by the copy engine.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// fence.proxy.async: what this thread knows to be written in global memory comes before its later copies by the engine.
__device__ __forceinline__ void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// ld.acquire.sys: what its writer released, on this device or another, is seen afterwards.
__device__ __forceinline__ uint32_t load_acquire_system(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// setmaxnreg.inc / .dec: every warp of the warpgroup must execute the same one.
template <int kRegisters>
__device__ __forceinline__ void increase_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void decrease_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// %tid.x, read at this point and not kept from before.
__device__ __forceinline__ int thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// %globaltimer: nanoseconds, coarse; only for bounding a wait.
__device__ __forceinline__ uint64_t global_nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// nanosleep: suspends the thread for about that long.
__device__ __forceinline__ void sleep(uint32_t nanoseconds) { asm volatile("nanosleep.u32 %0;" ::"r"(nanoseconds)); }

// trap: ends the launch with an error.
__device__ __forceinline__ void trap() { asm volatile("trap;"); }

}  // namespace fm3::ptx
