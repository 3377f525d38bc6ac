#include "comm/reduce.h"

#include <cuda_bf16.h>
#include <nvshmem.h>
#include <nvshmemx.h>

#include "comm/device_wait.cuh"
#include "host/error.h"

namespace fm3::comm {
namespace {

constexpr int kThreads = 512;

__device__ float4 load_four(const float* source) { return __ldcg(reinterpret_cast<const float4*>(source)); }

__device__ float4 load_four(const __nv_bfloat16* source) {
  const uint2 raw = __ldcg(reinterpret_cast<const uint2*>(source));
  const float2 low = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.x));
  const float2 high = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.y));
  return {low.x, low.y, high.x, high.y};
}

__device__ void add(float4& total, const float4& term) {
  total.x += term.x;
  total.y += term.y;
  total.z += term.z;
  total.w += term.w;
}

// Adds one of the two tensors of a chunk: `start` elements of each contribution come before it.
template <typename Element>
__device__ void sum_tensor(const ReduceParams& params, const SummedChunk& chunk, float* tensor, int64_t token_bytes,
                           int64_t start) {
  const SlotLayout& layout = params.layout;
  const int64_t token_elements = token_bytes / static_cast<int64_t>(sizeof(float));
  const int64_t elements = chunk.num_tokens * token_elements;
  const int64_t slot_elements = layout.chunk_tokens * token_elements;
  const uint8_t* first = params.buffer + params.contributions_start +
                         chunk.first_contribution * params.contribution_bytes + start * sizeof(Element);
  for (int64_t element = 4 * (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x);
       element < layout.batch * elements; element += 4 * gridDim.x * static_cast<int64_t>(kThreads)) {
    const int64_t entry = element / elements;
    float* own = tensor + (entry * layout.num_slots + chunk.slot) * slot_elements + element % elements;
    float4 total{};
    for (int i = 0; i < chunk.num_contributions; ++i) {
      if (i == chunk.own_place) add(total, load_four(own));
      add(total, load_four(reinterpret_cast<const Element*>(first + i * params.contribution_bytes) + element));
    }
    if (chunk.own_place == chunk.num_contributions) add(total, load_four(own));
    *reinterpret_cast<float4*>(own) = total;
  }
}

template <typename Element>
__device__ void sum_share(const ReduceParams& params, const SummedChunk& chunk) {
  const SlotLayout& layout = params.layout;
  const int64_t k_elements = layout.batch * chunk.num_tokens * layout.k_token_bytes / sizeof(float);
  sum_tensor<Element>(params, chunk, params.dk, layout.k_token_bytes, 0);
  sum_tensor<Element>(params, chunk, params.dv, layout.v_token_bytes, k_elements);
}

// Bits that are NaN in place of a sum of which something did not come: no wrong number.
__device__ void poison(const ReduceParams& params, const SummedChunk& chunk, float* tensor, int64_t token_bytes) {
  const int64_t elements = chunk.num_tokens * (token_bytes / static_cast<int64_t>(sizeof(float)));
  const int64_t slot_elements = params.layout.chunk_tokens * (token_bytes / static_cast<int64_t>(sizeof(float)));
  for (int64_t element = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
       element < params.layout.batch * elements; element += gridDim.x * static_cast<int64_t>(kThreads)) {
    const int64_t entry = element / elements;
    tensor[(entry * params.layout.num_slots + chunk.slot) * slot_elements + element % elements] = __int_as_float(-1);
  }
}

// Waits until all contributors' bits are set. Only they set bits, so a word is complete when it is the expected one.
__device__ bool all_have_come(const ReduceParams& params, const SummedChunk& chunk) {
  const auto epoch = static_cast<uint32_t>(params.epoch);
  if (chunk.own_place >= 0 &&
      !await_epoch(params.final + chunk.own_final, epoch, params.limit, WaitKind::kWorkDone, chunk.own_final)) {
    return false;
  }
  for (int word = 0; word < params.words_per_mask; ++word) {
    const uint64_t expected = params.expected[chunk.expected + word];
    if (expected != 0 && !await_word(params.words + chunk.bits + word, expected, params.limit, WaitKind::kContributors,
                                     word, chunk.slot)) {
      return false;
    }
  }
  return true;
}

// By one thread of each CTA; the last one clears the bitmask and tells that the sum is there.
__device__ void finish(const ReduceParams& params, const SummedChunk& chunk, int index) {
  if (DeviceWord<uint32_t>(params.finished_ctas[index]).fetch_add(1) + 1 < gridDim.x) return;
  DeviceWord<uint32_t>(params.finished_ctas[index]).store(0, cuda::memory_order_relaxed);
  for (int word = 0; word < params.words_per_mask; ++word) {
    const uint64_t expected = params.expected[chunk.expected + word];
    if (expected != 0) nvshmem_uint64_atomic_add(params.words + chunk.bits + word, ~expected + 1, params.rank);
  }
  store_release(params.final + chunk.summed, static_cast<uint32_t>(params.epoch));
}

__global__ void __launch_bounds__(kThreads) reduce_kernel(const __grid_constant__ ReduceParams params) {
  __shared__ bool goes_on;
  for (int i = 0; i < params.num_chunks; ++i) {
    const SummedChunk& chunk = params.chunks[i];
    __syncthreads();
    if (threadIdx.x == 0) goes_on = all_have_come(params, chunk);
    __syncthreads();
    if (!goes_on) {
      for (; i < params.num_chunks; ++i) {
        poison(params, params.chunks[i], params.dk, params.layout.k_token_bytes);
        poison(params, params.chunks[i], params.dv, params.layout.v_token_bytes);
      }
      return;
    }
    if (params.wire == Wire::kFloat32) {
      sum_share<float>(params, chunk);
    } else {
      sum_share<__nv_bfloat16>(params, chunk);
    }
    __syncthreads();
    if (threadIdx.x == 0) finish(params, chunk, i);
  }
}

}  // namespace

void reduce(const ReduceParams& params, int num_ctas, cudaStream_t stream) {
  if (num_ctas < 1) throw Error("reduce: num_ctas must be at least 1");
  if (params.num_chunks == 0) return;
  reduce_kernel<<<num_ctas, kThreads, 0, stream>>>(params);
  check(cudaGetLastError(), "reduce");
}

}  // namespace fm3::comm
