#include "comm/pull.h"

#include <nvshmem.h>
#include <nvshmemx.h>

#include "comm/device_wait.cuh"
#include "host/error.h"
#include "tile/barrier.cuh"

namespace fm3::comm {
namespace {

constexpr int kCopyWarps = 16;
constexpr int kCopyThreads = 32 * kCopyWarps;
constexpr int kThreads = kCopyThreads + 32;  // and a warp that decides what is copied, and says what has been
// 16 CTAs with as many loads in flight, 16 bytes each, are 1 MiB: the bandwidth-delay product of 450 GB/s at about 2.3
// microseconds.
constexpr int kLoadsInFlight = 8;
constexpr int64_t kVectorBytes = sizeof(int4);
constexpr int64_t kUnitBytes = kCopyThreads * kLoadsInFlight * kVectorBytes;

// A contiguous run of bytes that one CTA copies: one load for each in flight.
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

// By the copying threads of a CTA. Loads pass by L1, which would not notice that a peer has written.
__device__ void copy_mapped(const uint8_t* source, uint8_t* target, int64_t num_bytes) {
  const auto* from = reinterpret_cast<const int4*>(source);
  auto* to = reinterpret_cast<int4*>(target);
  const int64_t count = num_bytes / kVectorBytes;
  int4 values[kLoadsInFlight];
#pragma unroll
  for (int i = 0; i < kLoadsInFlight; ++i) {
    const int64_t at = threadIdx.x + i * kCopyThreads;
    if (at < count) values[i] = __ldcg(from + at);
  }
#pragma unroll
  for (int i = 0; i < kLoadsInFlight; ++i) {
    const int64_t at = threadIdx.x + i * kCopyThreads;
    if (at < count) to[at] = values[i];
  }
}

// The same for a source that this device cannot read by itself, a part for each warp.
__device__ void fetch(const uint8_t* source, uint8_t* target, int64_t num_bytes, int rank) {
  const int64_t vectors = (num_bytes / kVectorBytes + kCopyWarps - 1) / kCopyWarps;
  const int64_t start = threadIdx.x / 32 * vectors * kVectorBytes;
  if (start >= num_bytes) return;
  nvshmemx_getmem_warp(target + start, source + start, min(vectors * kVectorBytes, num_bytes - start), rank);
}

// Bits that are NaN in every float type: a row that sees keys that did not come gets NaN, not a wrong number.
__device__ void poison(uint8_t* target, int64_t num_bytes) {
  auto* to = reinterpret_cast<int4*>(target);
  for (int64_t i = threadIdx.x; i < num_bytes / kVectorBytes; i += kCopyThreads) to[i] = {-1, -1, -1, -1};
}

// What the controlling warp asks the copying warps for.
struct Order {
  static constexpr int kStop = -1;

  int32_t chunk = kStop;
  bool poisons = false;  // it did not come
};

constexpr int kOrders = 4;  // handed out ahead

struct PullSmem {
  Order orders[kOrders];
  // arrives | waits
  tile::Barrier given[kOrders];              // controlling warp, 1 | copying warps
  tile::Barrier copied[kOrders];             // every copying warp | controlling warp
  uint32_t is_done[kMostPulledChunks / 32];  // the controlling warp's own: chunks that nothing is left to do for
};

// CTAs that have a share of a chunk; the first ones.
__device__ int64_t num_parts(const PullParams& params, const PulledChunk& chunk) {
  return min(Units(params.layout, chunk).count(), static_cast<int64_t>(gridDim.x));
}

// A CTA's copying warps: its share of one chunk after the other. Every CTA has one in every chunk that is large enough,
// so that a chunk is there as soon as can be.
__device__ void carry_out_orders(const PullParams& params, PullSmem& smem) {
  for (uint32_t n = 0;; ++n) {
    smem.given[n % kOrders].wait(n / kOrders % 2);
    const Order order = smem.orders[n % kOrders];
    if (order.chunk == Order::kStop) return;
    const PulledChunk& chunk = params.chunks[order.chunk];
    const Units units(params.layout, chunk);
    for (int64_t index = blockIdx.x; index < units.count(); index += gridDim.x) {
      const Unit unit = units.at(index);
      uint8_t* target = params.buffer + unit.target;
      if (order.poisons) {
        poison(target, unit.num_bytes);
      } else if (chunk.source != nullptr) {
        copy_mapped(chunk.source + unit.source, target, unit.num_bytes);
      } else {
        fetch(params.buffer + unit.source, target, unit.num_bytes, chunk.source_rank);
      }
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) smem.copied[n % kOrders].arrive();
  }
}

// A CTA's controlling warp: hands out chunks that have landed, whichever they are, and tells the world of those that
// are copied, while the next ones are.
class Control {
 public:
  __device__ Control(const PullParams& params, PullSmem& smem)
      : params_(params), smem_(smem), lane_(threadIdx.x % 32), left_(params.num_chunks) {}

  __device__ void run() {
    Patience patience(params_.limit);
    bool lasts = true;
    while (left_ > 0 && lasts) {
      if (hand_out_landed() || finish_copied()) {
        patience.restart();
      } else if (finished_ == given_) {
        lasts = waits_on(patience);
      }
    }
    if (!lasts) poison_the_rest();
    while (finished_ < given_) finish_copied();
    give({Order::kStop, false});
  }

