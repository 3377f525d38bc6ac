#include "planner/anneal.h"

#include <algorithm>
#include <limits>

namespace fm3::planner {
namespace {

using Wide = __int128;

constexpr int32_t kLevels = 64;
constexpr int32_t kDraws = 5;

// Quantiles of the exponential distribution, round(-256 ln((i + 1/2) / 64)), as integers: logarithms of machines
// differ.
constexpr int32_t kExponential[64] = {1242, 961, 830, 744, 680, 628, 585, 549, 517, 488, 463, 439, 418, 398, 380, 363,
                                      347,  332, 318, 304, 291, 279, 268, 256, 246, 236, 226, 216, 207, 198, 190, 181,
                                      173,  166, 158, 151, 144, 137, 130, 124, 117, 111, 105, 99,  93,  87,  82,  76,
                                      71,   66,  61,  56,  51,  46,  41,  36,  32,  27,  23,  19,  14,  10,  6,   2};

class Annealing {
 public:
  Annealing(Placement& placement, const Needs& needs, const std::vector<int64_t>& limits, int32_t longest_run,
            Random& random)
      : placement_(placement),
        needs_(needs),
        limits_(limits),
        longest_run_(longest_run),
        random_(random),
        traffic_(needs, placement),
        slot_of_(placement.item_at.size()) {
    for (size_t slot = 0; slot < slot_of_.size(); ++slot)
      slot_of_[placement.item_at[slot]] = static_cast<int32_t>(slot);
    Wide weight = 0, bytes = 0;
    for (int32_t cell = 0; cell < placement.num_cells(); ++cell) {
      weight += placement.loads[cell];
      above_ += above(limits[cell] - placement.loads[cell]);
    }
    for (const int64_t size : needs.bytes) bytes += size;
    mean_weight_ = std::max<Wide>(weight / needs.num_chunks, 1);
    mean_bytes_ = std::max<Wide>(bytes / needs.num_chunks, 1);
    for (const int32_t cell : placement.cell_of) node_of_.push_back(placement.node_of[cell]);
    for (int32_t node = 0; node < placement.layout.num_nodes(); ++node) {
      first_slot_.push_back(placement.layout.first_rank(node) * placement.layout.slots_per_rank());
    }
    first_slot_.push_back(placement.layout.num_slots());
    while ((mean_bytes_ << fine_) < 65536) ++fine_;
    keep();
  }

  void run(const Cooling& cooling, int64_t moves) {
    int64_t left_moves = 0;
    for (int32_t level = 0; level < kLevels; ++level) {
      // Temperature falls with the square of the time that is left, and the penalty rises likewise.
      constexpr int32_t kWhole = (kLevels - 1) * (kLevels - 1);
      const int32_t left = (kLevels - 1 - level) * (kLevels - 1 - level);
      const int32_t temperature =
          cooling.end_temperature + (cooling.start_temperature - cooling.end_temperature) * left / kWhole;
      const int32_t penalty = cooling.end_penalty - (cooling.end_penalty - cooling.start_penalty) * left / kWhole;
      heat_ = (temperature * mean_bytes_) << fine_;
      price_ = static_cast<int64_t>(std::min<Wide>(((penalty * mean_bytes_) << (fine_ + 32)) / mean_weight_, kMost));
      left_moves += moves * (level + 1) / kLevels - moves * level / kLevels;
      while (left_moves > 0) left_moves -= try_swap();
    }
    if (found_) placement_.set(best_);
  }

 private:
  static constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

  // Weight above a limit, by the room that is left below it.
  static int64_t above(int64_t room) { return room < 0 ? -room : 0; }

