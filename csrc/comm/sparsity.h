// The sparsity check: which chunks of keys some row of this rank sees.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace fm3::comm {

struct SparsityParams {
  const int32_t* lts = nullptr;  // [masks, keys] int32, hidden rows [lts, lte); masks = batch * heads
  const int32_t* lte = nullptr;  // [masks, keys]
  const int32_t* uts = nullptr;  // [masks, keys] int32, hidden rows [uts, ute)
  const int32_t* ute = nullptr;  // [masks, keys]
  uint8_t* seen = nullptr;       // [chunks], out: 1 where some row of [0, num_rows) sees some key of the chunk
  int64_t num_masks = 0;
  int64_t num_keys = 0;
  int32_t num_rows = 0;
  int32_t chunk_tokens = 0;  // > 0; the last chunk may be shorter
};

// Fills `seen`, exactly, from all four vectors; returns without waiting.
void find_seen_chunks(const SparsityParams& params, cudaStream_t stream);

}  // namespace fm3::comm
