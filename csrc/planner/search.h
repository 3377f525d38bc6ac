// The three phases: compute balance between ranks, traffic between nodes, compute balance inside each node.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/placement.h"
#include "planner/traffic.h"

namespace fm3::planner {

struct SearchOptions {
  int64_t target = 0;         // phase 1 stops at a largest load of this, a lower bound
  int64_t compute_moves = 0;  // exchanges that phases 1 and 3 may compute, each
  int32_t mixes = 0;          // times that phase 1 leaves a placement that no exchange improves
  int64_t slack = 0;          // phase 2 keeps the largest load within 1 + slack / 10^9 times that of phase 1
  int64_t traffic_moves = 0;  // exchanges that the annealing of phase 2 may compute, but for the last repair
  int32_t runs = 0;           // annealing runs that this allows where none needs a repair
  int32_t longest_run = 1;    // neighbouring chunks that annealing swaps at once, at most
};

struct Outcome {
  std::vector<int32_t> items;  // [slots]
  int64_t moves = 0;           // exchanges computed
};

// Places the chunks. `weights` is [slots], those of blanks 0; without `needs` phase 1 only.
Outcome search(const Layout& layout, const int64_t* weights, const Needs* needs, const SearchOptions& options);

}  // namespace fm3::planner
