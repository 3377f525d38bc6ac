#include "attention/fwd_kernel.cuh"

namespace fm3::attention {
constexpr FwdConfig kConfig{.dtype = Dtype::kFp16, .head_dim = 128, .stages = 2, .float_output = true};

__global__ void __launch_bounds__(kConfig.num_threads(), 1)
    fwd_fp16_dim128_float(const __grid_constant__ FwdParams params) {
  run_fwd<kConfig>(params);
}

const FwdInstance kFwdFp16Dim128Float{"fp16_dim128_float", kConfig, launch_fwd<kConfig, fwd_fp16_dim128_float>};
}  // namespace fm3::attention
