// The kernels of fm3_comm._C.
#pragma once

namespace pybind11 {
class module_;
}

namespace fm3::bindings {

void bind_comm_kernels(pybind11::module_& module);

}  // namespace fm3::bindings
