// Which tile comes when: CTAs take the next one from a global counter, heaviest row blocks first.
#pragma once

#include <cstdint>

#include "attention/block_queue.cuh"
#include "attention/fwd_params.h"

namespace fm3::attention {

// The order of tiles: sections of `section_pairs` (batch entry, query head) pairs whose K and V fit in L2 together;
// within a section row blocks by falling work, and for each the section's pairs side by side.
struct ScheduledTile {
  Tile tile;
  int64_t mask_head;  // index into [batch, heads] of the prepared mask
  int4 row_block;     // its record there
};

__device__ inline ScheduledTile locate_tile(const FwdParams& params, int index) {
  const int row_blocks = params.mask.num_row_blocks;
  const int num_pairs = params.batch * params.query_heads;
  const int section = index / (row_blocks * params.section_pairs);
  const int first_pair = section * params.section_pairs;
  const int pairs = min(params.section_pairs, num_pairs - first_pair);
  const int within = index - first_pair * row_blocks;
  const int rank = within / pairs;
  const int pair = first_pair + within - rank * pairs;

  ScheduledTile scheduled;
  scheduled.tile.batch = pair / params.query_heads;
  scheduled.tile.head = pair - scheduled.tile.batch * params.query_heads;
  const int mask_batch = params.mask.batch == 1 ? 0 : scheduled.tile.batch;
  const int mask_head = scheduled.tile.head * params.mask.heads / params.query_heads;
  scheduled.mask_head = static_cast<int64_t>(mask_batch) * params.mask.heads + mask_head;
  scheduled.row_block = params.mask.row_blocks[scheduled.mask_head * row_blocks + rank];
  scheduled.tile.row_block = scheduled.row_block.x;
  return scheduled;
}

}  // namespace fm3::attention
