#include "attention/bwd_kernel.cuh"

namespace fm3::attention {
constexpr BwdConfig kConfig{.dtype = Dtype::kFp16,
                            .head_dim = 64,
                            .q_stages = 4,
                            .do_stages = 4,
                            .producer_registers = 40,
                            .consumer_registers = 232};

__global__ void __launch_bounds__(kConfig.num_threads(), 1) bwd_fp16_dim64(const __grid_constant__ BwdParams params) {
  run_bwd<kConfig>(params);
}

const BwdInstance kBwdFp16Dim64{"fp16_dim64", kConfig, launch_bwd<kConfig, bwd_fp16_dim64>};
}  // namespace fm3::attention
