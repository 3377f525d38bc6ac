#include "comm/signal.h"

#include <nvshmem.h>
#include <nvshmemx.h>

#include "comm/device_wait.cuh"
#include "host/error.h"

namespace fm3::comm {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) signal_kernel(const __grid_constant__ SignalParams params) {
  __threadfence_system();
  for (int i = threadIdx.x; i < params.num_signals; i += kThreads) {
    const Signal to = params.signals[i];
    nvshmemx_signal_op(params.words + to.word, params.value, NVSHMEM_SIGNAL_SET, to.rank);
  }
}

__global__ void __launch_bounds__(kThreads) await_kernel(const __grid_constant__ AwaitParams params) {
  for (int i = threadIdx.x; i < params.num_awaited; i += kThreads) {
    const Signal from = params.awaited[i];
    if (!await_word(params.words + from.word, params.value, params.limit, params.kind, from.rank, from.word)) return;
  }
}

// AMOs of NVSHMEM only: with several nodes they go through the transport, and are not atomic with CUDA's.
__global__ void fetch_kernel(Fetch operation, uint64_t* word, uint64_t value, int rank, uint64_t* result) {
  __threadfence_system();
  *result = operation == Fetch::kOr ? nvshmem_uint64_atomic_fetch_or(word, value, rank)
                                    : nvshmem_uint64_atomic_fetch_add(word, value, rank);
  __threadfence_system();
}

}  // namespace

void signal(const SignalParams& params, cudaStream_t stream) {
  if (params.num_signals == 0) return;
  signal_kernel<<<1, kThreads, 0, stream>>>(params);
  check(cudaGetLastError(), "signal");
}

void await(const AwaitParams& params, cudaStream_t stream) {
  if (params.num_awaited == 0) return;
  await_kernel<<<1, kThreads, 0, stream>>>(params);
  check(cudaGetLastError(), "await");
}

void fetch(Fetch operation, uint64_t* word, uint64_t value, int rank, uint64_t* result, cudaStream_t stream) {
  fetch_kernel<<<1, 1, 0, stream>>>(operation, word, value, rank, result);
  check(cudaGetLastError(), "fetch");
}

}  // namespace fm3::comm
