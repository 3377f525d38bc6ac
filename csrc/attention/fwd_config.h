// The choices of a forward kernel, made at compile time.
#pragma once

namespace fm3::attention {

constexpr int kBlockKeys = 128;  // keys of a block, of every config: the prepared mask is laid out by it
constexpr int kHalfKeys = kBlockKeys / 2;

enum class Dtype { kBf16, kFp16 };

struct FwdConfig {
  Dtype dtype = Dtype::kBf16;
  int head_dim = 128;
  int consumer_warpgroups = 2;  // each takes 64 rows
  int stages = 2;               // of K and of V
  int producer_registers = 40;
  int consumer_registers = 232;
  bool float_output = false;  // float32 straight from registers, in place of the inputs' dtype by way of Q's room
  bool ping_pong = true;      // consumers take turns at issuing products

  constexpr int block_rows() const { return 64 * consumer_warpgroups; }
  constexpr int num_threads() const { return 128 * (1 + consumer_warpgroups); }
  constexpr bool is_valid() const {
    return head_dim % 64 == 0 && head_dim <= 256 && stages >= 2 && consumer_warpgroups >= 1 &&
           consumer_warpgroups <= 4 && producer_registers % 8 == 0 && consumer_registers % 8 == 0 &&
           128 * (producer_registers + consumer_warpgroups * consumer_registers) <= 65536;
  }
};

}  // namespace fm3::attention
