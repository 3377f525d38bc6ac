// Bulk copies between global and shared memory (PTX ISA, "Data Movement: Non-tensor / Tensor copy").
#pragma once

#include <cstdint>

namespace fm3::ptx {

// cp.async.bulk.tensor.5d global -> shared: one box; its bytes count towards `barrier`. Issued by one thread.
__device__ __forceinline__ void load_tensor_5d(uint32_t destination, const void* tensor_map, uint32_t barrier, int c0,
                                               int c1, int c2, int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(destination),
      "l"(tensor_map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// cp.async.bulk.tensor.5d shared -> global: joins the thread's open bulk group. The shared memory must have been made
// visible with fence_async_shared by whoever wrote it, and must stay until wait_bulk_read.
__device__ __forceinline__ void store_tensor_5d(const void* tensor_map, uint32_t source, int c0, int c1, int c2, int c3,
                                                int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(tensor_map),
      "r"(source), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}

// cp.async.bulk global -> shared: `bytes` contiguous bytes, 16-byte aligned at both ends.
__device__ __forceinline__ void load_bytes(uint32_t destination, const void* source, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

// cp.async.bulk.commit_group: closes the thread's open group of bulk stores.
__device__ __forceinline__ void commit_bulk() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// cp.async.bulk.wait_group.read: until at most kPending groups of this thread still read their shared memory.
template <int kPending>
__device__ __forceinline__ void wait_bulk_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// prefetch.tensormap: brings a tensor map into the descriptor cache; no ordering.
__device__ __forceinline__ void prefetch_tensor_map(const void* tensor_map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(tensor_map) : "memory");
}

}  // namespace fm3::ptx
