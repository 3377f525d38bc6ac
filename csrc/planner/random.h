// The one source of chance: a 64-bit linear congruential generator, the same on every machine.
#pragma once

#include <cstdint>

namespace fm3::planner {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // The upper half of the next state; multiplier and increment are Knuth's MMIX.
  uint32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 32);
  }

  // A number of 0..limit-1.
  int32_t below(int32_t limit) {
    return static_cast<int32_t>((static_cast<uint64_t>(next()) * static_cast<uint64_t>(limit)) >> 32);
  }

 private:
  uint64_t state_;
};

}  // namespace fm3::planner
