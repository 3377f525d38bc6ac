// The choices of a backward kernel, made at compile time.
#pragma once

#include "attention/fwd_config.h"

namespace fm3::attention {

constexpr int kBwdRows = 64;         // query rows of a block
constexpr int kBwdWarpgroups = 2;    // consumers, kHalfKeys keys each
constexpr int kBwdBlocksOfKeep = 2;  // blocks of kBwdRows rows in a row block of the prepared mask

struct BwdConfig {
  Dtype dtype;
  int head_dim;
  int q_stages;
  int do_stages;
  int producer_registers;
  int consumer_registers;

  constexpr int num_threads() const { return 128 * (1 + kBwdWarpgroups); }
  constexpr bool is_valid() const {
    return (head_dim == 64 || head_dim == 128) && q_stages >= 2 && do_stages >= 2 && producer_registers % 8 == 0 &&
           consumer_registers % 8 == 0 && 128 * (producer_registers + kBwdWarpgroups * consumer_registers) <= 65536;
  }
};

}  // namespace fm3::attention
