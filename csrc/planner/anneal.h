// Phase 2, the far-sighted half: random swaps that may raise traffic and loads for a while.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/placement.h"
#include "planner/random.h"
#include "planner/traffic.h"

namespace fm3::planner {

// How cool a run starts and ends. An average chunk has the average bytes and weight.
struct Cooling {
  int32_t start_temperature;  // in 1/256 of an average chunk's bytes
  int32_t end_temperature;
  int32_t start_penalty;  // average chunks' bytes that an average chunk's weight above a limit costs
  int32_t end_penalty;
};

// Simulated annealing in integers: each of `moves` picks a chunk at random and, in the node of a chunk that it is
// linked to, of five random partners for a swap the one that is best for the loads; it accepts what raises the cost
// with a chance that falls with the raise and, as the run cools, with time. Between nodes up to `longest_run`
// neighbours of both go along, each of which counts as a move. Cost: N, and a penalty for loads above `limits`, one a
// cell, that grows. Ends with the placement of the least N within the limits that it passed, or with its last one
// where there was none.
void anneal(Placement& placement, const Needs& needs, const std::vector<int64_t>& limits, const Cooling& cooling,
            int64_t moves, int32_t longest_run, Random& random);

}  // namespace fm3::planner
