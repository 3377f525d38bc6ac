// Who owns what while a search is running: cells of slots that hold chunks, and their loads.
#pragma once

#include <cstdint>
#include <vector>

namespace fm3::planner {

// The ranks and nodes, and the slots that the ranks give.
//
// Every rank has as many slots, slots of a node are side by side. Where the ranks do not divide the chunks, blanks of
// no weight and no need fill the slots that are left; a rank holds at most one, so that counts of chunks differ by at
// most one.
struct Layout {
  int32_t num_chunks = 0;
  int32_t num_ranks = 0;
  int32_t ranks_per_node = 0;

  int32_t slots_per_rank() const { return (num_chunks + num_ranks - 1) / num_ranks; }
  int32_t num_slots() const { return num_ranks * slots_per_rank(); }
  int32_t num_blanks() const { return num_slots() - num_chunks; }
  int32_t num_nodes() const { return (num_ranks + ranks_per_node - 1) / ranks_per_node; }
  int32_t first_rank(int32_t node) const { return node * ranks_per_node; }
  int32_t end_rank(int32_t node) const {
    const int32_t end = (node + 1) * ranks_per_node;
    return end < num_ranks ? end : num_ranks;
  }
};

// Items on slots. Cells are ranks, or whole nodes where it does not matter yet which rank of a node owns what.
struct Placement {
  Layout layout;
  const int64_t* weights = nullptr;  // [slots] by item: chunks, then blanks, which weigh 0
  std::vector<int32_t> item_at;      // [slots]
  std::vector<int32_t> cell_of;      // [slots]
  std::vector<int32_t> first_slot;   // [cells + 1]
  std::vector<int32_t> node_of;      // [cells]
  std::vector<int32_t> blank_room;   // [cells], blanks that the cell may still take
  std::vector<int64_t> loads;        // [cells]

  // One cell a rank, or one a node. `items` is [slots].
  static Placement of_ranks(const Layout& layout, const int64_t* weights, const std::vector<int32_t>& items) {
    return Placement(layout, weights, items, 1);
  }
  static Placement of_nodes(const Layout& layout, const int64_t* weights, const std::vector<int32_t>& items) {
    return Placement(layout, weights, items, layout.ranks_per_node);
  }

  int32_t num_cells() const { return static_cast<int32_t>(loads.size()); }
  bool is_blank(int32_t item) const { return item >= layout.num_chunks; }
  int64_t weight_at(int32_t slot) const { return weights[item_at[slot]]; }

  // Places items anew.
  void set(const std::vector<int32_t>& items) {
    item_at = items;
    for (int32_t cell = 0; cell < num_cells(); ++cell) {
      loads[cell] = 0;
      blank_room[cell] = (first_slot[cell + 1] - first_slot[cell]) / layout.slots_per_rank();
      for (int32_t slot = first_slot[cell]; slot < first_slot[cell + 1]; ++slot) {
        loads[cell] += weight_at(slot);
        blank_room[cell] -= is_blank(items[slot]);
      }
    }
  }

  // Whether two slots may exchange their items: no cell may get a blank too many.
  bool may_swap(int32_t first, int32_t second) const {
    const bool blank = is_blank(item_at[first]);
    if (blank == is_blank(item_at[second])) return true;
    return blank_room[cell_of[blank ? second : first]] > 0;
  }

  void swap(int32_t first, int32_t second) {
    const int32_t first_cell = cell_of[first], second_cell = cell_of[second];
    const int32_t first_item = item_at[first], second_item = item_at[second];
    const int64_t moved = weights[first_item] - weights[second_item];
    loads[first_cell] -= moved;
    loads[second_cell] += moved;
    const int32_t blanks = is_blank(first_item) - is_blank(second_item);
    blank_room[first_cell] += blanks;
    blank_room[second_cell] -= blanks;
    item_at[first] = second_item;
    item_at[second] = first_item;
  }

  int64_t largest_load() const {
    int64_t largest = 0;
    for (const int64_t load : loads) largest = load > largest ? load : largest;
    return largest;
  }

 private:
  Placement(const Layout& layout, const int64_t* weights, const std::vector<int32_t>& items, int32_t ranks_per_cell)
      : layout(layout), weights(weights) {
    for (int32_t rank = 0; rank < layout.num_ranks; rank += ranks_per_cell) {
      first_slot.push_back(rank * layout.slots_per_rank());
      node_of.push_back(rank / layout.ranks_per_node);
    }
    loads.resize(first_slot.size());
    blank_room.resize(first_slot.size());
    first_slot.push_back(layout.num_slots());
    cell_of.resize(layout.num_slots());
    for (int32_t cell = 0; cell < num_cells(); ++cell) {
      for (int32_t slot = first_slot[cell]; slot < first_slot[cell + 1]; ++slot) cell_of[slot] = cell;
    }
    set(items);
  }
};

// Work is counted in moves: exchanges whose outcome was computed.
struct Budget {
  int64_t spent = 0;
  int64_t limit = 0;

  bool is_left() const { return spent < limit; }

  // Whether a step of rows * columns exchanges is within what is left.
  bool affords(int64_t rows, int64_t columns) const { return is_left() && rows <= (limit - spent) / columns; }
};

}  // namespace fm3::planner
