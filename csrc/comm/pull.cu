#include "comm/pull.h"

#include <nvshmem.h>
#include <nvshmemx.h>

#include "comm/device_wait.cuh"
#include "host/error.h"

namespace fm3::comm {
namespace {

constexpr int kThreads = 512;
// Loads in flight: 16 CTAs of 512 threads, 8 loads of 16 bytes each, are 1 MiB, the bandwidth-delay product of 450 GB/s
// at about 2.3 microseconds.
constexpr int kLoadsInFlight = 8;
constexpr int64_t kUnitBytes = 32 * 1024;
constexpr int64_t kVectorBytes = sizeof(int4);

// A contiguous run of bytes that one CTA copies.
struct Unit {
  int64_t source = 0;  // from the start of the buffers
  int64_t target = 0;
  int64_t num_bytes = 0;
};

// The units of one chunk: keys, then values, each batch entry in runs of kUnitBytes.
class Units {
 public:
  __device__ Units(const SlotLayout& layout, const PulledChunk& chunk)
      : layout_(layout),
        chunk_(chunk),
        k_bytes_(chunk.num_tokens * layout.k_token_bytes),
        v_bytes_(chunk.num_tokens * layout.v_token_bytes),
        k_runs_((k_bytes_ + kUnitBytes - 1) / kUnitBytes),
        v_runs_((v_bytes_ + kUnitBytes - 1) / kUnitBytes) {}

  __device__ int64_t count() const { return layout_.batch * (k_runs_ + v_runs_); }

  __device__ Unit at(int64_t index) const {
    const int64_t num_k = layout_.batch * k_runs_;
    if (index < num_k) return run(index, k_runs_, layout_.k_start, layout_.k_token_bytes, k_bytes_);
    return run(index - num_k, v_runs_, layout_.v_start, layout_.v_token_bytes, v_bytes_);
  }

 private:
  __device__ Unit run(int64_t index, int64_t runs, int64_t start, int64_t token_bytes, int64_t bytes) const {
    const int64_t entry = index / runs, first = index % runs * kUnitBytes;
    const int64_t slot_bytes = layout_.chunk_tokens * token_bytes;
    const int64_t line = start + entry * layout_.num_slots * slot_bytes + first;
    return {line + chunk_.source_slot * slot_bytes, line + chunk_.slot * slot_bytes, min(kUnitBytes, bytes - first)};
  }

