// The problem a forward launch solves, with the shape beside every pointer.
#pragma once

#include <cuda.h>
#include <vector_types.h>

#include <cstdint>

namespace fm3::attention {

// What mask_prepare writes once a mask, and every kernel that walks blocks reads.
struct PreparedMask {
  int batch = 1;  // 1 or the problem's batch
  int heads = 1;  // 1, kv heads or query heads
  int num_rows = 0;
  int num_keys = 0;
  int num_key_blocks = 0;            // of kBlockKeys keys
  int num_row_blocks = 0;            // of block_rows rows
  const int32_t* columns = nullptr;  // [batch, heads, key blocks, 4, kBlockKeys]: lts, lte, uts, ute; an empty span is
                                     // [kFar, 0), a column behind the last key hides every row
  const int4* extrema = nullptr;     // [batch, heads, key blocks * 2, 2]: of 64 columns, lower span then upper span
  const int4* row_blocks = nullptr;  // [batch, heads, row blocks], most work first: {row block, first key block, last
                                     // key block, number of key blocks visited}
  const uint8_t* keep = nullptr;  // [batch, heads, row blocks, key blocks], 0 where a block is hidden beside what the
                                  // columns hide; nullptr keeps all
};

// Keys and values that arrive while the kernel runs: a block is read when its chunk's epoch has come.
struct ReadyFlags {
  const uint32_t* epochs = nullptr;  // [chunks], written by others with release order; nullptr: all keys are there
  uint32_t epoch = 0;                // ready from this epoch on, counted modulo 2^32
  int blocks_per_chunk = 1;          // key blocks of a chunk
};

struct FwdParams {
  CUtensorMap q;    // {64, rows, head_dim / 64, query heads, batch}; box {64, 64, head_dim / 64, 1, 1}
  CUtensorMap k;    // {64, keys, head_dim / 64, kv heads, batch}; box {64, block keys, head_dim / 64, 1, 1}
  CUtensorMap v;    // as k
  CUtensorMap out;  // as q
  PreparedMask mask;
  ReadyFlags ready;
  float* out_float = nullptr;  // [batch, rows, query heads, head_dim] contiguous, in place of `out` where float_output
  float* lse = nullptr;        // [batch, query heads, rows] float32, natural logarithm
  int32_t* next_tile = nullptr;  // [1], zero at launch: tiles taken beyond each CTA's first
  int batch = 0;
  int num_rows = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int num_tiles = 0;       // batch * query heads * row blocks
  int band_rows = 0;       // row blocks of a band, 1 to mask.num_row_blocks: all pairs' bands come before the next
  int section_pairs = 0;   // (batch entry, query head) pairs that are worked on side by side, to share K and V in L2
  float scale_log2 = 0.f;  // softmax scale * log2 e, > 0
};

}  // namespace fm3::attention
