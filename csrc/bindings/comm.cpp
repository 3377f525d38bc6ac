// fm3_comm._C: addresses, sizes and a stream go in; the caller has checked tensors and holds them alive.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>

#include "bindings/comm_kernels.h"
#include "comm/nvshmem_job.h"

namespace py = pybind11;

namespace {

template <typename T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

uintptr_t address(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

cudaStream_t stream_at(uintptr_t stream) { return pointer<CUstream_st>(stream); }

py::dict build_info() {
  py::dict info;
  info["nvcc"] = FM3_NVCC_VERSION;
  info["architecture"] = FM3_CUDA_ARCHITECTURE;
  info["nvshmem"] = fm3::comm::device_library_version();
  return info;
}

void bind_job(py::module_& module) {
  using py::arg;
  const py::call_guard<py::gil_scoped_release> others_may_run;
  module.def("host_library_version", &fm3::comm::host_library_version, "Version of the NVSHMEM library loaded here.");
  module.def("make_job_id", [] { return py::bytes(fm3::comm::make_job_id()); }, "Bytes that all ranks join with.");
  module.def("join_job", &fm3::comm::join_job, arg("rank"), arg("num_ranks"), arg("id"), others_may_run,
             "Join on the current device; collective.");
  module.def("leave_job", &fm3::comm::leave_job, others_may_run, "Leave; collective.");
  module.def(
      "allocate", [](size_t num_bytes) { return address(fm3::comm::allocate(num_bytes)); }, arg("num_bytes"),
      others_may_run, "Symmetric memory, not set; collective.");
  module.def(
      "release", [](uintptr_t memory) { fm3::comm::release(pointer<void>(memory)); }, arg("memory"), others_may_run,
      "Give symmetric memory back; collective.");
  module.def(
      "mapped_at",
      [](uintptr_t memory, int rank) { return address(fm3::comm::mapped_at(pointer<void>(memory), rank)); },
      arg("memory"), arg("rank"), "Address at which this device sees a rank's memory, 0 where it does not.");
}

void bind_stream_operations(py::module_& module) {
  using py::arg;
  const py::call_guard<py::gil_scoped_release> others_may_run;
  module.def(
      "get",
      [](uintptr_t target, uintptr_t source, size_t num_bytes, int rank, uintptr_t stream) {
        fm3::comm::get(pointer<void>(target), pointer<void>(source), num_bytes, rank, stream_at(stream));
      },
      py::kw_only(), arg("target"), arg("source"), arg("num_bytes"), arg("rank"), arg("stream"), others_may_run,
      "Start copying a rank's symmetric bytes to device memory.");
  module.def(
      "put_signal",
      [](uintptr_t target, uintptr_t source, size_t num_bytes, uintptr_t word, uint64_t value, bool adds, int rank,
         uintptr_t stream) {
        fm3::comm::put_signal(pointer<void>(target), pointer<void>(source), num_bytes, pointer<uint64_t>(word), value,
                              adds, rank, stream_at(stream));
      },
      py::kw_only(), arg("target"), arg("source"), arg("num_bytes"), arg("word"), arg("value"), arg("adds"),
      arg("rank"), arg("stream"), others_may_run, "Start copying device memory to a rank, then signal a word there.");
  module.def(
      "signal_word",
      [](uintptr_t word, uint64_t value, bool adds, int rank, uintptr_t stream) {
        fm3::comm::signal_word(pointer<uint64_t>(word), value, adds, rank, stream_at(stream));
      },
      py::kw_only(), arg("word"), arg("value"), arg("adds"), arg("rank"), arg("stream"), others_may_run,
      "Start signalling a word of a rank.");
  module.def(
      "quiet", [](uintptr_t stream) { fm3::comm::quiet(stream_at(stream)); }, py::kw_only(), arg("stream"),
      others_may_run, "Hold up the stream until what it started is done.");
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "One-sided communication of fm3_comm on CUDA devices, by NVSHMEM.";
  module.def("build_info", &build_info, "What the extension was built with: nvcc, the architecture, NVSHMEM.");
  bind_job(module);
  bind_stream_operations(module);
  fm3::bindings::bind_comm_kernels(module);
}
