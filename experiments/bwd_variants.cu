// Variants of the backward kernel that are measured, not shipped.
#include <map>
#include <string>

#include "attention/bwd_kernel.cuh"

namespace fm3::attention {
namespace direct {
constexpr BwdConfig kConfig{.dtype = Dtype::kBf16, .head_dim = 128, .q_stages = 3, .do_stages = 2,
                            .producer_registers = 24, .consumer_registers = 240, .dq_path = DqPath::kDirect};
__global__ void __launch_bounds__(kConfig.num_threads(), 1)
    bwd_bf16_dim128_direct(const __grid_constant__ BwdParams params) {
  run_bwd<kConfig>(params);
}
const BwdInstance kInstance{kConfig, launch_bwd<kConfig, bwd_bf16_dim128_direct>};
}  // namespace direct

void add_bwd_experiments(std::map<std::string, const BwdInstance*>& known) {
  known["bf16_dim128_direct"] = &direct::kInstance;
}
}  // namespace fm3::attention
