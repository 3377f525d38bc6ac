#include "bindings/attention.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <string>

#include "attention/fwd_launch.h"
#include "attention/mask_prepare.h"
#include "host/error.h"
#include "host/tensor_map.h"

namespace py = pybind11;

namespace {

using fm3::Error;
using fm3::attention::FwdInstance;
using fm3::attention::PreparedMask;
using fm3::attention::ReadyFlags;
using fm3::host::RowTensor;

template <typename T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

cudaStream_t as_stream(uintptr_t stream) { return reinterpret_cast<cudaStream_t>(stream); }

RowTensor row_tensor(uintptr_t data, std::array<int64_t, 4> shape, std::array<int64_t, 3> strides) {
  return {pointer<const void>(data), shape[0], shape[1], shape[2], shape[3], strides[0], strides[1], strides[2]};
}

PreparedMask prepared_mask(int batch, int heads, int num_rows, int num_keys, int block_rows, uintptr_t columns,
                           uintptr_t extrema, uintptr_t row_blocks, uintptr_t keep) {
  PreparedMask mask;
  mask.batch = batch;
  mask.heads = heads;
  mask.num_rows = num_rows;
  mask.num_keys = num_keys;
  mask.num_key_blocks = (num_keys + fm3::attention::kBlockKeys - 1) / fm3::attention::kBlockKeys;
  mask.num_row_blocks = (num_rows + block_rows - 1) / block_rows;
  mask.columns = pointer<const int32_t>(columns);
  mask.extrema = pointer<const int4>(extrema);
  mask.row_blocks = pointer<const int4>(row_blocks);
  mask.keep = pointer<const uint8_t>(keep);
  return mask;
}

ReadyFlags ready_flags(uintptr_t epochs, uint32_t epoch, int blocks_per_chunk) {
  if (blocks_per_chunk < 1) throw Error("ReadyFlags: blocks_per_chunk must be at least 1");
  return {pointer<const uint32_t>(epochs), epoch, blocks_per_chunk};
}

// Whatever is written to device memory here is ordered on `stream`; nothing synchronises.
void forward(const std::string& name, const RowTensor& q, const RowTensor& k, const RowTensor& v, const RowTensor& out,
             uintptr_t lse, const PreparedMask& mask, const ReadyFlags& ready, uintptr_t next_tile,
             double softmax_scale, int band_rows, int section_pairs, int num_ctas, uintptr_t stream) {
  const FwdInstance& chosen = fm3::attention::fwd_instance(name);
  const bool is_bf16 = chosen.config.dtype == fm3::attention::Dtype::kBf16;
  if (q.head_dim != chosen.config.head_dim) {
    throw Error("forward: head_dim " + std::to_string(q.head_dim) + " is not that of " + name);
  }
  const int64_t num_tiles = q.batch * q.heads * mask.num_row_blocks;
  if (num_tiles == 0) return;
  if (num_tiles > INT32_MAX) throw Error("forward: more than 2^31 - 1 row blocks");
  fm3::attention::FwdParams params;
  params.q = fm3::host::make_row_map(q, is_bf16, 64);
  // A tensor map cannot be empty: without keys no block is ever loaded, and any map will do.
  params.k = fm3::host::make_row_map(k.rows > 0 ? k : q, is_bf16, fm3::attention::kBlockKeys);
  params.v = fm3::host::make_row_map(v.rows > 0 ? v : q, is_bf16, fm3::attention::kBlockKeys);
  if (chosen.config.float_output) {
    params.out_float = static_cast<float*>(const_cast<void*>(out.data));
  } else {
    params.out = fm3::host::make_row_map(out, is_bf16, 64);
  }
  params.mask = mask;
  params.ready = ready;
  params.lse = pointer<float>(lse);
  params.next_tile = pointer<int32_t>(next_tile);
  params.batch = static_cast<int>(q.batch);
  params.num_rows = static_cast<int>(q.rows);
  params.query_heads = static_cast<int>(q.heads);
  params.kv_heads = static_cast<int>(k.heads);
  params.num_tiles = static_cast<int>(num_tiles);
  params.band_rows = band_rows;
  params.section_pairs = section_pairs;
  params.scale_log2 = static_cast<float>(softmax_scale * 1.4426950408889634);
  chosen.launch(params, num_ctas, as_stream(stream));
}

}  // namespace

namespace fm3::bindings {

void bind_attention(py::module_& module) {
  py::register_exception<Error>(module, "DeviceError");
  py::class_<RowTensor>(module, "RowTensor", py::module_local(),
                        "A [batch, rows, heads, head_dim] tensor of 16-bit values in device memory.")
      .def(py::init(&row_tensor), py::arg("data"), py::arg("shape"), py::arg("strides"));
  py::class_<PreparedMask>(module, "PreparedMask", py::module_local(), "The arrays that prepare_mask fills.")
      .def(py::init(&prepared_mask), py::kw_only(), py::arg("batch"), py::arg("heads"), py::arg("num_rows"),
           py::arg("num_keys"), py::arg("block_rows"), py::arg("columns"), py::arg("extrema"), py::arg("row_blocks"),
           py::arg("keep"));
  py::class_<ReadyFlags>(module, "ReadyFlags", py::module_local(), "When which chunk of keys may be read.")
      .def(py::init(&ready_flags), py::kw_only(), py::arg("epochs"), py::arg("epoch"), py::arg("blocks_per_chunk"));
  module.def("forward_instances", [] {
    py::dict described;
    for (const FwdInstance* instance : fm3::attention::fwd_instances()) {
      described[instance->name] = py::dict(py::arg("block_rows") = instance->config.block_rows(),
                                           py::arg("head_dim") = instance->config.head_dim,
                                           py::arg("float_output") = instance->config.float_output);
    }
    return described;
  });
  module.def("prepared_sizes", [](int batch, int heads, int num_rows, int num_keys, int block_rows) {
    const auto sizes = fm3::attention::prepared_sizes(batch, heads, num_rows, num_keys, block_rows);
    return std::array<int64_t, 4>{sizes.columns, sizes.extrema, sizes.row_blocks, sizes.unsorted};
  });
  module.def(
      "prepare_mask",
      [](uintptr_t lts, uintptr_t lte, uintptr_t uts, uintptr_t ute, const PreparedMask& mask, uintptr_t unsorted,
         int block_rows, uintptr_t stream) {
        fm3::attention::prepare_mask({pointer<const int32_t>(lts), pointer<const int32_t>(lte),
                                      pointer<const int32_t>(uts), pointer<const int32_t>(ute)},
                                     mask, pointer<int4>(unsorted), block_rows, as_stream(stream));
      },
      py::kw_only(), py::arg("lts"), py::arg("lte"), py::arg("uts"), py::arg("ute"), py::arg("mask"),
      py::arg("unsorted"), py::arg("block_rows"), py::arg("stream"));
  module.def("forward", &forward, py::kw_only(), py::arg("name"), py::arg("q"), py::arg("k"), py::arg("v"),
             py::arg("out"), py::arg("lse"), py::arg("mask"), py::arg("ready"), py::arg("next_tile"),
             py::arg("softmax_scale"), py::arg("band_rows"), py::arg("section_pairs"), py::arg("num_ctas"),
             py::arg("stream"));
}

}  // namespace fm3::bindings
