// The compiled forward kernels, found by what the problem is.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "attention/fwd_config.h"
#include "attention/fwd_params.h"

namespace fm3::attention {

// One compiled kernel: what it serves, how it is cut, how to start it.
struct FwdInstance {
  const char* name;
  FwdConfig config;
  void (*launch)(const FwdParams& params, int num_ctas, cudaStream_t stream);
};

extern const FwdInstance kFwdBf16Dim128;
extern const FwdInstance kFwdFp16Dim128;
extern const FwdInstance kFwdBf16Dim64;
extern const FwdInstance kFwdFp16Dim64;
extern const FwdInstance kFwdBf16Dim128Float;  // float32 output
extern const FwdInstance kFwdFp16Dim128Float;
extern const FwdInstance kFwdBf16Dim64Float;
extern const FwdInstance kFwdFp16Dim64Float;

// The instance of that name, or an Error that lists the known ones.
const FwdInstance& fwd_instance(const std::string& name);
std::vector<const FwdInstance*> fwd_instances();

}  // namespace fm3::attention
