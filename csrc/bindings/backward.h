// The backward functions of fm3_kernels._C.
#pragma once

#include <pybind11/pybind11.h>

namespace fm3::bindings {
void add_backward(pybind11::module_& module);
}
