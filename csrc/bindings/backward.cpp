// The backward functions of fm3_kernels._C.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <map>
#include <string>

#include "attention/bwd_launch.h"
#include "attention/bwd_prepare.h"
#include "attention/bwd_rows.h"
#include "host/error.h"
#include "host/tensor_map.h"

namespace py = pybind11;

#ifdef FM3_EXPERIMENTS
namespace fm3::attention {
void add_bwd_experiments(std::map<std::string, const BwdInstance*>& known);
}
#endif

namespace fm3::bindings {
namespace {

using attention::BwdInstance;
using attention::BwdLists;
using attention::PreparedMask;
using attention::RowView;
using host::RowTensor;

const std::map<std::string, const BwdInstance*>& instances() {
  static const std::map<std::string, const BwdInstance*> all = [] {
    std::map<std::string, const BwdInstance*> known = {
        {"bf16_dim128", &attention::kBwdBf16Dim128},
        {"fp16_dim128", &attention::kBwdFp16Dim128},
        {"bf16_dim64", &attention::kBwdBf16Dim64},
        {"fp16_dim64", &attention::kBwdFp16Dim64},
    };
#ifdef FM3_EXPERIMENTS
    attention::add_bwd_experiments(known);
#endif
    return known;
  }();
  return all;
}

template <typename T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

cudaStream_t as_stream(uintptr_t stream) { return reinterpret_cast<cudaStream_t>(stream); }

BwdLists lists_of(const PreparedMask& mask, uintptr_t records, uintptr_t sorted, uintptr_t visits) {
  BwdLists lists;
  lists.num_row_blocks = (mask.num_rows + attention::kBwdRows - 1) / attention::kBwdRows;
  lists.records = pointer<const int4>(records);
  lists.sorted = pointer<const int4>(sorted);
  lists.visits = pointer<const uint2>(visits);
  return lists;
}

RowView view(const RowTensor& tensor) {
  return {const_cast<void*>(tensor.data), tensor.batch_stride, tensor.row_stride, tensor.head_stride};
}

// dk_float, dv_float: 0, or where dK and dV go as contiguous float32 tensors in place of dk and dv, which are not read then.
// phases: 1 row terms, 2 the kernel, 4 dQ; a benchmark asks for one alone. The whole backward pass: row terms, the kernel, dQ. turns != 0 asks for the deterministic order, for which `lists` must
// have visits. Everything is ordered on `stream`; nothing synchronises.
void backward(const std::string& name, const RowTensor& q, const RowTensor& k, const RowTensor& v, const RowTensor& out,
              uintptr_t lse, const RowTensor& d_out, uintptr_t d_lse, const RowTensor& dq, const RowTensor& dk,
              const RowTensor& dv, const PreparedMask& mask, const BwdLists& lists, uintptr_t dq_sums, uintptr_t row_terms,
              uintptr_t turns, uintptr_t next_tile, double softmax_scale, int section_pairs, int num_ctas, int phases,
              uintptr_t dk_float, uintptr_t dv_float, uintptr_t stream) {
  const auto found = instances().find(name);
  if (found == instances().end()) throw Error("no compiled backward kernel is called " + name);
  const BwdInstance& chosen = *found->second;
  const bool is_bf16 = chosen.config.dtype == attention::Dtype::kBf16;
  if (q.head_dim != chosen.config.head_dim) throw Error("backward: head_dim " + std::to_string(q.head_dim) + " is not " + name);
  const int64_t num_tiles = k.batch * k.heads * mask.num_key_blocks;
  const int64_t num_blocks = q.batch * q.heads * lists.num_row_blocks;
  if (num_tiles > INT32_MAX || num_blocks > INT32_MAX / 8) throw Error("backward: more blocks than 32 bits can count");
  attention::RowProblem rows;
  rows.dtype = chosen.config.dtype;
  rows.head_dim = chosen.config.head_dim;
  rows.batch = static_cast<int>(q.batch);
  rows.heads = static_cast<int>(q.heads);
  rows.num_rows = static_cast<int>(q.rows);
  rows.num_row_blocks = lists.num_row_blocks;
  if ((phases & 1) != 0) {
    attention::prepare_rows(rows, view(out), view(d_out), pointer<const float>(lse), pointer<const float>(d_lse),
                            pointer<float>(row_terms), pointer<float>(dq_sums), pointer<int32_t>(turns), as_stream(stream));
  }
  if ((phases & 2) != 0 && num_tiles > 0) {
    attention::BwdParams params;
    if (q.rows > 0) {
      params.q = host::make_row_map(q, is_bf16, attention::kBwdRows);
      params.d_out = host::make_row_map(d_out, is_bf16, attention::kBwdRows);
    }
    params.k = host::make_row_map(k, is_bf16, attention::kBlockKeys);
    params.v = host::make_row_map(v, is_bf16, attention::kBlockKeys);
    if ((dk_float == 0) != (dv_float == 0)) throw Error("backward: dk and dv must both be float32, or neither");
    if (dk_float == 0) {
      params.dk = host::make_row_map(dk, is_bf16, attention::kHalfKeys);
      params.dv = host::make_row_map(dv, is_bf16, attention::kHalfKeys);
    }
    params.dk_float = pointer<float>(dk_float);
    params.dv_float = pointer<float>(dv_float);
    params.mask = mask;
    params.lists = lists;
    params.dq_sums = pointer<float>(dq_sums);
    params.row_terms = pointer<const float>(row_terms);
    params.turns = pointer<int32_t>(turns);
    params.next_tile = pointer<int32_t>(next_tile);
    params.batch = static_cast<int>(q.batch);
    params.num_rows = static_cast<int>(q.rows);
    params.query_heads = static_cast<int>(q.heads);
    params.kv_heads = static_cast<int>(k.heads);
    params.num_tiles = static_cast<int>(num_tiles);
    params.section_pairs = section_pairs;
    params.scale = static_cast<float>(softmax_scale);
    params.scale_log2 = static_cast<float>(softmax_scale * 1.4426950408889634);
    chosen.launch(params, num_ctas, as_stream(stream));
  }
  if ((phases & 4) != 0) {
    attention::convert_dq(rows, pointer<const float>(dq_sums), static_cast<float>(softmax_scale), view(dq), as_stream(stream));
  }
}

}  // namespace

void add_backward(py::module_& module) {
  py::class_<BwdLists>(module, "BackwardLists", "The arrays that prepare_backward_lists fills.")
      .def(py::init(&lists_of), py::arg("mask"), py::arg("records"), py::arg("sorted"), py::arg("visits"));
  module.def("backward_instances", [] {
    std::vector<std::string> names;
    for (const auto& [name, entry] : instances()) names.push_back(name);
    return names;
  });
  module.def("backward_sizes", [](int batch, int heads, int num_rows, int num_keys) {
    const auto sizes = attention::bwd_list_sizes(batch, heads, num_rows, num_keys);
    return std::array<int64_t, 3>{sizes.records, sizes.sorted, sizes.visits};
  });
  module.def("prepare_backward_lists",
             [](const PreparedMask& mask, const BwdLists& lists, bool latest_first, int kv_heads, uintptr_t stream) {
               const auto order = latest_first ? attention::KeyOrder::kLatestFirst : attention::KeyOrder::kHeaviestFirst;
               attention::prepare_bwd_lists(mask, lists, order, kv_heads, as_stream(stream));
             });
  module.def("backward", &backward);
}

}  // namespace fm3::bindings
