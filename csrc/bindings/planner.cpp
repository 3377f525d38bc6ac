// fm3_planner._C: arrays that the caller has checked go in, chunk ids by slot come out.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include "planner/placement.h"
#include "planner/search.h"
#include "planner/traffic.h"

namespace py = pybind11;

namespace {

using Integers = py::array_t<int64_t, py::array::c_style>;
using Flags = py::array_t<bool, py::array::c_style>;

py::tuple search(const Integers& weights, const std::optional<Flags>& needs, const std::optional<Integers>& chunk_bytes,
                 int32_t num_ranks, int32_t ranks_per_node, int64_t target, int64_t compute_moves, int32_t mixes,
                 int64_t slack, int64_t traffic_moves, int32_t runs, int32_t longest_run) {
  const auto num_chunks = static_cast<int32_t>(weights.size());
  if (num_ranks < 1 || ranks_per_node < 1 || num_chunks < num_ranks) {
    throw std::invalid_argument("search: at least one rank, a rank a node and a chunk a rank are needed");
  }
  if (needs.has_value() != chunk_bytes.has_value() || (needs && needs->size() != weights.size() * weights.size()) ||
      (chunk_bytes && chunk_bytes->size() != weights.size())) {
    throw std::invalid_argument("search: needs must be [chunks, chunks] and chunk_bytes [chunks], or both None");
  }
  const fm3::planner::Layout layout{num_chunks, num_ranks, ranks_per_node};
  const fm3::planner::SearchOptions options{target, compute_moves, mixes, slack, traffic_moves, runs, longest_run};
  fm3::planner::Outcome outcome;
  {
    const int64_t* given_weights = weights.data();
    const bool* given_needs = needs ? needs->data() : nullptr;
    const int64_t* given_bytes = chunk_bytes ? chunk_bytes->data() : nullptr;
    const py::gil_scoped_release others_may_run;
    std::vector<int64_t> by_item(given_weights, given_weights + num_chunks);
    by_item.resize(layout.num_slots(), 0);
    std::optional<fm3::planner::Needs> graph;
    if (given_needs) graph.emplace(given_needs, given_bytes, num_chunks);
    outcome = fm3::planner::search(layout, by_item.data(), graph ? &*graph : nullptr, options);
  }
  py::array_t<int32_t> items(static_cast<py::ssize_t>(outcome.items.size()), outcome.items.data());
  return py::make_tuple(items, outcome.moves);
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "The search of fm3_planner's ipo and hcc_ipo.";
  module.def("search", &search, py::kw_only(), py::arg("weights"), py::arg("needs"), py::arg("chunk_bytes"),
             py::arg("num_ranks"), py::arg("ranks_per_node"), py::arg("target"), py::arg("compute_moves"),
             py::arg("mixes"), py::arg("slack"), py::arg("traffic_moves"), py::arg("runs"), py::arg("longest_run"),
             "Place chunks; returns the item of each slot, int32, and the moves spent.");
}
