// The one list of blocks that every role of the backward kernel walks.
#pragma once

#include <cstdint>

namespace fm3::attention {

constexpr int kBwdQueueEntries = 32;  // of one queue stage: what one warp classifies at a time

// One row block that some key of the tile is seen by. A tile that nobody sees has one entry without flags; behind the
// last tile comes one entry that stops.
struct alignas(16) RowEntry {
  static constexpr uint32_t kLast = 1u << 31;   // of its tile
  static constexpr uint32_t kFirst = 1u << 30;  // of its tile
  static constexpr uint32_t kStop = 1u << 29;
  static constexpr uint32_t kOddKeys = 1u << 28;  // set by the loader: parity of the phase that brings the tile's keys

  static constexpr uint32_t kRowBlock = kOddKeys - 1;

  uint32_t row_block_and_marks = 0;
  uint32_t flags = 0;  // BlockFlag, kFlagBits of each warpgroup
  int32_t block = 0;   // (batch entry * query heads + head) * row blocks + row block
  int32_t turn = 0;    // how many key blocks add to this block's dQ before this one

  __device__ int row_block() const { return static_cast<int>(row_block_and_marks & kRowBlock); }
  __device__ bool is_last() const { return (row_block_and_marks & kLast) != 0; }
  __device__ bool is_first() const { return (row_block_and_marks & kFirst) != 0; }
  __device__ bool stops() const { return (row_block_and_marks & kStop) != 0; }
};

// One block of keys of one kv head, and the query head whose rows meet it.
struct KeyTile {
  int batch = 0;
  int kv_head = 0;
  int key_block = 0;
  int head = 0;
};

struct RowQueueStage {
  RowEntry entries[kBwdQueueEntries];
  KeyTile tile;
  int count;  // entries in this stage, all of one query head
};

}  // namespace fm3::attention
