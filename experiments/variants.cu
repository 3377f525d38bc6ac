#include "attention/fwd_kernel.cuh"
#include <map>
#include <string>
namespace fm3::attention {
#define VARIANT(name, ...)                                                                            \
  constexpr FwdConfig kConfig_##name{__VA_ARGS__}; \
  __global__ void __launch_bounds__(kConfig_##name.num_threads(), 1)                                  \
      fwd_##name(const __grid_constant__ FwdParams params) { run_fwd<kConfig_##name>(params); }       \
  const FwdInstance kFwd_##name{kConfig_##name, launch_fwd<kConfig_##name, fwd_##name>};
#include "list.inc"
#undef VARIANT
#define VARIANT(name, ...) all[#name] = &kFwd_##name;
void add_experiments(std::map<std::string, const FwdInstance*>& all) {
#include "list.inc"
}
}