  // Returns how many exchanges it computed.
  int64_t try_swap() {
    const int32_t first = random_.below(static_cast<int32_t>(slot_of_.size()));
    const int32_t item = placement_.item_at[first], cell = placement_.cell_of[first], home = node_of_[first];
    int32_t begin = 0, end = static_cast<int32_t>(slot_of_.size());
    if (!placement_.is_blank(item)) {
      const int64_t start = needs_.linked_start[item];
      const auto num_linked = static_cast<int32_t>(needs_.linked_start[item + 1] - start);
      if (num_linked > 0) {
        const int32_t relative = needs_.linked[start + random_.below(num_linked)];
        const int32_t node = node_of_[slot_of_[relative]];
        if (node == home && above_ == 0) return 1;  // among its own, and nothing to repair
        if (node != home) {
          begin = first_slot_[node];
          end = first_slot_[node + 1];
        }
      }
    }

    const int64_t weight = placement_.weights[item], room = limits_[cell] - placement_.loads[cell];
    int64_t more = kMost;
    int32_t second = -1;
    for (int32_t draw = 0; draw < kDraws; ++draw) {
      const int32_t candidate = begin + random_.below(end - begin), its_cell = placement_.cell_of[candidate];
      if (its_cell == cell) continue;
      const int64_t moved = weight - placement_.weight_at(candidate);
      const int64_t its_room = limits_[its_cell] - placement_.loads[its_cell];
      const int64_t its_more = above(room + moved) - above(room) + above(its_room - moved) - above(its_room);
      if (its_more < more && placement_.may_swap(first, candidate)) {
        more = its_more;
        second = candidate;
      }
    }
    if (second < 0) return 1;

    const int32_t other = placement_.item_at[second], away = node_of_[second];
    if (longest_run_ > 1 && away != home && !placement_.is_blank(item) && !placement_.is_blank(other)) {
      const int32_t length = 1 + random_.below(longest_run_);
      if (length > 1) return try_runs(item, home, other, away, length);
    }
    const int64_t change = away == home ? 0 : traffic_.change(item, home, other, away);
    const Wide cost = (static_cast<Wide>(change) << fine_) + ((static_cast<Wide>(more) * price_) >> 32);
    if (!accepts(cost)) return 1;
    if (away != home) traffic_.exchange(item, home, other, away, change);
    placement_.swap(first, second);
    slot_of_[item] = second;
    slot_of_[other] = first;
    above_ += more;
    keep();
    return 1;
  }

  // One swap of two runs of neighbouring chunks, as far as both are wholly on their nodes: what a document gains by
  // moving as a whole, its chunks one by one often lose.
  int64_t try_runs(int32_t item, int32_t home, int32_t other, int32_t away, int32_t length) {
    const int64_t above_before = above_, total_before = traffic_.total();
    int32_t shared = 1;
    while (shared < length && is_on(item + shared, home) && is_on(other + shared, away)) ++shared;
    for (int32_t i = 0; i < shared; ++i) exchange(item + i, home, other + i, away);
    const int64_t change = traffic_.total() - total_before, more = above_ - above_before;
    if (accepts((static_cast<Wide>(change) << fine_) + ((static_cast<Wide>(more) * price_) >> 32))) {
      keep();
    } else {
      for (int32_t i = shared - 1; i >= 0; --i) exchange(item + i, away, other + i, home);
    }
    return shared;
  }

  bool is_on(int32_t chunk, int32_t node) const {
    return chunk < placement_.layout.num_chunks && node_of_[slot_of_[chunk]] == node;
  }

  // Exchanges two chunks of two nodes.
  void exchange(int32_t chunk, int32_t home, int32_t other, int32_t away) {
    const int32_t slot = slot_of_[chunk], other_slot = slot_of_[other];
    const int32_t cell = placement_.cell_of[slot], other_cell = placement_.cell_of[other_slot];
    above_ -= above(limits_[cell] - placement_.loads[cell]) + above(limits_[other_cell] - placement_.loads[other_cell]);
    traffic_.exchange(chunk, home, other, away, traffic_.change(chunk, home, other, away));
    placement_.swap(slot, other_slot);
    slot_of_[chunk] = other_slot;
    slot_of_[other] = slot;
    above_ += above(limits_[cell] - placement_.loads[cell]) + above(limits_[other_cell] - placement_.loads[other_cell]);
  }

  bool accepts(Wide cost) { return cost <= 0 || cost <= (heat_ * kExponential[random_.next() >> 26]) >> 16; }

  // Remembers the placement if it is within the limits and the best so far.
  void keep() {
    if (above_ > 0 || (found_ && traffic_.total() >= least_)) return;
    found_ = true;
    least_ = traffic_.total();
    best_ = placement_.item_at;
  }

  Placement& placement_;
  const Needs& needs_;
  const std::vector<int64_t>& limits_;
  int32_t longest_run_;
  Random& random_;
  Traffic traffic_;
  std::vector<int32_t> slot_of_;     // [items]
  std::vector<int32_t> node_of_;     // [slots]
  std::vector<int32_t> first_slot_;  // [nodes + 1]
  Wide mean_weight_ = 1, mean_bytes_ = 1;
  int32_t fine_ = 0;   // costs are bytes times 2^fine, so that chunks of few bytes have fine costs
  Wide heat_ = 0;      // cost at the temperature, times 2^8
  int64_t price_ = 0;  // cost of a unit of weight above a limit, times 2^32
  int64_t above_ = 0;  // sum of the excess of all cells
  bool found_ = false;
  int64_t least_ = 0;
  std::vector<int32_t> best_;
};

}  // namespace

void anneal(Placement& placement, const Needs& needs, const std::vector<int64_t>& limits, const Cooling& cooling,
            int64_t moves, int32_t longest_run, Random& random) {
  Annealing(placement, needs, limits, longest_run, random).run(cooling, moves);
}

}  // namespace fm3::planner
