#include "attention/bwd_kernel.cuh"

namespace fm3::attention {
constexpr BwdConfig kConfig{.dtype = Dtype::kFp16,
                            .head_dim = 128,
                            .q_stages = 3,
                            .do_stages = 2,
                            .producer_registers = 24,
                            .consumer_registers = 240};

__global__ void __launch_bounds__(kConfig.num_threads(), 1) bwd_fp16_dim128(const __grid_constant__ BwdParams params) {
  run_bwd<kConfig>(params);
}

const BwdInstance kBwdFp16Dim128{"fp16_dim128", kConfig, launch_bwd<kConfig, bwd_fp16_dim128>};
}  // namespace fm3::attention
