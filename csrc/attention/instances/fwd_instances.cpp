#include "attention/fwd_launch.h"
#include "host/error.h"

namespace fm3::attention {

std::vector<const FwdInstance*> fwd_instances() {
  return {&kFwdBf16Dim64,      &kFwdBf16Dim128,      &kFwdFp16Dim64,      &kFwdFp16Dim128,
          &kFwdBf16Dim64Float, &kFwdBf16Dim128Float, &kFwdFp16Dim64Float, &kFwdFp16Dim128Float};
}

const FwdInstance& fwd_instance(const std::string& name) {
  std::string known;
  for (const FwdInstance* instance : fwd_instances()) {
    if (instance->name == name) return *instance;
    known += std::string(known.empty() ? "" : ", ") + instance->name;
  }
  throw Error("no forward kernel is called " + name + "; compiled are " + known);
}

}  // namespace fm3::attention
