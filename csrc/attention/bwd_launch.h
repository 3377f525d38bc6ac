// The compiled backward kernels, found by what the problem is.
#pragma once

#include <cuda_runtime.h>

#include "attention/bwd_config.h"
#include "attention/bwd_params.h"

namespace fm3::attention {

// One compiled kernel: what it serves, how to start it.
struct BwdInstance {
  BwdConfig config;
  void (*launch)(const BwdParams& params, int num_ctas, cudaStream_t stream);
};

extern const BwdInstance kBwdBf16Dim128;
extern const BwdInstance kBwdFp16Dim128;
extern const BwdInstance kBwdBf16Dim64;
extern const BwdInstance kBwdFp16Dim64;

}  // namespace fm3::attention
