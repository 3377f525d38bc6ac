#include "attention/bwd_launch.h"
#include "host/error.h"

namespace fm3::attention {

std::vector<const BwdInstance*> bwd_instances() {
  return {&kBwdBf16Dim64, &kBwdBf16Dim128, &kBwdFp16Dim64, &kBwdFp16Dim128};
}

const BwdInstance& bwd_instance(const std::string& name) {
  std::string known;
  for (const BwdInstance* instance : bwd_instances()) {
    if (instance->name == name) return *instance;
    known += std::string(known.empty() ? "" : ", ") + instance->name;
  }
  throw Error("no backward kernel is called " + name + "; compiled are " + known);
}

}  // namespace fm3::attention
