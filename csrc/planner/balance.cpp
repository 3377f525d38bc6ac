#include "planner/balance.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace fm3::planner {
namespace {

// Some slots of a rank, counted from its first.
struct Group {
  int64_t weight;
  int32_t num_blanks;
  int32_t slots[3];
};

// How many groups of `size` slots `per_rank` slots have.
int64_t count_groups(int32_t per_rank, int32_t size) {
  int64_t count = 1;
  for (int32_t i = 0; i < size; ++i) count = count * (per_rank - i) / (i + 1);
  return count;
}

// All groups of `size` slots of a rank, in lexicographic order.
void list_groups(const Placement& placement, int32_t rank, int32_t size, std::vector<Group>& groups) {
  groups.clear();
  const int32_t per_rank = placement.layout.slots_per_rank();
  const int32_t* items = &placement.item_at[rank * per_rank];
  Group group{0, 0, {0, 1, 2}};
  while (true) {
    group.weight = 0;
    group.num_blanks = 0;
    for (int32_t i = 0; i < size; ++i) {
      group.weight += placement.weights[items[group.slots[i]]];
      group.num_blanks += placement.is_blank(items[group.slots[i]]);
    }
    groups.push_back(group);
    int32_t last = size - 1;
    while (last >= 0 && group.slots[last] == per_rank - size + last) --last;
    if (last < 0) return;
    ++group.slots[last];
    for (int32_t i = last + 1; i < size; ++i) group.slots[i] = group.slots[i - 1] + 1;
  }
}

class Balancer {
 public:
  Balancer(Placement& placement, int32_t first_rank, int32_t end_rank, Budget& budget)
      : placement_(placement),
        per_rank_(placement.layout.slots_per_rank()),
        first_rank_(first_rank),
        end_rank_(end_rank),
        budget_(budget) {}

  void run(int64_t target) {
    while (budget_.is_left()) {
      heaviest_ = first_rank_;
      for (int32_t rank = first_rank_ + 1; rank < end_rank_; ++rank) {
        if (placement_.loads[rank] > placement_.loads[heaviest_]) heaviest_ = rank;
      }
      if (placement_.loads[heaviest_] <= target) return;
      if (exchange_one()) continue;
      sort_others();
      if (per_rank_ >= 4 && exchange_groups(2)) continue;
      if ((per_rank_ == 6 || per_rank_ == 7) && exchange_groups(3)) continue;
      if (!exchange_around_three()) return;
    }
  }

 private:
  int64_t weight_at(int32_t slot) const { return placement_.weight_at(slot); }

  // The heaviest rank swaps one item with the rank, and for the item, that leave the smaller of both loads' maxima.
  bool exchange_one() {
    const int64_t load = placement_.loads[heaviest_];
    int64_t best = load;
    int32_t best_own = -1, best_other = -1;
    for (int32_t rank = first_rank_; rank < end_rank_; ++rank) {
      if (rank == heaviest_) continue;
      budget_.spent += static_cast<int64_t>(per_rank_) * per_rank_;
      for (int32_t own = heaviest_ * per_rank_; own < (heaviest_ + 1) * per_rank_; ++own) {
        for (int32_t other = rank * per_rank_; other < (rank + 1) * per_rank_; ++other) {
          const int64_t moved = weight_at(own) - weight_at(other);
          const int64_t larger = std::max(load - moved, placement_.loads[rank] + moved);
          if (larger < best && placement_.may_swap(own, other)) {
            best = larger;
            best_own = own;
            best_other = other;
          }
        }
      }
    }
    if (best_own < 0) return false;
    placement_.swap(best_own, best_other);
    return true;
  }

  // The other ranks by load, then number.
  void sort_others() {
    others_.clear();
    for (int32_t rank = first_rank_; rank < end_rank_; ++rank) {
      if (rank != heaviest_) others_.push_back(rank);
    }
    std::stable_sort(others_.begin(), others_.end(),
                     [this](int32_t left, int32_t right) { return placement_.loads[left] < placement_.loads[right]; });
  }

