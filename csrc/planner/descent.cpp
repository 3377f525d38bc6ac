#include "planner/descent.h"

#include <algorithm>
#include <vector>

namespace fm3::planner {
namespace {

class Descent {
 public:
  Descent(Placement& placement, Traffic& traffic, int64_t limit, Budget& budget)
      : placement_(placement),
        traffic_(traffic),
        limit_(limit),
        budget_(budget),
        num_nodes_(placement.layout.num_nodes()),
        least_(static_cast<int64_t>(num_nodes_) * num_nodes_) {}

  // Tries every slot once; says whether something changed.
  bool sweep() {
    bound_moves();
    bool changed = false;
    for (int32_t slot = 0; slot < placement_.layout.num_slots() && budget_.is_left(); ++slot) {
      if (swap_best(slot)) changed = true;
    }
    return changed;
  }

 private:
  // For each pair of nodes the least change that moving one item from the first to the second makes. Two moves that
  // meet change at least the sum of both, so that a pair of nodes whose sum is not below 0 need not be searched. As of
  // the start of a sweep: what exchanges of this sweep open up is found by the next one.
  void bound_moves() {
    std::fill(least_.begin(), least_.end(), 0);
    for (int32_t slot = 0; slot < placement_.layout.num_slots(); ++slot) {
      const int32_t home = placement_.node_of[placement_.cell_of[slot]], item = placement_.item_at[slot];
      const int64_t leaving = traffic_.change_of_leaving(item, home);
      if (leaving == 0) continue;
      for (int32_t away = 0; away < num_nodes_; ++away) {
        if (away == home) continue;
        int64_t& least = least_[static_cast<int64_t>(home) * num_nodes_ + away];
        least = std::min(least, leaving + traffic_.change_of_joining(item, away));
      }
    }
  }

  bool swap_best(int32_t slot) {
    const int32_t rank = placement_.cell_of[slot], home = placement_.node_of[rank], item = placement_.item_at[slot];
    const int64_t leaving = traffic_.change_of_leaving(item, home);
    int64_t best = 0;
    int32_t best_slot = -1;
    for (int32_t away = 0; away < num_nodes_; ++away) {
      if (away == home) continue;
      const int64_t own = leaving + traffic_.change_of_joining(item, away);
      if (own + least_[static_cast<int64_t>(away) * num_nodes_ + home] >= best) continue;
      const int32_t first = placement_.first_slot[placement_.layout.first_rank(away)];
      const int32_t end = placement_.first_slot[placement_.layout.end_rank(away)];
      budget_.spent += end - first;
      for (int32_t other = first; other < end; ++other) {
        const int32_t coming = placement_.item_at[other];
        const int64_t moved = placement_.weights[item] - placement_.weights[coming];
        if (placement_.loads[rank] - moved > limit_ || placement_.loads[placement_.cell_of[other]] + moved > limit_) {
          continue;
        }
        const int64_t change = traffic_.change(item, home, coming, away);
        if (change < best && placement_.may_swap(slot, other)) {
          best = change;
          best_slot = other;
        }
      }
    }
    if (best_slot < 0) return false;
    traffic_.exchange(item, home, placement_.item_at[best_slot], placement_.node_of[placement_.cell_of[best_slot]],
                      best);
    placement_.swap(slot, best_slot);
    return true;
  }

  Placement& placement_;
  Traffic& traffic_;
  int64_t limit_;
  Budget& budget_;
  int32_t num_nodes_;
  std::vector<int64_t> least_;  // [nodes, nodes]
};

}  // namespace

void descend(Placement& placement, Traffic& traffic, int64_t limit, Budget& budget) {
  Descent descent(placement, traffic, limit, budget);
  while (budget.is_left() && descent.sweep()) {
  }
}

}  // namespace fm3::planner
