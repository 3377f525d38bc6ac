// Shared-memory operands of warpgroup products (PTX ISA, "Shared Memory Matrix Layout", "Matrix Descriptor Format").
//
// Every operand tile here is stored by the copy engine as [columns / 64][rows][64] 16-bit values with the 128-byte
// swizzle: a row of 64 values is 128 bytes, eight rows form a 1024-byte pattern in which the 16-byte word w of row r
// lies at w ^ (r % 8). The tile must start on a 1024-byte boundary.
#pragma once

#include <cstdint>

#include "ptx/wgmma.cuh"

namespace fm3::tile {

constexpr int kPanelColumns = 64;    // 16-bit values in one swizzled row
constexpr int kPanelRowBytes = 128;  // the same in bytes
constexpr int kPatternBytes = 1024;  // eight swizzled rows

// Bits 0-13 address, 16-29 leading byte offset, 32-45 stride byte offset (all in 16-byte units), 62-63 swizzle.
__device__ __forceinline__ ptx::Operand make_operand(uint32_t address, uint32_t leading_bytes, uint32_t stride_bytes) {
  constexpr uint32_t kSwizzle128 = 1u << 30;
  return {(leading_bytes >> 4 << 16) | ((address & 0x3FFFF) >> 4), kSwizzle128 | (stride_bytes >> 4)};
}

// Operand whose summed dimension is the contiguous one (Q and K in Q K^T). `rows_in_tile` is the height of a panel.
__device__ __forceinline__ ptx::Operand k_major(uint32_t address) { return make_operand(address, 16, kPatternBytes); }

// The same operand, moved on by `step` products of 16 summed columns.
__host__ __device__ constexpr uint32_t k_major_step(int step, int rows_in_tile) {
  return ((step / 4) * rows_in_tile * kPanelRowBytes + (step % 4) * 32) >> 4;
}

// Operand whose summed dimension is the row (V in P V): panels of 64 columns lie rows_in_tile * 128 bytes apart.
__device__ __forceinline__ ptx::Operand mn_major(uint32_t address, int rows_in_tile) {
  return make_operand(address, rows_in_tile * kPanelRowBytes, kPatternBytes);
}

// The same operand, moved on by `step` products of 16 summed rows.
__host__ __device__ constexpr uint32_t mn_major_step(int step) { return (step * 16 * kPanelRowBytes) >> 4; }

// Byte offset of the 16-byte word `word` of row `row` within one panel.
__device__ __forceinline__ uint32_t swizzled_offset(int row, int word) {
  return row * kPanelRowBytes + ((word ^ (row & 7)) << 4);
}

}  // namespace fm3::tile
