// Words of other ranks from kernels: signals, atomic operations, and waits for this rank's own words.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "comm/device_wait.h"

namespace fm3::comm {

struct Signal {
  int32_t rank = -1;
  int32_t word = 0;
};

struct SignalParams {
  const Signal* signals = nullptr;  // [num_signals]
  uint64_t* words = nullptr;        // symmetric
  uint64_t value = 0;
  int32_t num_signals = 0;
};

// Sets words of other ranks, after what earlier work of the stream has stored; returns without waiting.
void signal(const SignalParams& params, cudaStream_t stream);

struct AwaitParams {
  const Signal* awaited = nullptr;  // [num_awaited]: this rank's words, and who sets them
  uint64_t* words = nullptr;
  WaitLimit limit;
  WaitKind kind = WaitKind::kWord;
  uint64_t value = 0;
  int32_t num_awaited = 0;
};

// Holds up the stream until all words are at least `value`, or the time is over; returns without waiting.
void await(const AwaitParams& params, cudaStream_t stream);

enum class Fetch : int32_t { kOr = 0, kAdd = 1 };

// Changes a symmetric word of a rank atomically and stores what it was in `result`, which the host sees.
void fetch(Fetch operation, uint64_t* word, uint64_t value, int rank, uint64_t* result, cudaStream_t stream);

}  // namespace fm3::comm
