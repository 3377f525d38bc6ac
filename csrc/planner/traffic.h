// What crosses nodes: which key chunks ("nets") each node touches, and what an exchange of two chunks would change.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/placement.h"

namespace fm3::planner {

// The need graph as bit sets. Net j is key chunk j; chunk i is on net j if it owns or needs j.
struct Needs {
  int32_t num_chunks = 0;
  int32_t num_words = 0;              // 64-bit words of a set of chunks
  std::vector<uint64_t> nets;         // [chunks, words], the nets that each chunk is on
  std::vector<int32_t> first_word;    // [chunks], the words of `nets` outside [first_word, end_word) are 0
  std::vector<int32_t> end_word;      // [chunks]
  std::vector<int32_t> linked;        // the chunks that need a chunk or are needed by it, chunk after chunk, ascending
  std::vector<int64_t> linked_start;  // [chunks + 1]
  std::vector<int64_t> bytes;         // [chunks], divided by their greatest common divisor
  int64_t usual_bytes = 0;            // what the most chunks have
  std::vector<uint64_t> unusual;      // [words], the chunks with other bytes

  // `needs` is bool [chunks, chunks], (query chunk, key chunk).
  Needs(const bool* needs, const int64_t* chunk_bytes, int32_t num_chunks);

  const uint64_t* nets_of(int32_t chunk) const { return &nets[static_cast<int64_t>(chunk) * num_words]; }
};

// Counts of chunks on each net by node, kept up to date through exchanges.
class Traffic {
 public:
  Traffic(const Needs& needs, const Placement& placement);

  // N of the placement that it was made from and updated to: sum over nets of bytes * (nodes that touch it - 1).
  int64_t total() const { return total_; }

  // How N changes if `leaving` moves from node `home` to node `away` and `coming` the other way. Blanks are on no net.
  int64_t change(int32_t leaving, int32_t home, int32_t coming, int32_t away) const;

  // Makes that exchange, whose change was computed before.
  void exchange(int32_t leaving, int32_t home, int32_t coming, int32_t away, int64_t change);

  // How N changes if `chunk` leaves node `home`, <= 0, or joins node `away`, >= 0, as if nothing came or left there.
  int64_t change_of_leaving(int32_t chunk, int32_t home) const;
  int64_t change_of_joining(int32_t chunk, int32_t away) const;

 private:
  // Bytes of the nets in a word of a set.
  int64_t bytes_of(uint64_t set, int32_t word) const {
    int64_t sum = needs_.usual_bytes * __builtin_popcountll(set);
    for (uint64_t odd = set & needs_.unusual[word]; odd; odd &= odd - 1) {
      sum += needs_.bytes[word * 64 + __builtin_ctzll(odd)] - needs_.usual_bytes;
    }
    return sum;
  }
  const uint64_t* touched(int32_t node) const { return &touched_[static_cast<int64_t>(node) * needs_.num_words]; }
  const uint64_t* single(int32_t node) const { return &single_[static_cast<int64_t>(node) * needs_.num_words]; }
  void add(int32_t chunk, int32_t node, int32_t sign, const uint64_t* except);

  const Needs& needs_;
  int32_t num_chunks_;
  std::vector<int32_t> count_;     // [nodes, chunks], chunks of the node that are on the net
  std::vector<uint64_t> touched_;  // [nodes, words], nets with a count of 1 or more
  std::vector<uint64_t> single_;   // [nodes, words], nets with a count of 1
  int64_t total_ = 0;
};

}  // namespace fm3::planner
