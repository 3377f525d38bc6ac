// Every barrier of the backward kernel: who arrives, who waits.
#pragma once

#include "attention/bwd_config.h"
#include "tile/barrier.cuh"

namespace fm3::attention {

// Hardware barriers 1..15 (0 is __syncthreads).
enum class BwdNamedBarrier : int {
  kConsumers = 1,  // both warpgroups: dS is written; the room of dS and of staged output is free
  kOutput = 2,     // + warpgroup: its four warps, around the staged dK and dV
};

constexpr int kBwdQueueStages = 4;
constexpr int kDqWriters = 2;  // take turns at blocks: an addition in order takes longer than a block

template <BwdConfig kConfig>
struct BwdBarriers {
  // arrives | waits
  tile::Barrier queue_full[kBwdQueueStages];   // generator, 1 | loader
  tile::Barrier queue_empty[kBwdQueueStages];  // loader, 1 | generator
  tile::Barrier k_full;                        // loader, 1 + bytes of K | consumers
  tile::Barrier k_empty;                       // every consumer warp | loader
  tile::Barrier v_full;                        // loader, 1 + bytes of V | consumers
  tile::Barrier v_empty;                       // every consumer warp | loader
  tile::Barrier q_full[kConfig.q_stages];      // loader, 1 + bytes of Q, row terms, mask columns | consumers
  tile::Barrier q_empty[kConfig.q_stages];     // every consumer warp | loader
  tile::Barrier do_full[kConfig.do_stages];    // loader, 1 + bytes of dO | consumers
  tile::Barrier do_empty[kConfig.do_stages];   // every consumer warp | loader
  tile::Barrier dq_full[kDqWriters];           // every consumer warp | the writer whose block it is
  tile::Barrier dq_empty[kDqWriters];          // that writer, 1 | consumers

  __device__ void init() {
    constexpr int kConsumerWarps = 4 * kBwdWarpgroups;
    for (int i = 0; i < kBwdQueueStages; ++i) {
      queue_full[i].init(1);
      queue_empty[i].init(1);
    }
    for (int i = 0; i < kDqWriters; ++i) {
      dq_full[i].init(kConsumerWarps);
      dq_empty[i].init(1);
    }
    k_full.init(1);
    k_empty.init(kConsumerWarps);
    v_full.init(1);
    v_empty.init(kConsumerWarps);
    for (int i = 0; i < kConfig.q_stages; ++i) {
      q_full[i].init(1);
      q_empty[i].init(kConsumerWarps);
    }
    for (int i = 0; i < kConfig.do_stages; ++i) {
      do_full[i].init(1);
      do_empty[i].init(kConsumerWarps);
    }
  }
};

}  // namespace fm3::attention
