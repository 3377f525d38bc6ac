// Shared memory of the forward kernel.
#pragma once

#include <cstdint>

#include "attention/barriers.cuh"
#include "attention/block_queue.cuh"
#include "attention/fwd_config.h"

namespace fm3::attention {

// One overlap: a warpgroup's output is staged where its rows of Q were. Its last product with those rows is over then,
// and the stage is handed back only when the output has left.
template <FwdConfig kConfig>
struct FwdSmem {
  static constexpr int kBlockBytes = kBlockKeys * kConfig.head_dim * 2;
  static constexpr int kColumnBytes = 4 * kBlockKeys * 4;

  static constexpr int kGroupBytes = 64 * kConfig.head_dim * 2;

  alignas(1024) uint8_t q[kRowStages][kConfig.consumer_warpgroups][kGroupBytes];  // [head_dim / 64][64][64], swizzled
  alignas(1024) uint8_t k[kConfig.stages][kBlockBytes];         // [head_dim / 64][block keys][64], swizzled
  alignas(1024) uint8_t v[kConfig.stages][kBlockBytes];         // the same
  alignas(16) int32_t columns[kConfig.stages][4 * kBlockKeys];  // lts, lte, uts, ute of the keys in k
  BlockEntry entries[kConfig.stages];                           // what is in k
  Tile tiles[kRowStages];                                       // what is in q
  QueueStage queue[kQueueStages];
  FwdBarriers<kConfig> barriers;
#ifdef FM3_WATCHDOG
  int consumers_left;  // consumer threads that have not finished
#endif
};

}  // namespace fm3::attention
