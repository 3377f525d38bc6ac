// The compiled backward kernels, found by what the problem is.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "attention/bwd_config.h"
#include "attention/bwd_params.h"

namespace fm3::attention {

// One compiled kernel: what it serves, how to start it.
struct BwdInstance {
  const char* name;
  BwdConfig config;
  void (*launch)(const BwdParams& params, int num_ctas, cudaStream_t stream);
};

extern const BwdInstance kBwdBf16Dim128;
extern const BwdInstance kBwdFp16Dim128;
extern const BwdInstance kBwdBf16Dim64;
extern const BwdInstance kBwdFp16Dim64;

// The instance of that name, or an Error that lists the known ones.
const BwdInstance& bwd_instance(const std::string& name);
std::vector<const BwdInstance*> bwd_instances();

}  // namespace fm3::attention