  // The heaviest rank exchanges `size` items for as many of the lightest rank with which that helps. With many items
  // a rank there are too many groups to try them, and swaps of one for one are fine enough.
  bool exchange_groups(int32_t size) {
    const int64_t num_groups = count_groups(per_rank_, size);
    if (!budget_.affords(num_groups, num_groups)) return false;
    list_groups(placement_, heaviest_, size, own_);
    for (const int32_t rank : others_) {
      if (!budget_.affords(num_groups, num_groups)) return false;
      if (exchange_groups_with(rank, size)) return true;
    }
    return false;
  }

  bool exchange_groups_with(int32_t rank, int32_t size) {
    list_groups(placement_, rank, size, other_);
    budget_.spent += static_cast<int64_t>(own_.size()) * static_cast<int64_t>(other_.size());
    const int64_t load = placement_.loads[heaviest_];
    const int32_t own_room = placement_.blank_room[heaviest_], other_room = placement_.blank_room[rank];
    int64_t best = load;
    const Group *best_own = nullptr, *best_other = nullptr;
    for (const Group& own : own_) {
      for (const Group& other : other_) {
        const int64_t moved = own.weight - other.weight;
        const int64_t larger = std::max(load - moved, placement_.loads[rank] + moved);
        if (larger >= best) continue;
        const int32_t blanks = other.num_blanks - own.num_blanks;
        if (blanks > own_room || -blanks > other_room) continue;
        best = larger;
        best_own = &own;
        best_other = &other;
      }
    }
    if (best_own == nullptr) return false;
    for (int32_t i = 0; i < size; ++i) {
      placement_.swap(heaviest_ * per_rank_ + best_own->slots[i], rank * per_rank_ + best_other->slots[i]);
    }
    return true;
  }

  // The heaviest rank gives an item to a second rank, which gives one to a third, which gives one back.
  bool exchange_around_three() {
    const size_t count = std::min(others_.size(), size_t{8});
    for (size_t second = 0; second < count; ++second) {
      for (size_t third = 0; third < count; ++third) {
        if (second == third) continue;
        if (!budget_.affords(static_cast<int64_t>(per_rank_) * per_rank_, per_rank_)) return false;
        if (exchange_around(others_[second], others_[third])) return true;
      }
    }
    return false;
  }

  bool exchange_around(int32_t second, int32_t third) {
    budget_.spent += static_cast<int64_t>(per_rank_) * per_rank_ * per_rank_;
    const int64_t load = placement_.loads[heaviest_];
    int64_t best = load;
    int32_t best_slots[3] = {-1, -1, -1};
    for (int32_t a = heaviest_ * per_rank_; a < (heaviest_ + 1) * per_rank_; ++a) {
      for (int32_t b = second * per_rank_; b < (second + 1) * per_rank_; ++b) {
        const int64_t second_load = placement_.loads[second] + weight_at(a) - weight_at(b);
        if (second_load >= best || placement_.is_blank(placement_.item_at[b])) continue;
        for (int32_t c = third * per_rank_; c < (third + 1) * per_rank_; ++c) {
          const int64_t first_load = load - weight_at(a) + weight_at(c);
          const int64_t third_load = placement_.loads[third] + weight_at(b) - weight_at(c);
          const int64_t largest = std::max({first_load, second_load, third_load});
          if (largest >= best || placement_.is_blank(placement_.item_at[c])) continue;
          best = largest;
          best_slots[0] = a;
          best_slots[1] = b;
          best_slots[2] = c;
        }
      }
    }
    if (best_slots[0] < 0) return false;
    placement_.swap(best_slots[0], best_slots[1]);
    placement_.swap(best_slots[0], best_slots[2]);
    return true;
  }

