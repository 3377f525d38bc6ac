// Which tile comes when: CTAs take the next one from a global counter.
#pragma once

#include <cstdint>

#include "attention/block_queue.cuh"
#include "attention/fwd_params.h"

namespace fm3::attention {

// The order of tiles: bands of `band_rows` row blocks, as the prepared mask orders them (one band of all, unless keys
// arrive late); in a band sections of `section_pairs` (batch entry, query head) pairs whose K and V fit in L2 together;
// in a section one row block after the other, and for each the section's pairs side by side.
struct ScheduledTile {
  Tile tile;
  int64_t mask_head;  // index into [batch, heads] of the prepared mask
  int4 row_block;     // its record there
};

// In unsigned numbers: signed divisions need more registers than the generator has.
__device__ inline ScheduledTile locate_tile(const FwdParams& params, uint32_t index) {
  const uint32_t row_blocks = params.mask.num_row_blocks, query_heads = params.query_heads;
  const uint32_t num_pairs = params.batch * query_heads, band_rows = params.band_rows;
  const uint32_t first_rank = index / (band_rows * num_pairs) * band_rows;
  const uint32_t ranks = min(band_rows, row_blocks - first_rank);
  const uint32_t in_band = index - first_rank * num_pairs;
  const uint32_t section_pairs = params.section_pairs;
  const uint32_t first_pair = in_band / (ranks * section_pairs) * section_pairs;
  const uint32_t pairs = min(section_pairs, num_pairs - first_pair);
  const uint32_t in_section = in_band - first_pair * ranks;
  const uint32_t rank = in_section / pairs;
  const uint32_t pair = first_pair + in_section - rank * pairs;

  ScheduledTile scheduled;
  scheduled.tile.batch = pair / query_heads;
  scheduled.tile.head = pair - scheduled.tile.batch * query_heads;
  const int mask_batch = params.mask.batch == 1 ? 0 : scheduled.tile.batch;
  const int mask_head = scheduled.tile.head * params.mask.heads / params.query_heads;
  scheduled.mask_head = static_cast<int64_t>(mask_batch) * params.mask.heads + mask_head;
  scheduled.row_block = params.mask.row_blocks[scheduled.mask_head * row_blocks + first_rank + rank];
  scheduled.tile.row_block = scheduled.row_block.x;
  return scheduled;
}

}  // namespace fm3::attention