 private:
  // Returns whether there was something.
  __device__ bool hand_out_landed() {
    const int before = left_;
    while (first_ < params_.num_chunks && smem_.is_done[first_ / 32] == ~0u) first_ += 32;
    for (int start = first_; start < params_.num_chunks; start += 32) {
      const int index = start + lane_;
      bool needed = false, landed = false;
      const bool waits = index < params_.num_chunks && ((smem_.is_done[start / 32] >> lane_) & 1) == 0;
      if (waits) {
        const PulledChunk& chunk = params_.chunks[index];
        needed = is_needed(chunk);
        landed = needed && load_acquire(params_.landed + chunk.landed) >= params_.epoch;
      }
      const uint32_t idle = __ballot_sync(~0u, waits && !needed), here = __ballot_sync(~0u, landed);
      for (uint32_t bits = idle; bits != 0; bits &= bits - 1) {
        if (blockIdx.x == 0) finish(params_.chunks[start + __ffs(bits) - 1], 1, true);
      }
      for (uint32_t bits = here; bits != 0; bits &= bits - 1) hand_out({start + __ffs(bits) - 1, false});
      mark_done(start, idle | here);
    }
    return left_ < before;
  }

  __device__ bool is_needed(const PulledChunk& chunk) const {
    if (params_.layout.batch == 0 || chunk.num_tokens == 0) return false;
    return params_.seen == nullptr || params_.seen[chunk.slot] != 0 || chunk.num_readers > 0;
  }

  __device__ void mark_done(int start, uint32_t chunks) {
    __syncwarp();
    if (lane_ == 0) smem_.is_done[start / 32] |= chunks;
    __syncwarp();
    left_ -= __popc(chunks);
  }

  __device__ void hand_out(const Order& order) {
    if (blockIdx.x >= num_parts(params_, params_.chunks[order.chunk])) return;
    while (given_ - finished_ == kOrders) finish_copied();
    give(order);
    ++given_;
  }

  __device__ void give(const Order& order) {
    if (lane_ == 0) {
      smem_.orders[given_ % kOrders] = order;
      smem_.given[given_ % kOrders].arrive();
    }
    __syncwarp();
  }

  // The oldest order, if it is carried out by now; returns whether it is.
  __device__ bool finish_copied() {
    if (finished_ == given_) return false;
    const uint32_t at = finished_ % kOrders;
    if (!__all_sync(~0u, smem_.copied[at].has_passed(finished_ / kOrders % 2))) return false;
    const Order order = smem_.orders[at];
    const PulledChunk& chunk = params_.chunks[order.chunk];
    finish(chunk, num_parts(params_, chunk), !order.poisons);
    ++finished_;
    return true;
  }

  // Called once by each CTA that had a part of the chunk, when that is in place; the last one sets the flags.
  __device__ void finish(const PulledChunk& chunk, int64_t parts, bool tells_readers) {
    if (lane_ == 0) {
      // The copying warps' arrivals and this release make all their stores come before the flag.
      const uint32_t others = DeviceWord<uint32_t>(params_.finished_ctas[chunk.slot]).fetch_add(1);
      if (others + 1 == parts) {
        DeviceWord<uint32_t>(params_.finished_ctas[chunk.slot]).store(0, cuda::memory_order_relaxed);
        store_release(params_.ready + chunk.slot, static_cast<uint32_t>(params_.epoch));
        if (tells_readers) tell_readers(chunk);
      }
    }
    __syncwarp();
  }

  __device__ void tell_readers(const PulledChunk& chunk) {
    __threadfence_system();
    for (int i = 0; i < chunk.num_readers; ++i) {
      const Reader reader = params_.readers[chunk.first_reader + i];
      nvshmemx_signal_op(params_.landed + reader.landed, params_.epoch, NVSHMEM_SIGNAL_SET, reader.rank);
    }
  }

  // Whether to go on waiting for chunks that have not landed; the report names the first of them.
  __device__ bool waits_on(Patience& patience) {
    bool lasts = true;
    if (lane_ == 0) {
      const PulledChunk& chunk = params_.chunks[first_ + __ffs(~smem_.is_done[first_ / 32]) - 1];
      lasts = patience.lasts(WaitKind::kLanded, chunk.source_rank, chunk.slot, params_.epoch,
                             load_acquire(params_.landed + chunk.landed));
    }
    return __shfl_sync(~0u, lasts, 0);
  }

  __device__ void poison_the_rest() {
    for (int index = first_; index < params_.num_chunks; ++index) {
      if (((smem_.is_done[index / 32] >> (index % 32)) & 1) == 0) hand_out({index, true});
    }
  }

  const PullParams& params_;
  PullSmem& smem_;
  const int lane_;
  int left_;                           // chunks that are neither handed out nor found idle
  int first_ = 0;                      // in whose 32 the first of them is
  uint32_t given_ = 0, finished_ = 0;  // orders
};

__global__ void __launch_bounds__(kThreads) pull_kernel(const __grid_constant__ PullParams params) {
  __shared__ PullSmem smem;
  for (int i = threadIdx.x; i < (params.num_chunks + 31) / 32; i += kThreads) smem.is_done[i] = 0;
  if (threadIdx.x == 0) {
    for (tile::Barrier& barrier : smem.given) barrier.init(1);
    for (tile::Barrier& barrier : smem.copied) barrier.init(kCopyWarps);
    if (params.resident_ctas != nullptr) {
      SystemWord<uint32_t>(*params.resident_ctas).fetch_add(1, cuda::memory_order_relaxed);
    }
  }
  __syncthreads();
  if (threadIdx.x < kCopyThreads) {
    carry_out_orders(params, smem);
  } else {
    Control(params, smem).run();
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
