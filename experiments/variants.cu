#include "attention/fwd_kernel.cuh"
#include <map>
#include <string>
namespace fm3::attention {
#define VARIANT(name, ...)                                                                            \
  constexpr FwdConfig kConfig_##name{__VA_ARGS__};                                                    \
  __global__ void __launch_bounds__(kConfig_##name.num_threads(), 1)                                  \
      fwd_##name(const __grid_constant__ FwdParams params) { run_fwd<kConfig_##name>(params); }       \
  const FwdInstance kFwd_##name{kConfig_##name, launch_fwd<kConfig_##name, fwd_##name>};
VARIANT(bf16_dim128_np, .dtype = Dtype::kBf16, .head_dim = 128, .consumer_warpgroups = 2, .stages = 2,
        .producer_registers = 40, .consumer_registers = 232, .ping_pong = false)
void add_experiments(std::map<std::string, const FwdInstance*>& all) {
  all["bf16_dim128_np"] = &kFwd_bf16_dim128_np;
}
}
