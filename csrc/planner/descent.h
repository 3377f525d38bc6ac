// Phase 2, the plain half: swaps that lower the traffic at once.
#pragma once

#include <cstdint>

#include "planner/placement.h"
#include "planner/traffic.h"

namespace fm3::planner {

// Sweeps over the slots and swaps each with the slot of another node that lowers N most, where neither rank ends above
// `limit`; until a sweep changes nothing or the budget is spent. Cells are ranks.
void descend(Placement& placement, Traffic& traffic, int64_t limit, Budget& budget);

}  // namespace fm3::planner
