#include "comm/put.h"

#include <cuda_bf16.h>
#include <nvshmem.h>
#include <nvshmemx.h>

#include "comm/device_wait.cuh"
#include "host/error.h"

namespace fm3::comm {
namespace {

constexpr int kThreads = 512;
constexpr int kBitsPerWord = 64;
constexpr int64_t kUnitElements = 8 * 1024;

// Four elements at a time: a token's elements are a multiple of four.
__device__ void store_four(float* target, float4 values) { *reinterpret_cast<float4*>(target) = values; }

__device__ void store_four(__nv_bfloat16* target, float4 values) {
  __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(values.x, values.y), __floats2bfloat162_rn(values.z, values.w)};
  *reinterpret_cast<uint2*>(target) = *reinterpret_cast<const uint2*>(pairs);
}

// One chunk's partial, as elements of the contribution: dK of each batch entry, then dV.
class Partial {
 public:
  __device__ Partial(const PutParams& params, const PutChunk& chunk) : params_(params), chunk_(chunk) {
    const SlotLayout& layout = params.layout;
    k_elements_ = chunk.num_tokens * layout.k_token_bytes / sizeof(float);
    v_elements_ = chunk.num_tokens * layout.v_token_bytes / sizeof(float);
  }

  __device__ int64_t count() const { return params_.layout.batch * (k_elements_ + v_elements_); }

  __device__ float4 four_at(int64_t element) const {
    const SlotLayout& layout = params_.layout;
    const int64_t num_k = layout.batch * k_elements_;
    return element < num_k ? four_of(params_.dk, element, k_elements_, layout.k_token_bytes)
                           : four_of(params_.dv, element - num_k, v_elements_, layout.v_token_bytes);
  }

 private:
  __device__ float4 four_of(const float* tensor, int64_t element, int64_t elements, int64_t token_bytes) const {
    const SlotLayout& layout = params_.layout;
    const int64_t token_elements = token_bytes / static_cast<int64_t>(sizeof(float));
    const int64_t slot_elements = layout.chunk_tokens * token_elements;
    const int64_t entry = element / elements;
    const int64_t place = (entry * layout.num_slots + chunk_.slot) * slot_elements + element % elements;
    return __ldcg(reinterpret_cast<const float4*>(tensor + place));
  }

  const PutParams& params_;
  const PutChunk& chunk_;
  int64_t k_elements_, v_elements_;
};

template <typename Element>
__device__ void put_share(const PutParams& params, const PutChunk& chunk, int index) {
  const Partial partial(params, chunk);
  const int64_t count = partial.count();
  const int64_t place = params.contributions_start + chunk.contribution * params.contribution_bytes;
  const int64_t staged = params.staging_start + index * params.contribution_bytes;
  auto* to = reinterpret_cast<Element*>(chunk.target != nullptr ? chunk.target + place : params.buffer + staged);
  for (int64_t first = blockIdx.x * kUnitElements; first < count; first += gridDim.x * kUnitElements) {
    const int64_t end = min(first + kUnitElements, count);
    for (int64_t element = first + 4 * threadIdx.x; element < end; element += 4 * kThreads) {
      store_four(to + element, partial.four_at(element));
    }
    if (chunk.target == nullptr) {
      __syncthreads();
      nvshmemx_putmem_nbi_block(params.buffer + place + first * sizeof(Element), to + first,
                                (end - first) * sizeof(Element), chunk.target_rank);
    }
  }
  __syncthreads();
}

// By one thread of each CTA; the last one sets this rank's bit, which must not overtake any CTA's data.
__device__ void finish(const PutParams& params, const PutChunk& chunk, int index) {
  __threadfence_system();
  if (chunk.target == nullptr) nvshmem_quiet();
  if (DeviceWord<uint32_t>(params.finished_ctas[index]).fetch_add(1) + 1 < gridDim.x) return;
  DeviceWord<uint32_t>(params.finished_ctas[index]).store(0, cuda::memory_order_relaxed);
  __threadfence_system();
  const uint64_t bit = uint64_t{1} << (params.rank % kBitsPerWord);
  nvshmem_uint64_atomic_or(params.words + chunk.bits, bit, chunk.target_rank);
}

__global__ void __launch_bounds__(kThreads) put_kernel(const __grid_constant__ PutParams params) {
  __shared__ bool goes_on;
  for (int i = 0; i < params.num_chunks; ++i) {
    const PutChunk& chunk = params.chunks[i];
    __syncthreads();
    if (threadIdx.x == 0) {
      goes_on = await_epoch(params.final + chunk.final_flag, static_cast<uint32_t>(params.epoch), params.limit,
                            WaitKind::kWorkDone, chunk.final_flag) &&
                await_word(params.words + chunk.opened, params.epoch, params.limit, WaitKind::kOpened,
                           chunk.target_rank, chunk.slot);
    }
    __syncthreads();
    if (!goes_on) return;
    if (params.wire == Wire::kFloat32) {
      put_share<float>(params, chunk, i);
    } else {
      put_share<__nv_bfloat16>(params, chunk, i);
    }
    if (threadIdx.x == 0) finish(params, chunk, i);
  }
}

}  // namespace

void put(const PutParams& params, int num_ctas, cudaStream_t stream) {
  const SlotLayout& layout = params.layout;
  if (num_ctas < 1) throw Error("put: num_ctas must be at least 1");
  if (layout.k_token_bytes % sizeof(float4) != 0 || layout.v_token_bytes % sizeof(float4) != 0) {
    throw Error("put: a token's gradients must be multiples of 16 bytes of float32");
  }
  if (params.num_chunks == 0) return;
  put_kernel<<<num_ctas, kThreads, 0, stream>>>(params);
  check(cudaGetLastError(), "put");
}

}  // namespace fm3::comm
