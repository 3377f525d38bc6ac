// Errors of the device layer: what failed, where, and the driver's name for it.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <source_location>
#include <stdexcept>
#include <string>

namespace fm3 {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& fact, std::source_location where = std::source_location::current())
      : std::runtime_error(fact + " (" + where.file_name() + ":" + std::to_string(where.line()) + ")") {}
};

// Throws unless the CUDA runtime call `call` succeeded.
inline void check(cudaError_t code, const char* call, std::source_location where = std::source_location::current()) {
  if (code == cudaSuccess) return;
  throw Error(std::string(call) + ": " + cudaGetErrorName(code) + ", " + cudaGetErrorString(code), where);
}

inline void check(CUresult code, const char* call, std::source_location where = std::source_location::current()) {
  if (code == CUDA_SUCCESS) return;
  throw Error(std::string(call) + ": CUresult " + std::to_string(static_cast<int>(code)), where);
}

}  // namespace fm3
