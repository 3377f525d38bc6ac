// The one list of blocks that every role of the forward kernel walks.
#pragma once

#include <cstdint>

namespace fm3::attention {

constexpr int kQueueEntries = 32;  // of one queue stage: what one warp classifies at a time

// One key block that some warpgroup of the tile sees.
struct BlockEntry {
  uint32_t key_block_and_last;  // bit 31: the tile's last entry
  uint32_t flags;               // BlockFlag, kFlagBits of each warpgroup

  __device__ static BlockEntry make(int key_block, bool is_last, uint32_t flags) {
    return {static_cast<uint32_t>(key_block) | (is_last ? 1u << 31 : 0), flags};
  }
  __device__ int key_block() const { return static_cast<int>(key_block_and_last & 0x7fffffff); }
  __device__ bool is_last() const { return key_block_and_last >> 31; }
};

enum class TileState : int { kBlocks, kEmpty, kStop };  // kEmpty: no entry; kStop: no tile follows

// One block of rows of one query head.
struct Tile {
  int batch = 0;
  int head = 0;
  int row_block = 0;
  TileState state = TileState::kStop;
};

struct QueueStage {
  Tile tile;
  int count;         // entries in this stage
  bool starts_tile;  // the tile's first stage
  BlockEntry entries[kQueueEntries];
};

}  // namespace fm3::attention
