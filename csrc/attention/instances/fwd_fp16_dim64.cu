#include "attention/fwd_kernel.cuh"

namespace fm3::attention {
constexpr FwdConfig kConfig{.dtype = Dtype::kFp16, .head_dim = 64, .stages = 4};

__global__ void __launch_bounds__(kConfig.num_threads(), 1) fwd_fp16_dim64(const __grid_constant__ FwdParams params) {
  run_fwd<kConfig>(params);
}

const FwdInstance kFwdFp16Dim64{"fp16_dim64", kConfig, launch_fwd<kConfig, fwd_fp16_dim64>};
}  // namespace fm3::attention
