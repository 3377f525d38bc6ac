// Whether keys that arrive while a kernel runs are there.
#pragma once

#include <cstdint>

#include "attention/fwd_params.h"
#include "ptx/sync.cuh"

namespace fm3::attention {

// Whether a chunk has arrived; if so, this thread sees its keys and values, the copy engine does behind a proxy fence.
__device__ inline bool has_arrived(const ReadyFlags& ready, int chunk) {
  return static_cast<int32_t>(ptx::load_acquire_system(ready.epochs + chunk) - ready.epoch) >= 0;
}

}  // namespace fm3::attention
