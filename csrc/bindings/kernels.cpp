// fm3_kernels._C: addresses, sizes and a stream go in; the caller has checked tensors and holds them alive.
#include <pybind11/pybind11.h>

#include <cstdint>

#include "attention/block_extrema.h"
#include "bindings/attention.h"

namespace py = pybind11;

namespace {

py::dict build_info() {
  py::dict info;
  info["nvcc"] = FM3_NVCC_VERSION;
  info["architecture"] = FM3_CUDA_ARCHITECTURE;
  return info;
}

template <typename T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

void block_extrema(uintptr_t lts, uintptr_t lte, uintptr_t uts, uintptr_t ute, uintptr_t table, int64_t num_masks,
                   int64_t num_keys, int32_t num_rows, int32_t block_keys, uintptr_t stream) {
  const fm3::attention::BlockExtremaParams params{
      .lts = pointer<const int32_t>(lts),
      .lte = pointer<const int32_t>(lte),
      .uts = pointer<const int32_t>(uts),
      .ute = pointer<const int32_t>(ute),
      .table = pointer<int32_t>(table),
      .num_masks = num_masks,
      .num_keys = num_keys,
      .num_rows = num_rows,
      .block_keys = block_keys,
  };
  fm3::attention::block_extrema(params, pointer<CUstream_st>(stream));
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "CUDA kernels of fm3_kernels.";
  module.def("build_info", &build_info, "What the extension was built with: nvcc's version and the architecture.");
  module.def("block_extrema", &block_extrema, py::kw_only(), py::arg("lts"), py::arg("lte"), py::arg("uts"),
             py::arg("ute"), py::arg("table"), py::arg("num_masks"), py::arg("num_keys"), py::arg("num_rows"),
             py::arg("block_keys"), py::arg("stream"),
             "Fill table, int32 [8, masks, key blocks], on the current device; returns without waiting.");
  fm3::bindings::bind_attention(module);
}
