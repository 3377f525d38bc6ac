// Warpgroup matrix products of 64 rows whose operands lie in shared memory, in either orientation, or the first in
// registers (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate"). The rules of wgmma.cuh hold here too.
#pragma once

#include <cstdint>

#include "ptx/wgmma.cuh"

namespace fm3::ptx {

// Which dimension of both operands is contiguous: the summed one, or the other.
enum class Major : int { kSummed = 0, kOuter = 1 };

#define FM3_REGISTERS_16(c, d)                                                                                  \
  c(d[0]), c(d[1]), c(d[2]), c(d[3]), c(d[4]), c(d[5]), c(d[6]), c(d[7]), c(d[8]), c(d[9]), c(d[10]), c(d[11]), \
      c(d[12]), c(d[13]), c(d[14]), c(d[15])
#define FM3_REGISTERS_32(c, d)                                                                                      \
  FM3_REGISTERS_16(c, d), c(d[16]), c(d[17]), c(d[18]), c(d[19]), c(d[20]), c(d[21]), c(d[22]), c(d[23]), c(d[24]), \
      c(d[25]), c(d[26]), c(d[27]), c(d[28]), c(d[29]), c(d[30]), c(d[31])
#define FM3_WRITTEN(x) "=f"(x)
#define FM3_UPDATED(x) "+f"(x)
#define FM3_LIST_16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
#define FM3_LIST_32                                                         \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define FM3_PRODUCT(columns, type, list, a_words, b_words, major, scale)                                         \
  "{\n"                                                                                                          \
  ".reg .pred accumulate;\n"                                                                                     \
  ".reg .b64 a, b;\n"                                                                                            \
  "mov.b64 a, {" a_words                                                                                         \
  "};\n"                                                                                                         \
  "mov.b64 b, {" b_words                                                                                         \
  "};\n"                                                                                                         \
  "setp.ne.b32 accumulate, " scale                                                                               \
  ", 0;\n"                                                                                                       \
  "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " " list "a, b, accumulate, 1, 1, " major \
  ", " major                                                                                                     \
  ";"                                                                                                            \
  "\n}\n"

// wgmma.m64nNk16: d[N / 2] float32 accumulators. `overwrite` only writes them, so they need not live before it.
template <Element kElement, int kColumns, Major kMajor>
struct SharedProduct;

template <Element kElement, Major kMajor>
struct SharedProduct<kElement, 64, kMajor> {
  __device__ __forceinline__ static void overwrite(float (&d)[32], Operand a, Operand b) {
    if constexpr (kElement == Element::kBf16) {
      asm volatile(FM3_PRODUCT("64", "bf16", FM3_LIST_32, "%32, %33", "%34, %35", "%36", "0")
                   : FM3_REGISTERS_32(FM3_WRITTEN, d)
                   : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high), "n"(static_cast<int>(kMajor)));
    } else {
      asm volatile(FM3_PRODUCT("64", "f16", FM3_LIST_32, "%32, %33", "%34, %35", "%36", "0")
                   : FM3_REGISTERS_32(FM3_WRITTEN, d)
                   : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high), "n"(static_cast<int>(kMajor)));
    }
  }
  __device__ __forceinline__ static void accumulate(float (&d)[32], Operand a, Operand b) {
    if constexpr (kElement == Element::kBf16) {
      asm volatile(FM3_PRODUCT("64", "bf16", FM3_LIST_32, "%32, %33", "%34, %35", "%36", "1")
                   : FM3_REGISTERS_32(FM3_UPDATED, d)
                   : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high), "n"(static_cast<int>(kMajor)));
    } else {
      asm volatile(FM3_PRODUCT("64", "f16", FM3_LIST_32, "%32, %33", "%34, %35", "%36", "1")
                   : FM3_REGISTERS_32(FM3_UPDATED, d)
                   : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high), "n"(static_cast<int>(kMajor)));
    }
  }
};

template <Element kElement, Major kMajor>
struct SharedProduct<kElement, 32, kMajor> {
  __device__ __forceinline__ static void overwrite(float (&d)[16], Operand a, Operand b) {
    if constexpr (kElement == Element::kBf16) {
      asm volatile(FM3_PRODUCT("32", "bf16", FM3_LIST_16, "%16, %17", "%18, %19", "%20", "0")
                   : FM3_REGISTERS_16(FM3_WRITTEN, d)
                   : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high), "n"(static_cast<int>(kMajor)));
    } else {
      asm volatile(FM3_PRODUCT("32", "f16", FM3_LIST_16, "%16, %17", "%18, %19", "%20", "0")
                   : FM3_REGISTERS_16(FM3_WRITTEN, d)
                   : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high), "n"(static_cast<int>(kMajor)));
    }
  }
  __device__ __forceinline__ static void accumulate(float (&d)[16], Operand a, Operand b) {
    if constexpr (kElement == Element::kBf16) {
      asm volatile(FM3_PRODUCT("32", "bf16", FM3_LIST_16, "%16, %17", "%18, %19", "%20", "1")
                   : FM3_REGISTERS_16(FM3_UPDATED, d)
                   : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high), "n"(static_cast<int>(kMajor)));
    } else {
      asm volatile(FM3_PRODUCT("32", "f16", FM3_LIST_16, "%16, %17", "%18, %19", "%20", "1")
                   : FM3_REGISTERS_16(FM3_UPDATED, d)
                   : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high), "n"(static_cast<int>(kMajor)));
    }
  }
};

#define FM3_HELD_PRODUCT(type, scale)                                         \
  "{\n"                                                                       \
  ".reg .pred accumulate;\n"                                                  \
  ".reg .b64 b;\n"                                                            \
  "mov.b64 b, {%36, %37};\n"                                                  \
  "setp.ne.b32 accumulate, " scale                                            \
  ", 0;\n"                                                                    \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " FM3_LIST_32 \
  "{%32, %33, %34, %35}, b, accumulate, 1, 1, 0;"                             \
  "\n}\n"

// The same with A in registers, four a thread; of B the summed dimension is contiguous.
template <Element kElement, int kColumns>
struct HeldProduct;

template <Element kElement>
struct HeldProduct<kElement, 64> {
  __device__ __forceinline__ static void overwrite(float (&d)[32], const uint32_t* a, Operand b) {
    if constexpr (kElement == Element::kBf16) {
      asm volatile(FM3_HELD_PRODUCT("bf16", "0")
                   : FM3_REGISTERS_32(FM3_WRITTEN, d)
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high));
    } else {
      asm volatile(FM3_HELD_PRODUCT("f16", "0")
                   : FM3_REGISTERS_32(FM3_WRITTEN, d)
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high));
    }
  }
  __device__ __forceinline__ static void accumulate(float (&d)[32], const uint32_t* a, Operand b) {
    if constexpr (kElement == Element::kBf16) {
      asm volatile(FM3_HELD_PRODUCT("bf16", "1")
                   : FM3_REGISTERS_32(FM3_UPDATED, d)
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high));
    } else {
      asm volatile(FM3_HELD_PRODUCT("f16", "1")
                   : FM3_REGISTERS_32(FM3_UPDATED, d)
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high));
    }
  }
};

#undef FM3_HELD_PRODUCT
#undef FM3_REGISTERS_16
#undef FM3_REGISTERS_32
#undef FM3_WRITTEN
#undef FM3_UPDATED
#undef FM3_LIST_16
#undef FM3_LIST_32
#undef FM3_PRODUCT

}  // namespace fm3::ptx
