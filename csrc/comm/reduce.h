// The reduction kernel: adds the partials of a chunk in ascending order of rank, in float32, when all have come.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "comm/device_wait.h"
#include "comm/put.h"
#include "comm/slots.h"

namespace fm3::comm {

struct SummedChunk {
  int32_t first_contribution = 0;  // slots [first, first + num), ascending by rank
  int32_t num_contributions = 0;
  int32_t own_place = -1;  // contributions before this rank's own partial; -1: it has none
  int32_t slot = 0;        // of the own partial and of the sum
  int32_t num_tokens = 0;
  int32_t bits = 0;       // first word of its bitmask
  int32_t expected = 0;   // place of its expected words in `expected`
  int32_t summed = 0;     // flag of `final` to set when the sum is there: a relay's put waits for it
  int32_t own_final = 0;  // flag of `final` that says that the own partial is
  int32_t padding = 0;
};

struct ReduceParams {
  const SummedChunk* chunks = nullptr;  // [num_chunks]
  const uint64_t* expected = nullptr;   // [all chunks' words]: bits of the contributors
  const uint8_t* buffer = nullptr;      // this rank's exchange buffer
  uint64_t* words = nullptr;            // symmetric
  uint32_t* final = nullptr;            // [flags]
  float* dk = nullptr;                  // as in PutParams: own partials, replaced by the sums
  float* dv = nullptr;
  uint32_t* finished_ctas = nullptr;  // [num_chunks], zero; left zero
  SlotLayout layout;                  // as in PutParams
  WaitLimit limit;
  uint64_t epoch = 0;
  int64_t contributions_start = 0;
  int64_t contribution_bytes = 0;
  Wire wire = Wire::kFloat32;
  int32_t rank = -1;
  int32_t words_per_mask = 0;  // ceil(ranks / 64)
  int32_t num_chunks = 0;
};

// Adds every chunk and clears its bitmask for the next epoch; returns without waiting. When the time is over the report
// says what did not come, and sums that are missing become NaN.
void reduce(const ReduceParams& params, int num_ctas, cudaStream_t stream);

}  // namespace fm3::comm