  Placement& placement_;
  int32_t per_rank_, first_rank_, end_rank_;
  Budget& budget_;
  int32_t heaviest_ = 0;
  std::vector<int32_t> others_;
  std::vector<Group> own_, other_;
};

}  // namespace

void deal(const Layout& layout, const int64_t* weights, int32_t first_rank, int32_t end_rank,
          std::vector<int32_t>& items) {
  const int32_t per_rank = layout.slots_per_rank();
  std::vector<int32_t> chunks, blanks;
  for (int32_t slot = first_rank * per_rank; slot < end_rank * per_rank; ++slot) {
    (items[slot] < layout.num_chunks ? chunks : blanks).push_back(items[slot]);
  }
  std::sort(chunks.begin(), chunks.end());
  std::sort(blanks.begin(), blanks.end());
  std::stable_sort(chunks.begin(), chunks.end(),
                   [weights](int32_t left, int32_t right) { return weights[left] > weights[right]; });

  const int32_t num_ranks = end_rank - first_rank;
  int32_t num_full = num_ranks - static_cast<int32_t>(blanks.size());  // ranks that will have no blank
  std::vector<std::vector<int32_t>> dealt(num_ranks);
  std::vector<int64_t> loads(num_ranks, 0);
  for (const int32_t chunk : chunks) {
    int32_t lightest = -1;
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      const int32_t count = static_cast<int32_t>(dealt[rank].size());
      const bool has_room = count < per_rank - 1 || (count == per_rank - 1 && num_full > 0);
      if (has_room && (lightest < 0 || loads[rank] < loads[lightest])) lightest = rank;
    }
    dealt[lightest].push_back(chunk);
    loads[lightest] += weights[chunk];
    if (static_cast<int32_t>(dealt[lightest].size()) == per_rank) --num_full;
  }
  size_t next_blank = 0;
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    std::sort(dealt[rank].begin(), dealt[rank].end());
    if (static_cast<int32_t>(dealt[rank].size()) < per_rank) dealt[rank].push_back(blanks[next_blank++]);
    std::copy(dealt[rank].begin(), dealt[rank].end(), items.begin() + (first_rank + rank) * per_rank);
  }
}

void balance(Placement& placement, int32_t first_rank, int32_t end_rank, int64_t target, Budget& budget) {
  Balancer(placement, first_rank, end_rank, budget).run(target);
}

void balance_with_mixes(Placement& placement, int64_t target, int32_t mixes, Random& random, Budget& budget) {
  const int32_t num_ranks = placement.layout.num_ranks;
  balance(placement, 0, num_ranks, target, budget);
  if (num_ranks < 3) return;
  int64_t least = placement.largest_load();
  std::vector<int32_t> best = placement.item_at;
  std::vector<int32_t> slots;
  for (int32_t mix = 0; mix < mixes && least > target && budget.is_left(); ++mix) {
    const auto heaviest = static_cast<int32_t>(std::max_element(placement.loads.begin(), placement.loads.end()) -
                                               placement.loads.begin());
    const int32_t second = (heaviest + 1 + random.below(num_ranks - 1)) % num_ranks;
    const int32_t third = (heaviest + 1 + random.below(num_ranks - 1)) % num_ranks;
    slots.clear();
    for (const int32_t rank : {heaviest, second, third}) {
      for (int32_t slot = placement.first_slot[rank]; slot < placement.first_slot[rank + 1]; ++slot) {
        if (!placement.is_blank(placement.item_at[slot])) slots.push_back(slot);
      }
    }
    for (auto left = static_cast<int32_t>(slots.size()); left > 1; --left) {
      placement.swap(slots[left - 1], slots[random.below(left)]);
    }
    balance(placement, 0, num_ranks, target, budget);
    const int64_t load = placement.largest_load();
    if (load <= least) {
      least = load;
      best = placement.item_at;
    } else {
      placement.set(best);
    }
  }
}

}  // namespace fm3::planner
