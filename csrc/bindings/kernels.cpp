// fm3_kernels._C: addresses, sizes and a stream go in; the caller has checked tensors and holds them alive.
#include <pybind11/pybind11.h>

#include "bindings/attention.h"
#include "bindings/backward.h"

namespace py = pybind11;

namespace {

py::dict build_info() {
  py::dict info;
  info["nvcc"] = FM3_NVCC_VERSION;
  info["architecture"] = FM3_CUDA_ARCHITECTURE;
  return info;
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "CUDA kernels of fm3_kernels.";
  module.def("build_info", &build_info, "What the extension was built with: nvcc's version and the architecture.");
  fm3::bindings::bind_attention(module);
  fm3::bindings::bind_backward(module);
}
