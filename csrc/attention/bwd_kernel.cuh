// The backward kernel: four roles around one list of blocks.
#pragma once

#include "attention/bwd_consumer.cuh"
#include "attention/bwd_generator.cuh"
#include "attention/bwd_launch.h"
#include "attention/bwd_loader.cuh"
#include "attention/bwd_writer.cuh"
#include "host/error.h"

namespace fm3::attention {

#ifdef FM3_WATCHDOG
// Development builds only: ends a launch that has not finished after FM3_WATCHDOG seconds.
__device__ inline void watch_bwd(volatile int& consumers_left) {
  const uint64_t start = ptx::global_nanoseconds();
  while (consumers_left > 0) {
    ptx::sleep(100'000);
    if (ptx::global_nanoseconds() - start > FM3_WATCHDOG * 1'000'000'000ull) ptx::trap();
  }
}
#endif

// The body of a kernel; an instance is a __global__ function of kConfig.num_threads() threads around it.
template <BwdConfig kConfig>
__device__ __forceinline__ void run_bwd(const BwdParams& params) {
  static_assert(kConfig.is_valid(),
                "BwdConfig: head_dim 64 or 128, 2 stages or more, register counts multiples of 8 that "
                "fit 65536 in all");
  using Smem = BwdSmem<kConfig>;
  static_assert(sizeof(Smem) <= 232448, "BwdConfig: shared memory exceeds the 227 KB of a CTA");
  extern __shared__ __align__(1024) uint8_t shared_memory[];
  Smem& smem = *reinterpret_cast<Smem*>(shared_memory);

  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  if (threadIdx.x == 0) {
    smem.barriers.init();
    ptx::fence_barrier_init();
    for (int& chunk : smem.stored_chunk) chunk = -1;
    for (DqPlace& place : smem.dq_places) place.clear();
#ifdef FM3_WATCHDOG
    smem.consumers_left = 128 * kBwdWarpgroups;
#endif
  }
  __syncthreads();

  if (warp < 4) {
    ptx::decrease_registers<kConfig.producer_registers>();
    if (warp == 0) {
      if (threadIdx.x == 0) {
        BwdLoader<kConfig>(params, smem).run();
      }
#ifdef FM3_WATCHDOG
      else if (threadIdx.x == 1) {
        watch_bwd(smem.consumers_left);
      }
#endif
    } else if (warp == 1) {
      BwdGenerator<kConfig>(params, smem).run();
    } else if (threadIdx.x % 32 == 0) {
      DqWriter<kConfig>(params, smem, warp - 2).run();
    }
  } else {
    ptx::increase_registers<kConfig.consumer_registers>();
    BwdConsumer<kConfig>(params, smem, __shfl_sync(~0u, ptx::thread_index() / 128, 0) - 1).run();
#ifdef FM3_WATCHDOG
    atomicSub(&smem.consumers_left, 1);
#endif
  }
}

// Starts the kernel on `num_ctas` CTAs, or one a multiprocessor where that is 0.
template <BwdConfig kConfig, void (*kKernel)(BwdParams)>
void launch_bwd(const BwdParams& params, int num_ctas, cudaStream_t stream) {
  constexpr int kBytes = sizeof(BwdSmem<kConfig>);
  check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "cudaFuncSetAttribute");
  if (num_ctas == 0) {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&num_ctas, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  }
  check(cudaMemsetAsync(params.next_tile, 0, sizeof(int32_t), stream), "cudaMemsetAsync");
  if (params.done.epochs != nullptr) {
    const int chunks = (params.mask.num_key_blocks + params.done.blocks_per_chunk - 1) / params.done.blocks_per_chunk;
    check(cudaMemsetAsync(params.done.stored, 0, chunks * sizeof(int32_t), stream), "cudaMemsetAsync");
  }
  kKernel<<<num_ctas, kConfig.num_threads(), kBytes, stream>>>(params);
  check(cudaGetLastError(), "bwd_kernel");
}

}  // namespace fm3::attention
