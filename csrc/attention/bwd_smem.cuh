// Shared memory of the backward kernel.
#pragma once

#include <cstdint>

#include "attention/bwd_barriers.cuh"
#include "attention/bwd_config.h"
#include "attention/bwd_queue.cuh"

namespace fm3::attention {

// Where the dQ of a block goes; the loader writes them in the order of the list, for the writers. Consumers are at most
// one block ahead of the writers, and the loader q_stages ahead of the consumers.
constexpr int kDqRing = 8;
struct DqTarget {
  static constexpr int kStop = -1;

  int32_t block;  // as in RowEntry
  int32_t turn;
};

// Overlaps: a tile's dV is staged where dS is, warpgroup w's in ds[w], and its dK where dQ is. A barrier of both
// warpgroups after their last dQ comes before, and one after the stores have left comes before the next tile's first
// dS.
template <BwdConfig kConfig>
struct BwdSmem {
  static constexpr int kKeyBytes = kBlockKeys * kConfig.head_dim * 2;
  static constexpr int kRowBytes = kBwdRows * kConfig.head_dim * 2;
  static constexpr int kColumnBytes = 4 * kBlockKeys * 4;
  static constexpr int kTermBytes = 2 * kBwdRows * 4;
  static constexpr int kDsBytes = kBlockKeys * kBwdRows * 2;
  static constexpr int kHalfDqBytes = kBwdRows * kConfig.head_dim / 2 * 4;
  static_assert(kConfig.q_stages + 3 <= kDqRing);
  static_assert(kDsBytes >= kHalfKeys * kConfig.head_dim * 2 && kHalfDqBytes >= kHalfKeys * kConfig.head_dim * 2);

  alignas(1024) uint8_t k[kKeyBytes];                    // [head_dim / 64][block keys][64], swizzled
  alignas(1024) uint8_t v[kKeyBytes];                    // the same
  alignas(1024) uint8_t q[kConfig.q_stages][kRowBytes];  // [head_dim / 64][64][64], swizzled
  alignas(1024) uint8_t d_out[kConfig.do_stages][kRowBytes];
  alignas(1024) uint8_t ds[2][kDsBytes];                   // [block keys][64 rows], swizzled
  alignas(1024) uint8_t dq[kBwdWarpgroups][kHalfDqBytes];  // float32, DqOrder
  alignas(
      16) int32_t columns[kConfig.q_stages][4 * kBlockKeys];  // lts, lte, uts, ute of the keys in k for the head in q
  alignas(16) float terms[kConfig.q_stages][2][kBwdRows];     // of the rows in q
  RowEntry entries[kConfig.q_stages];                         // what is in q
  KeyTile tiles[kConfig.q_stages];                            // and whose it is
  DqTarget dq_targets[kDqRing];
  int stored_chunk[kBwdWarpgroups];  // of the tile that the warpgroup's first thread stored last and has not counted,
                                     // or -1
  volatile int last_head;            // the generator's own: last query head of its tile that sees any of its keys
  RowQueueStage queue[kBwdQueueStages];
  BwdBarriers<kConfig> barriers;
#ifdef FM3_WATCHDOG
  int consumers_left;  // consumer threads that have not finished
#endif
};

}  // namespace fm3::attention
