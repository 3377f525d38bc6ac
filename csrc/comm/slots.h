// Where chunks of keys and values lie in the exchange buffer: the same on every rank.
#pragma once

#include <cstdint>

namespace fm3::comm {

// Keys are [batch, slots, chunk tokens, heads, dim], values likewise behind them. So a slot's tokens follow those of
// the slot before in each batch entry, and the first slots are one tensor [batch, tokens, heads, dim] with strides.
struct SlotLayout {
  int64_t k_start = 0;        // bytes from the start of the buffer, a multiple of 128
  int64_t v_start = 0;        // likewise
  int64_t k_token_bytes = 0;  // heads * dim * element bytes, a multiple of 16
  int64_t v_token_bytes = 0;
  int32_t batch = 0;
  int32_t num_slots = 0;
  int32_t chunk_tokens = 0;
};

}  // namespace fm3::comm