  const SlotLayout& layout_;
  const PulledChunk& chunk_;
  int64_t k_bytes_, v_bytes_, k_runs_, v_runs_;
};

// By all threads of a CTA. Loads pass by L1, which would not notice that a peer has written.
__device__ void copy_mapped(const uint8_t* source, uint8_t* target, int64_t num_bytes) {
  const auto* from = reinterpret_cast<const int4*>(source);
  auto* to = reinterpret_cast<int4*>(target);
  const int64_t count = num_bytes / kVectorBytes;
  for (int64_t base = threadIdx.x; base < count; base += kLoadsInFlight * kThreads) {
    int4 values[kLoadsInFlight];
#pragma unroll
    for (int i = 0; i < kLoadsInFlight; ++i) {
      if (base + i * kThreads < count) values[i] = __ldcg(from + base + i * kThreads);
    }
#pragma unroll
    for (int i = 0; i < kLoadsInFlight; ++i) {
      if (base + i * kThreads < count) to[base + i * kThreads] = values[i];
    }
  }
}

__device__ bool is_needed(const PullParams& params, const PulledChunk& chunk) {
  if (params.layout.batch == 0 || chunk.num_tokens == 0) return false;
  return params.seen == nullptr || params.seen[chunk.slot] != 0 || chunk.num_readers > 0;
}

// Called by one thread of each CTA that had a part of the chunk, when that is in place; the last one sets the flags.
__device__ void finish(const PullParams& params, const PulledChunk& chunk, int64_t num_parts) {
  const uint32_t others = DeviceWord<uint32_t>(params.finished_ctas[chunk.slot]).fetch_add(1);
  if (others + 1 < num_parts) return;
  DeviceWord<uint32_t>(params.finished_ctas[chunk.slot]).store(0, cuda::memory_order_relaxed);
  store_release(params.ready + chunk.slot, static_cast<uint32_t>(params.epoch));
  __threadfence_system();
  for (int i = 0; i < chunk.num_readers; ++i) {
    const Reader reader = params.readers[chunk.first_reader + i];
    nvshmemx_signal_op(params.landed + reader.landed, params.epoch, NVSHMEM_SIGNAL_SET, reader.rank);
  }
}

// Copies this CTA's share of one chunk. Every CTA takes part in every chunk, so that a chunk is there as soon as can
// be.
__device__ void copy_share(const PullParams& params, const PulledChunk& chunk) {
  const Units units(params.layout, chunk);
  const int64_t count = units.count();
  const int64_t num_parts = count < gridDim.x ? count : gridDim.x;
  for (int64_t index = blockIdx.x; index < count; index += gridDim.x) {
    const Unit unit = units.at(index);
    uint8_t* target = params.buffer + unit.target;
    if (chunk.source != nullptr) {
      copy_mapped(chunk.source + unit.source, target, unit.num_bytes);
    } else {
      nvshmemx_getmem_block(target, params.buffer + unit.source, unit.num_bytes, chunk.source_rank);
    }
  }
  __syncthreads();
  // The barrier and this thread's release make the whole CTA's stores come before the flag.
  if (threadIdx.x == 0 && blockIdx.x < num_parts) finish(params, chunk, num_parts);
}

// Fills this CTA's share of a chunk that does not come with bits that are NaN in every float type: a row that sees it
// gets NaN, not a wrong number. Its readers are not told.
__device__ void poison_share(const PullParams& params, PulledChunk chunk) {
  const Units units(params.layout, chunk);
  for (int64_t index = blockIdx.x; index < units.count(); index += gridDim.x) {
    const Unit unit = units.at(index);
    auto* target = reinterpret_cast<int4*>(params.buffer + unit.target);
    for (int64_t i = threadIdx.x; i < unit.num_bytes / kVectorBytes; i += kThreads) target[i] = {-1, -1, -1, -1};
  }
  __syncthreads();
  chunk.num_readers = 0;
  if (threadIdx.x == 0) finish(params, chunk, gridDim.x);
}

// Whether a chunk may be read at its source; the answer is the same for all threads of the CTA.
__device__ bool has_landed(const PullParams& params, const PulledChunk& chunk) {
  __shared__ bool answer;
  __syncthreads();
  if (threadIdx.x == 0) answer = load_acquire(params.landed + chunk.landed) >= params.epoch;
  __syncthreads();
  return answer;
}

__global__ void __launch_bounds__(kThreads) pull_kernel(const __grid_constant__ PullParams params) {
  __shared__ uint32_t is_done[kMostPulledChunks / 32];
  __shared__ bool gives_up;
  for (int i = threadIdx.x; i < (params.num_chunks + 31) / 32; i += kThreads) is_done[i] = 0;
  if (threadIdx.x == 0) gives_up = false;
  if (threadIdx.x == 0 && params.resident_ctas != nullptr) {
    SystemWord<uint32_t>(*params.resident_ctas).fetch_add(1, cuda::memory_order_relaxed);
  }
  __syncthreads();
  Patience patience(params.limit);
  for (int left = params.num_chunks, first = 0; left > 0;) {
    const int before = left;
    for (int i = first; i < params.num_chunks; ++i) {
      if ((is_done[i / 32] >> (i % 32)) & 1) continue;
      const PulledChunk& chunk = params.chunks[i];
      if (!is_needed(params, chunk)) {
        if (blockIdx.x == 0 && threadIdx.x == 0) finish(params, chunk, 1);
      } else if (has_landed(params, chunk)) {
        copy_share(params, chunk);
      } else {
        continue;
      }
      __syncthreads();
      if (threadIdx.x == 0) is_done[i / 32] |= 1u << (i % 32);
      --left;
      __syncthreads();
    }
    while (first < params.num_chunks && ((is_done[first / 32] >> (first % 32)) & 1)) ++first;
    if (left == before) {
      if (threadIdx.x == 0) {
        const PulledChunk& chunk = params.chunks[first];
        gives_up = !patience.lasts(WaitKind::kLanded, chunk.source_rank, chunk.slot, params.epoch,
                                   load_acquire(params.landed + chunk.landed));
      }
      __syncthreads();
      if (gives_up) break;
    } else {
      patience.restart();
    }
  }
  if (!gives_up) return;
  for (int i = 0; i < params.num_chunks; ++i) {
    if (((is_done[i / 32] >> (i % 32)) & 1) == 0) poison_share(params, params.chunks[i]);
  }
}

}  // namespace

void pull(const PullParams& params, int num_ctas, cudaStream_t stream) {
  const SlotLayout& layout = params.layout;
  if (num_ctas < 1) throw Error("pull: num_ctas must be at least 1");
  if (params.num_chunks < 0 || params.num_chunks > kMostPulledChunks) {
    throw Error("pull: there must be 0 to 65536 chunks");
  }
  if (layout.k_token_bytes % kVectorBytes != 0 || layout.v_token_bytes % kVectorBytes != 0 ||
      layout.k_start % kVectorBytes != 0 || layout.v_start % kVectorBytes != 0) {
    throw Error("pull: a token's keys and values must be multiples of 16 bytes");
  }
  if (params.num_chunks == 0) return;
  pull_kernel<<<num_ctas, kThreads, 0, stream>>>(params);
  check(cudaGetLastError(), "pull");
}

}  // namespace fm3::comm
