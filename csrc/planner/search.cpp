#include "planner/search.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "planner/anneal.h"
#include "planner/balance.h"
#include "planner/descent.h"
#include "planner/random.h"

namespace fm3::planner {
namespace {

using Wide = __int128;

constexpr uint64_t kSeed = 42;
constexpr Cooling kNodeCooling{400, 80, 2, 32};
constexpr Cooling kAgainCooling{200, 80, 8, 32};
constexpr Cooling kRankCooling{100, 60, 8, 64};
constexpr Cooling kRepairCooling{60, 20, 256, 2048};

class Search {
 public:
  Search(const Layout& layout, const int64_t* weights, const Needs* needs, const SearchOptions& options)
      : layout_(layout),
        weights_(weights),
        needs_(needs),
        options_(options),
        random_(kSeed),
        in_order_(numbered(layout)),
        placement_(Placement::of_ranks(layout, weights, in_order_)) {}

  Outcome run() {
    std::vector<int32_t> items = in_order_;
    deal(layout_, weights_, 0, layout_.num_ranks, items);
    dealt_ = items;
    placement_.set(items);
    Budget budget{0, options_.compute_moves};
    balance_with_mixes(placement_, options_.target, options_.mixes, random_, budget);
    moves_ = layout_.num_chunks + budget.spent;
    if (needs_ && layout_.num_nodes() > 1) lower_traffic();
    return {placement_.item_at, moves_};
  }

 private:
  // Chunks in ascending order, contiguous; blanks in the last slots of the last ranks.
  static std::vector<int32_t> numbered(const Layout& layout) {
    std::vector<int32_t> items(layout.num_slots());
    int32_t chunk = 0, blank = layout.num_chunks;
    for (int32_t slot = 0; slot < layout.num_slots(); ++slot) {
      const bool is_last = slot % layout.slots_per_rank() == layout.slots_per_rank() - 1;
      const bool has_blank = slot / layout.slots_per_rank() >= layout.num_ranks - layout.num_blanks();
      items[slot] = is_last && has_blank ? blank++ : chunk++;
    }
    return items;
  }

  // A run of chunks from the head of the sequence and one from its tail on each rank; blanks as when numbered.
  std::vector<int32_t> head_and_tail() const {
    std::vector<int32_t> items = in_order_;
    const int32_t per_rank = layout_.slots_per_rank();
    int32_t head = 0, tail = layout_.num_chunks;
    for (int32_t rank = 0; rank < layout_.num_ranks; ++rank) {
      const int32_t count = per_rank - placement_.is_blank(items[(rank + 1) * per_rank - 1]);
      const int32_t in_head = (count + 1) / 2;
      tail -= count - in_head;
      for (int32_t place = 0; place < count; ++place) {
        items[rank * per_rank + place] = place < in_head ? head + place : tail + place - in_head;
      }
      head += in_head;
    }
    return items;
  }

  void lower_traffic() {
    const int64_t load = placement_.largest_load();
    limit_ = clamp(load + static_cast<Wide>(load) * options_.slack / 1'000'000'000);
    inner_moves_ = options_.compute_moves / (options_.runs + 1) / layout_.num_nodes();
    consider();
    for (const std::vector<int32_t>& start : {dealt_, head_and_tail()}) {
      placement_.set(start);
      if (placement_.largest_load() <= limit_) consider();
    }
    if (options_.runs == 0) return placement_.set(best_);
    run_moves_ = options_.traffic_moves / options_.runs;
    while (annealed_ == 0 || annealed_ + run_moves_ <= options_.traffic_moves) {
      if (least_traffic_ == 0 || run_moves_ == 0) break;
      anneal_nodes();
      if (placement_.largest_load() > limit_) anneal_ranks();
      if (placement_.largest_load() <= limit_) consider();
    }
    moves_ += annealed_;
    placement_.set(best_);
  }

  // Decides which node owns what, and deals a node's chunks to its ranks. Every other run starts from the best
  // placement so far, less hot.
  void anneal_nodes() {
    from_best_ = !from_best_;
    Placement nodes = Placement::of_nodes(layout_, weights_, from_best_ ? best_ : in_order_);
    std::vector<int64_t> limits;
    for (int32_t node = 0; node < layout_.num_nodes(); ++node) {
      limits.push_back(clamp(static_cast<Wide>(limit_) * (layout_.end_rank(node) - layout_.first_rank(node))));
    }
    anneal(nodes, *needs_, limits, from_best_ ? kAgainCooling : kNodeCooling, run_moves_, options_.longest_run,
           random_);
    annealed_ += run_moves_;
    std::vector<int32_t> items = nodes.item_at;
    for (int32_t node = 0; node < layout_.num_nodes(); ++node) {
      deal(layout_, weights_, layout_.first_rank(node), layout_.end_rank(node), items);
    }
    placement_.set(items);
    balance_nodes(limit_);
  }

  // Repairs what nodes cannot see, ranks above the limit: at little traffic if that works, else at any.
  void anneal_ranks() {
    const std::vector<int64_t> limits(layout_.num_ranks, limit_);
    for (const Cooling& cooling : {kRankCooling, kRepairCooling}) {
      anneal(placement_, *needs_, limits, cooling, run_moves_ / 4, options_.longest_run, random_);
      annealed_ += run_moves_ / 4;
      balance_nodes(limit_);
      if (placement_.largest_load() <= limit_) return;
    }
    Budget budget{0, options_.compute_moves};
    balance(placement_, 0, layout_.num_ranks, limit_, budget);
    moves_ += budget.spent;
  }

  void balance_nodes(int64_t target) {
    for (int32_t node = 0; node < layout_.num_nodes(); ++node) {
      Budget budget{0, inner_moves_};
      balance(placement_, layout_.first_rank(node), layout_.end_rank(node), target, budget);
      moves_ += budget.spent;
    }
  }

  // Alternates swaps between nodes and balance inside them while N falls, and keeps the outcome if it is the best.
  void consider() {
    Traffic traffic(*needs_, placement_);
    Budget budget{0, options_.traffic_moves / 2};
    int64_t before;
    do {
      before = traffic.total();
      descend(placement_, traffic, limit_, budget);
      balance_nodes(0);
    } while (traffic.total() < before);
    moves_ += budget.spent;
    const int64_t load = placement_.largest_load();
    if (!best_.empty() &&
        (traffic.total() > least_traffic_ || (traffic.total() == least_traffic_ && load >= least_load_)))
      return;
    least_traffic_ = traffic.total();
    least_load_ = load;
    best_ = placement_.item_at;
  }

  static int64_t clamp(Wide value) {
    return static_cast<int64_t>(std::min<Wide>(value, std::numeric_limits<int64_t>::max()));
  }

  const Layout& layout_;
  const int64_t* weights_;
  const Needs* needs_;
  const SearchOptions& options_;
  Random random_;
  const std::vector<int32_t> in_order_;
  std::vector<int32_t> dealt_;
  Placement placement_;
  int64_t moves_ = 0;
  int64_t limit_ = 0;
  int64_t inner_moves_ = 0;
  bool from_best_ = true;
  int64_t run_moves_ = 0, annealed_ = 0;
  std::vector<int32_t> best_;
  int64_t least_traffic_ = 0, least_load_ = 0;
};

}  // namespace

Outcome search(const Layout& layout, const int64_t* weights, const Needs* needs, const SearchOptions& options) {
  return Search(layout, weights, needs, options).run();
}

}  // namespace fm3::planner
