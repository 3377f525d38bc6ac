// The forward kernel and what prepares masks for it, as fm3_kernels._C offers them.
#pragma once

namespace pybind11 {
class module_;
}

namespace fm3::bindings {

void bind_attention(pybind11::module_& module);

}  // namespace fm3::bindings
