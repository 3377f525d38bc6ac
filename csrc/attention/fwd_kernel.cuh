// The forward kernel: three roles around one list of blocks.
#pragma once

#include "attention/fwd_consumer.cuh"
#include "attention/fwd_generator.cuh"
#include "attention/fwd_launch.h"
#include "attention/fwd_loader.cuh"
#include "host/error.h"

namespace fm3::attention {

#ifdef FM3_WATCHDOG
// Development builds only: ends a launch that has not finished after FM3_WATCHDOG seconds, so that a mistake in the
// protocol of the barriers costs an error and not the device.
__device__ inline void watch(volatile int& consumers_left) {
  const uint64_t start = ptx::global_nanoseconds();
  while (consumers_left > 0) {
    ptx::sleep(100'000);
    if (ptx::global_nanoseconds() - start > FM3_WATCHDOG * 1'000'000'000ull) ptx::trap();
  }
}
#endif

// The body of a kernel; an instance is a __global__ function of kConfig.num_threads() threads around it.
template <FwdConfig kConfig>
__device__ __forceinline__ void run_fwd(const FwdParams& params) {
  static_assert(kConfig.is_valid(),
                "FwdConfig: head_dim a multiple of 64 up to 256, 2 stages or more, 1 to 4 consumer "
                "warpgroups, register counts multiples of 8 that fit 65536 in all");
  using Smem = FwdSmem<kConfig>;
  static_assert(sizeof(Smem) <= 232448, "FwdConfig: shared memory exceeds the 227 KB of a CTA");
  extern __shared__ __align__(1024) uint8_t shared_memory[];
  Smem& smem = *reinterpret_cast<Smem*>(shared_memory);

  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0);
  if (threadIdx.x == 0) {
    smem.barriers.init();
    ptx::fence_barrier_init();
#ifdef FM3_WATCHDOG
    smem.consumers_left = 128 * kConfig.consumer_warpgroups;
#endif
  }
  __syncthreads();

  if (warp < 4) {
    ptx::decrease_registers<kConfig.producer_registers>();
    if (warp == 0) {
      if (threadIdx.x == 0) Loader<kConfig>(params, smem).run();
    } else if (warp == 1) {
      Generator<kConfig>(params, smem).run();
    }
#ifdef FM3_WATCHDOG
    if (warp == 2) watch(smem.consumers_left);
#endif
  } else {
    ptx::increase_registers<kConfig.consumer_registers>();
    Consumer<kConfig>(params, smem, warp / 4 - 1).run();
#ifdef FM3_WATCHDOG
    atomicSub(&smem.consumers_left, 1);
#endif
  }
}

// Starts the kernel on `num_ctas` CTAs, or one a multiprocessor where that is 0.
template <FwdConfig kConfig, void (*kKernel)(FwdParams)>
void launch_fwd(const FwdParams& params, int num_ctas, cudaStream_t stream) {
  constexpr int kBytes = sizeof(FwdSmem<kConfig>);
  check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "cudaFuncSetAttribute");
  if (num_ctas == 0) {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&num_ctas, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  }
  check(cudaMemsetAsync(params.next_tile, 0, sizeof(int32_t), stream), "cudaMemsetAsync");
  kKernel<<<num_ctas, kConfig.num_threads(), kBytes, stream>>>(params);
  check(cudaGetLastError(), "fwd_kernel");
}

}  // namespace fm3::attention
