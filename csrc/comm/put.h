// The put kernel: partial gradients leave chunk by chunk for the ranks that add them, as soon as each is final.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "comm/device_wait.h"
#include "comm/slots.h"

namespace fm3::comm {

enum class Wire : int32_t { kFloat32 = 0, kBfloat16 = 1 };

struct PutChunk {
  uint8_t* target = nullptr;  // the target's exchange buffer as this device sees it; nullptr: NVSHMEM puts
  int32_t target_rank = -1;
  int32_t contribution = 0;  // slot of this rank's partial there
  int32_t slot = 0;          // of the partial here
  int32_t num_tokens = 0;
  int32_t final_flag = 0;  // flag of `final` that says that the partial is
  int32_t opened = 0;      // word of `words`: the target takes partials of this epoch
  int32_t bits = 0;        // word of the target's bitmask in which this rank has a bit
  int32_t padding = 0;
};

struct PutParams {
  const PutChunk* chunks = nullptr;   // [num_chunks], in the order in which they get final
  const float* dk = nullptr;          // [batch, slots, chunk tokens, heads, key dim] of this rank
  const float* dv = nullptr;          // [batch, slots, chunk tokens, heads, value dim]
  uint32_t* final = nullptr;          // [flags]: epochs, set by the backward kernel (work_done) and by the reduction
  uint64_t* words = nullptr;          // symmetric
  uint8_t* buffer = nullptr;          // symmetric
  uint32_t* finished_ctas = nullptr;  // [num_chunks], zero; left zero
  SlotLayout layout;                  // of dk and dv, in float32: token bytes are 4 * heads * dim
  WaitLimit limit;
  uint64_t epoch = 0;
  int64_t contributions_start = 0;  // bytes from the start of the buffer
  int64_t contribution_bytes = 0;   // from contribution to contribution, a multiple of 128
  int64_t staging_start = 0;        // one contribution a chunk, for what NVSHMEM puts
  Wire wire = Wire::kFloat32;
  int32_t rank = -1;
  int32_t num_chunks = 0;
};

// Puts every chunk's partial into its slot at the target and then sets this rank's bit there; returns without waiting.
// A contribution is dK [batch, tokens, heads, dim] and dV behind it, without gaps, in the wire's type.
void put(const PutParams& params, int num_ctas, cudaStream_t stream);

}  // namespace fm3::comm
