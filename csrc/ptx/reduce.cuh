// Additions into global memory, and the words that order them (PTX ISA, "cp.reduce.async.bulk", "red", "ld").
#pragma once

#include <cstdint>

namespace fm3::ptx {

// cp.reduce.async.bulk shared -> global, add.f32: joins the thread's open bulk group. Each float is added atomically at
// gpu scope; the shared memory must have been made visible with fence_async_shared and must stay until wait_bulk_read.
__device__ __forceinline__ void reduce_add_bytes(float* destination, uint32_t source, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(destination),
               "r"(source), "r"(bytes)
               : "memory");
}

// cp.async.bulk shared -> global: the same without adding.
__device__ __forceinline__ void store_bytes(float* destination, uint32_t source, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination), "r"(source), "r"(bytes)
               : "memory");
}

// st.shared.v4: 16 aligned bytes.
__device__ __forceinline__ void store_shared_x4(uint32_t address, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

// ld.shared.v4: 16 aligned bytes, read at this point of the program and no later.
__device__ __forceinline__ void load_shared_x4(uint32_t address, float& a, float& b, float& c, float& d) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(a), "=f"(b), "=f"(c), "=f"(d)
               : "r"(address)
               : "memory");
}

// cp.async.bulk.wait_group: until at most kPending groups of this thread are not complete; what they wrote is visible
// to this thread.
template <int kPending>
__device__ __forceinline__ void wait_bulk() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// ld.acquire.gpu.
__device__ __forceinline__ int32_t load_acquire(const int32_t* address) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// red.release.gpu.add: what this thread did or saw before comes before the addition.
__device__ __forceinline__ void add_release(int32_t* address, int32_t value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// atom.acq_rel.gpu.add: the value before. What this thread did or saw before comes before the addition, and what came
// before the additions that it follows is seen afterwards.
__device__ __forceinline__ int32_t add_acquire_release(int32_t* address, int32_t value) {
  int32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], %2;" : "=r"(before) : "l"(address), "r"(value) : "memory");
  return before;
}

// st.release.sys: what this thread did or saw before is seen by whoever acquires the value, on this device or another.
__device__ __forceinline__ void store_release_system(uint32_t* address, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// fence.proxy.async, all state spaces: orders this thread's ordinary accesses and those of the copy engine.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

}  // namespace fm3::ptx
