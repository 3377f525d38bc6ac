// Arithmetic that has an instruction of its own (PTX ISA, "Floating Point", "Data Movement: stmatrix").
#pragma once

#include <cstdint>

namespace fm3::ptx {

// ex2.approx.ftz: 2^x, 2 ulp; 2^-inf is 0.
__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// lg2.approx.ftz: log2 x; log2 0 is -inf.
__device__ __forceinline__ float log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// cvt.rn.bf16x2: two floats rounded to nearest; `low` goes to the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// cvt.rn.f16x2: the same for fp16.
__device__ __forceinline__ uint32_t pack_fp16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// stmatrix.x4: four 8 x 8 tiles of 16-bit values; lane i gives the address of row i % 8 of tile i / 8.
__device__ __forceinline__ void store_matrix_x4(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// ldmatrix.x4: the reverse of stmatrix.
__device__ __forceinline__ void load_matrix_x4(uint32_t* values, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
               : "r"(address)
               : "memory");
}

}  // namespace fm3::ptx
