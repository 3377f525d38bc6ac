// The pull kernel: a few CTAs copy chunks of keys and values from the ranks that have them, whichever has landed first.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "comm/device_wait.h"
#include "comm/slots.h"

namespace fm3::comm {

struct PulledChunk {
  const uint8_t* source = nullptr;  // the source's exchange buffer as this device sees it; nullptr: NVSHMEM fetches
  int32_t source_rank = -1;
  int32_t source_slot = 0;
  int32_t slot = 0;          // here; also the place of its ready flag
  int32_t num_tokens = 0;    // at most chunk_tokens; the rest of the slot is left as it is
  int32_t landed = 0;        // word of `landed` that says that it may be read at the source
  int32_t first_reader = 0;  // ranks that read it here, in `readers`
  int32_t num_readers = 0;
  int32_t padding = 0;
};

// A rank that reads a chunk from here, to be told in its word of `landed`.
struct Reader {
  int32_t rank = -1;
  int32_t landed = 0;
};

struct PullParams {
  const PulledChunk* chunks = nullptr;  // [num_chunks], wanted first things first
  const Reader* readers = nullptr;      // [all chunks' readers]
  const uint8_t* seen = nullptr;        // [num_slots], 0: no row of this rank sees it; nullptr: all are seen
  uint8_t* buffer = nullptr;            // the exchange buffer, symmetric
  uint64_t* landed = nullptr;           // [words], symmetric: epochs
  uint32_t* ready = nullptr;            // [num_slots]: epochs modulo 2^32, read by the attention kernel
  uint32_t* finished_ctas = nullptr;    // [num_slots], zero; left zero
  uint32_t* resident_ctas = nullptr;    // [1], counts the CTAs that run; nullptr: nobody asks
  SlotLayout layout;
  WaitLimit limit;
  uint64_t epoch = 0;
  int32_t num_chunks = 0;  // at most kMostPulledChunks
};

inline constexpr int kMostPulledChunks = 1 << 16;

// Copies every chunk that is seen here or read by others; returns without waiting. A chunk's ready flag is set once
// all of it is in place, then its readers are told. A chunk that is not needed is ready at once. When the time is over
// the report says what did not come, and what is missing becomes ready as NaN, so that nobody waits for ever.
void pull(const PullParams& params, int num_ctas, cudaStream_t stream);

}  // namespace fm3::comm
