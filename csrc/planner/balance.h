// Phases 1 and 3: lower the largest load among ranks that may exchange items.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/placement.h"
#include "planner/random.h"

namespace fm3::planner {

// Deals the items of the slots of ranks [first_rank, end_rank) anew: the heaviest that is left to the least loaded
// rank with room, ties to the smaller number. Items of a rank end up ascending.
void deal(const Layout& layout, const int64_t* weights, int32_t first_rank, int32_t end_rank,
          std::vector<int32_t>& items);

// Exchanges items of the heaviest of the ranks [first_rank, end_rank) with others of them until its load is at most
// `target`, no exchange lowers it, or the budget is spent. Tried in this order: one item for one, with any rank; two
// for two and, where ranks have 6 or 7 slots, three for three, with the lightest rank that helps (together the best
// re-split of two ranks, up to 7 slots); one item each around a cycle of the rank and two of the eight lightest.
// Cells are ranks.
void balance(Placement& placement, int32_t first_rank, int32_t end_rank, int64_t target, Budget& budget);

// Balances all ranks, then again and again mixes the items of the heaviest and two random ranks, balances anew and
// keeps what is not worse; until the largest load is at most `target`, `mixes` went by, or the budget is spent.
void balance_with_mixes(Placement& placement, int64_t target, int32_t mixes, Random& random, Budget& budget);

}  // namespace fm3::planner
