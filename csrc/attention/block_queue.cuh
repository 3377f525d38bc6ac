// The one list of blocks that every role of the forward kernel walks.
#pragma once

#include <cstdint>

namespace fm3::attention {

constexpr int kQueueEntries = 32;  // of one queue stage: what one warp classifies at a time

// One key block that some warpgroup of the tile sees. A tile that sees nothing has one entry without flags; behind the
// last tile comes one entry that stops.
struct BlockEntry {
  static constexpr uint32_t kLast = 1u << 31;   // of its tile
  static constexpr uint32_t kFirst = 1u << 30;  // of its tile
  static constexpr uint32_t kStop = 1u << 29;
  static constexpr uint32_t kArrived = 1u << 28;  // the generator saw that its keys and values are there

  uint32_t key_block_and_marks = 0;
  uint32_t flags = 0;  // BlockFlag, kFlagBits of each warpgroup

  __device__ int key_block() const { return static_cast<int>(key_block_and_marks & (kArrived - 1)); }
  __device__ bool is_last() const { return (key_block_and_marks & kLast) != 0; }
  __device__ bool is_first() const { return (key_block_and_marks & kFirst) != 0; }
  __device__ bool stops() const { return (key_block_and_marks & kStop) != 0; }
  __device__ bool has_arrived() const { return (key_block_and_marks & kArrived) != 0; }
};

// One block of rows of one query head.
struct Tile {
  int batch = 0;
  int head = 0;
  int row_block = 0;
};

struct QueueStage {
  Tile tile;
  int count;         // entries in this stage
  bool brings_news;  // keys that have arrived since the stage before may be among them
  BlockEntry entries[kQueueEntries];
};

}  // namespace fm3::attention
