// fm3_comm._shm: addresses go in; the caller has checked them and holds the memory mapped.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <cstring>

#include "comm/shared_word.h"

namespace py = pybind11;

namespace {

uint64_t* word_at(uintptr_t address) { return reinterpret_cast<uint64_t*>(address); }

void copy(uintptr_t target, uintptr_t source, size_t num_bytes) {
  const py::gil_scoped_release others_may_run;
  std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), num_bytes);
}

bool wait_ge(uintptr_t address, uint64_t value, double timeout_seconds) {
  const py::gil_scoped_release others_may_run;
  return fm3::comm::wait_ge(word_at(address), value, timeout_seconds);
}

}  // namespace

PYBIND11_MODULE(_shm, module) {
  module.doc() = "Atomic words and copies in memory that processes share.";
  module.def("copy", &copy, py::arg("target"), py::arg("source"), py::arg("num_bytes"), "Copy bytes.");
  module.def(
      "load", [](uintptr_t address) { return fm3::comm::load(word_at(address)); }, py::arg("address"),
      "Read a word with acquire order.");
  module.def(
      "store", [](uintptr_t address, uint64_t value) { fm3::comm::store(word_at(address), value); }, py::arg("address"),
      py::arg("value"), "Write a word with release order.");
  module.def(
      "fetch_add", [](uintptr_t address, uint64_t value) { return fm3::comm::fetch_add(word_at(address), value); },
      py::arg("address"), py::arg("value"), "Add modulo 2^64; return the value before.");
  module.def(
      "fetch_or", [](uintptr_t address, uint64_t value) { return fm3::comm::fetch_or(word_at(address), value); },
      py::arg("address"), py::arg("value"), "Set bits; return the value before.");
  module.def("wait_ge", &wait_ge, py::arg("address"), py::arg("value"), py::arg("timeout_seconds"),
             "Wait until a word is at least a value; False on a timeout.");
}
