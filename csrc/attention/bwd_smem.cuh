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

// A place in that ring, one word that is written and read whole: it says itself which round of the ring it is of, so
// that a writer can learn where the next block goes before that is there.
class DqPlace {
 public:
  __device__ void clear() { word_ = 0; }
  __device__ void set(const DqTarget& target, uint32_t n) {
    word_ = static_cast<uint64_t>(static_cast<uint32_t>(target.block)) << 32 |
            (static_cast<uint32_t>(target.turn) << 1 | round_of(n));
  }
  // The target of the n-th block, once the loader has come to it.
  __device__ DqTarget await(uint32_t n) const {
    uint64_t word = word_;
    while ((static_cast<uint32_t>(word) & 1) != round_of(n)) word = word_;
    return {static_cast<int32_t>(word >> 32), static_cast<int32_t>(static_cast<uint32_t>(word) >> 1)};
  }

 private:
  __device__ static uint32_t round_of(uint32_t n) { return (n / kDqRing + 1) % 2; }

  volatile uint64_t word_;
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
  DqPlace dq_places[kDqRing];
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
