#include "bindings/backward.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/bwd_launch.h"
#include "attention/bwd_prepare.h"
#include "attention/bwd_rows.h"
#include "host/error.h"
#include "host/tensor_map.h"

namespace py = pybind11;

namespace {

using fm3::Error;
using fm3::attention::BwdInstance;
using fm3::attention::BwdLists;
using fm3::attention::BwdParams;
using fm3::attention::DoneFlags;
using fm3::attention::PreparedMask;
using fm3::attention::RowProblem;
using fm3::attention::RowView;
using fm3::host::RowTensor;

template <typename T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

cudaStream_t as_stream(uintptr_t stream) { return reinterpret_cast<cudaStream_t>(stream); }

// The forward kernel's row blocks hold a whole number of the backward kernel's; keep is laid out by the former.
BwdLists lists_of(const PreparedMask& mask, uintptr_t records, uintptr_t sorted, uintptr_t visits) {
  BwdLists lists;
  lists.num_row_blocks = (mask.num_rows + fm3::attention::kBwdRows - 1) / fm3::attention::kBwdRows;
  lists.records = pointer<const int4>(records);
  lists.sorted = pointer<const int4>(sorted);
  lists.visits = pointer<const uint2>(visits);
  return lists;
}

DoneFlags done_flags(uintptr_t epochs, uint32_t epoch, int blocks_per_chunk, uintptr_t stored) {
  if (blocks_per_chunk < 1) throw Error("DoneFlags: blocks_per_chunk must be at least 1");
  return {pointer<uint32_t>(epochs), epoch, blocks_per_chunk, pointer<int32_t>(stored)};
}

RowView view(const RowTensor& tensor) {
  return {const_cast<void*>(tensor.data), tensor.batch_stride, tensor.row_stride, tensor.head_stride};
}

RowProblem row_problem(const BwdInstance& instance, const RowTensor& q, int num_row_blocks) {
  if (q.head_dim != instance.config.head_dim) {
    throw Error("backward: head_dim " + std::to_string(q.head_dim) + " is not that of " + instance.name);
  }
  if (q.batch * q.heads * num_row_blocks > INT32_MAX / 2) throw Error("backward: more than 2^30 row blocks");
  RowProblem problem;
  problem.dtype = instance.config.dtype;
  problem.head_dim = instance.config.head_dim;
  problem.batch = static_cast<int>(q.batch);
  problem.heads = static_cast<int>(q.heads);
  problem.num_rows = static_cast<int>(q.rows);
  problem.num_row_blocks = num_row_blocks;
  return problem;
}

// Row terms and zeroed turns, the kernel, then dQ from its sums; all ordered on `stream`, nothing synchronises.
void backward(const std::string& name, const RowTensor& q, const RowTensor& k, const RowTensor& v, const RowTensor& out,
              const RowTensor& d_out, uintptr_t lse, uintptr_t d_lse, const RowTensor& dq, const RowTensor& dk,
              const RowTensor& dv, bool float_kv, const PreparedMask& mask, const BwdLists& lists,
              const DoneFlags& done, uintptr_t dq_sums, uintptr_t row_terms, uintptr_t turns, uintptr_t next_tile,
              double softmax_scale, double dq_scale, int section_pairs, int num_ctas, uintptr_t stream) {
  const BwdInstance& chosen = fm3::attention::bwd_instance(name);
  const bool is_bf16 = chosen.config.dtype == fm3::attention::Dtype::kBf16;
  const RowProblem rows = row_problem(chosen, q, lists.num_row_blocks);
  const int64_t num_tiles = k.batch * k.heads * mask.num_key_blocks;
  if (num_tiles > INT32_MAX / fm3::attention::kBwdWarpgroups) throw Error("backward: more than 2^30 - 1 key blocks");

  fm3::attention::prepare_rows(rows, view(out), view(d_out), pointer<const float>(lse), pointer<const float>(d_lse),
                               pointer<float>(row_terms), pointer<int32_t>(turns), as_stream(stream));
  if (num_tiles > 0) {
    BwdParams params{};
    if (q.rows > 0) {  // else no row is ever loaded
      params.q = fm3::host::make_row_map(q, is_bf16, fm3::attention::kBwdRows);
      params.d_out = fm3::host::make_row_map(d_out, is_bf16, fm3::attention::kBwdRows);
    }
    params.k = fm3::host::make_row_map(k, is_bf16, fm3::attention::kBlockKeys);
    params.v = fm3::host::make_row_map(v, is_bf16, fm3::attention::kBlockKeys);
    if (float_kv) {
      params.dk_float = static_cast<float*>(const_cast<void*>(dk.data));
      params.dv_float = static_cast<float*>(const_cast<void*>(dv.data));
    } else {
      params.dk = fm3::host::make_row_map(dk, is_bf16, fm3::attention::kHalfKeys);
      params.dv = fm3::host::make_row_map(dv, is_bf16, fm3::attention::kHalfKeys);
    }
    params.mask = mask;
    params.lists = lists;
    params.done = done;
    params.dq_sums = pointer<float>(dq_sums);
    params.row_terms = pointer<const float>(row_terms);
    params.turns = pointer<int32_t>(turns);
    params.next_tile = pointer<int32_t>(next_tile);
    params.batch = rows.batch;
    params.num_rows = rows.num_rows;
    params.query_heads = rows.heads;
    params.kv_heads = static_cast<int>(k.heads);
    params.num_tiles = static_cast<int>(num_tiles);
    params.section_pairs = section_pairs;
    params.scale = static_cast<float>(softmax_scale);
    params.scale_log2 = static_cast<float>(softmax_scale * 1.4426950408889634);
    chosen.launch(params, num_ctas, as_stream(stream));
  }
  fm3::attention::convert_dq(rows, pointer<const float>(dq_sums), pointer<const int32_t>(turns),
                             static_cast<float>(dq_scale), view(dq), as_stream(stream));
}

}  // namespace

