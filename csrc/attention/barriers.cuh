// Every barrier of the forward kernel: who arrives, who waits.
#pragma once

#include "attention/fwd_config.h"
#include "tile/barrier.cuh"

namespace fm3::attention {

// Hardware barriers 1..15 (0 is __syncthreads).
enum class NamedBarrier : int {
  kTurn = 1,    // + warpgroup: that one waits for its turn to issue products; the one before it arrives
  kOutput = 5,  // + warpgroup: its four warps, around the staged output
};

constexpr int kQueueStages = 4;
constexpr int kRowStages = 2;  // of Q, and of the output that takes its place

template <FwdConfig kConfig>
struct FwdBarriers {
  // arrives | waits
  tile::Barrier queue_full[kQueueStages];   // generator, 1 | loader
  tile::Barrier queue_empty[kQueueStages];  // loader, 1 | generator
  tile::Barrier q_full[kRowStages];         // loader, 1 + bytes of Q | consumers
  tile::Barrier q_empty[kRowStages];        // one thread of each consumer warpgroup | loader
  tile::Barrier k_full[kConfig.stages];     // loader, 1 + bytes of K and of the columns | consumers
  tile::Barrier k_empty[kConfig.stages];    // every consumer warp | loader
  tile::Barrier v_full[kConfig.stages];     // loader, 1 + bytes of V | consumers
  tile::Barrier v_empty[kConfig.stages];    // every consumer warp | loader

  __device__ void init() {
    constexpr int kConsumerWarps = 4 * kConfig.consumer_warpgroups;
    for (int i = 0; i < kQueueStages; ++i) {
      queue_full[i].init(1);
      queue_empty[i].init(1);
    }
    for (int i = 0; i < kRowStages; ++i) {
      q_full[i].init(1);
      q_empty[i].init(kConfig.consumer_warpgroups);
    }
    for (int i = 0; i < kConfig.stages; ++i) {
      k_full[i].init(1);
      k_empty[i].init(kConsumerWarps);
      v_full[i].init(1);
      v_empty[i].init(kConsumerWarps);
    }
  }
};

}  // namespace fm3::attention
