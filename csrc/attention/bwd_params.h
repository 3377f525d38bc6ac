// The backward problem as its kernels see it: every pointer with its shape.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "attention/bwd_config.h"
#include "attention/fwd_params.h"

namespace fm3::attention {

// What prepare_bwd_mask writes once a mask: which row blocks each key block visits, and in which order key blocks come.
struct BwdLists {
  int num_row_blocks = 0;         // of kBwdRows rows
  const int4* records = nullptr;  // [batch, heads, key blocks]: {key block, first row block, last row block, number of
                                  // row blocks visited}
  const int4* sorted = nullptr;   // the same in the order in which tiles are taken
  const uint2* visits = nullptr;  // [batch, heads, row blocks, key blocks / 32]: {bit p: the key block at place p of
                                  // `sorted` visits this row block, number of such bits in the words before}
};

// Others wait for dK and dV of a chunk of keys: it is done once those of all its blocks, heads and batch entries are
// stored.
struct DoneFlags {
  uint32_t* epochs = nullptr;  // [chunks], set to `epoch` with release order at system scope; nullptr: nobody waits
  uint32_t epoch = 0;
  int blocks_per_chunk = 1;   // key blocks of a chunk
  int32_t* stored = nullptr;  // [chunks], zeroed by the launch: halves of tiles stored
};

struct BwdParams {
  CUtensorMap q;      // {64, rows, head_dim / 64, query heads, batch}; box {64, 64, head_dim / 64, 1, 1}
  CUtensorMap d_out;  // as q
  CUtensorMap k;      // {64, keys, head_dim / 64, kv heads, batch}; box {64, block keys, head_dim / 64, 1, 1}
  CUtensorMap v;      // as k
  CUtensorMap dk;     // as k; box {64, 64, head_dim / 64, 1, 1}
  CUtensorMap dv;     // as dk
  float* dk_float =
      nullptr;  // [batch, keys, kv heads, head_dim] float32, contiguous; where not null it is written in place
  float* dv_float = nullptr;  // of dk; so is this one. For sums that go on elsewhere and are rounded there
  PreparedMask mask;
  BwdLists lists;
  DoneFlags done;
  float* dq_sums = nullptr;  // [batch, query heads, row blocks, kBwdRows * head_dim] float32, in fragment order (see
                             // bwd_dq.cuh); the first key block that visits a row block stores, the others add
  const float* row_terms =
      nullptr;               // [batch, query heads, row blocks, 2, kBwdRows]: -LSE in base 2 (-inf for rows that see
                             // nothing and rows beyond the last), rowsum(dO O) - dLSE; rows in term_place order
  int32_t* turns = nullptr;  // [batch, query heads, row blocks], zero at launch: additions done to each block of
                             // dq_sums, which come in the order of `sorted`
  int32_t* next_tile = nullptr;  // [1], zeroed by the launch: tiles taken
  int batch = 0;
  int num_rows = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int num_tiles = 0;       // batch * kv heads * key blocks
  int section_pairs = 0;   // (batch entry, kv head) pairs worked on side by side, to share Q, dO and dQ in L2
  float scale = 0.f;       // softmax scale, > 0
  float scale_log2 = 0.f;  // softmax scale * log2 e
};

}  // namespace fm3::attention