namespace fm3::bindings {

void bind_backward(py::module_& module) {
  py::class_<BwdLists>(module, "BackwardLists", py::module_local(), "The arrays that prepare_backward fills.")
      .def(py::init(&lists_of), py::kw_only(), py::arg("mask"), py::arg("records"), py::arg("sorted"),
           py::arg("visits"));
  py::class_<DoneFlags>(module, "DoneFlags", py::module_local(), "Who is told when a chunk of keys is done.")
      .def(py::init(&done_flags), py::kw_only(), py::arg("epochs"), py::arg("epoch"), py::arg("blocks_per_chunk"),
           py::arg("stored"));
  module.def("backward_instances", [] {
    py::dict described;
    for (const BwdInstance* instance : fm3::attention::bwd_instances()) {
      described[instance->name] =
          py::dict(py::arg("block_rows") = fm3::attention::kBwdRows, py::arg("head_dim") = instance->config.head_dim);
    }
    return described;
  });
  module.def("backward_sizes", [](int batch, int heads, int num_rows, int num_keys) {
    const auto sizes = fm3::attention::bwd_list_sizes(batch, heads, num_rows, num_keys);
    return std::array<int64_t, 3>{sizes.records, sizes.sorted, sizes.visits};
  });
  module.def(
      "prepare_backward",
      [](const PreparedMask& mask, const BwdLists& lists, int kv_heads, uintptr_t stream) {
        fm3::attention::prepare_bwd_lists(mask, lists, kv_heads, as_stream(stream));
      },
      py::kw_only(), py::arg("mask"), py::arg("lists"), py::arg("kv_heads"), py::arg("stream"));
  module.def("backward", &backward, py::kw_only(), py::arg("name"), py::arg("q"), py::arg("k"), py::arg("v"),
             py::arg("out"), py::arg("d_out"), py::arg("lse"), py::arg("d_lse"), py::arg("dq"), py::arg("dk"),
             py::arg("dv"), py::arg("float_kv"), py::arg("mask"), py::arg("lists"), py::arg("done"), py::arg("dq_sums"),
             py::arg("row_terms"), py::arg("turns"), py::arg("next_tile"), py::arg("softmax_scale"),
             py::arg("dq_scale"), py::arg("section_pairs"), py::arg("num_ctas"), py::arg("stream"));
}

}  // namespace fm3::bindings
