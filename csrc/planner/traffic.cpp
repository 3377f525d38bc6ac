#include "planner/traffic.h"

#include <algorithm>
#include <numeric>

namespace fm3::planner {

Needs::Needs(const bool* needs, const int64_t* chunk_bytes, int32_t num_chunks)
    : num_chunks(num_chunks), num_words((num_chunks + 63) / 64) {
  const auto set = [](uint64_t* words, int32_t bit) { words[bit / 64] |= uint64_t{1} << (bit % 64); };
  nets.assign(static_cast<int64_t>(num_chunks) * num_words, 0);
  std::vector<uint64_t> users(nets.size(), 0);  // [chunks, words], the transposed
  for (int32_t chunk = 0; chunk < num_chunks; ++chunk) {
    uint64_t* row = &nets[static_cast<int64_t>(chunk) * num_words];
    const bool* needed = needs + static_cast<int64_t>(chunk) * num_chunks;
    for (int32_t net = 0; net < num_chunks; ++net) {
      if (!needed[net] && net != chunk) continue;
      set(row, net);
      set(&users[static_cast<int64_t>(net) * num_words], chunk);
    }
  }
  linked_start.push_back(0);
  for (int32_t chunk = 0; chunk < num_chunks; ++chunk) {
    const int64_t row = static_cast<int64_t>(chunk) * num_words;
    int32_t first = num_words, end = 0;
    for (int32_t word = 0; word < num_words; ++word) {
      if (nets[row + word]) {
        first = std::min(first, word);
        end = word + 1;
      }
      for (uint64_t left = nets[row + word] | users[row + word]; left; left &= left - 1) {
        const int32_t other = word * 64 + __builtin_ctzll(left);
        if (other != chunk) linked.push_back(other);
      }
    }
    first_word.push_back(first);
    end_word.push_back(end);
    linked_start.push_back(static_cast<int64_t>(linked.size()));
  }

  int64_t divisor = 0;
  for (int32_t chunk = 0; chunk < num_chunks; ++chunk) divisor = std::gcd(divisor, chunk_bytes[chunk]);
  bytes.assign(chunk_bytes, chunk_bytes + num_chunks);
  for (int64_t& size : bytes) size /= std::max<int64_t>(divisor, 1);
  std::vector<int64_t> sorted = bytes;
  std::sort(sorted.begin(), sorted.end());
  int64_t most = 0;
  for (size_t start = 0, end = 0; start < sorted.size(); start = end) {
    while (end < sorted.size() && sorted[end] == sorted[start]) ++end;
    if (static_cast<int64_t>(end - start) > most) {
      most = static_cast<int64_t>(end - start);
      usual_bytes = sorted[start];
    }
  }
  unusual.assign(num_words, 0);
  for (int32_t chunk = 0; chunk < num_chunks; ++chunk) {
    if (bytes[chunk] != usual_bytes) set(unusual.data(), chunk);
  }
}

Traffic::Traffic(const Needs& needs, const Placement& placement)
    : needs_(needs),
      num_chunks_(needs.num_chunks),
      count_(static_cast<int64_t>(placement.layout.num_nodes()) * needs.num_chunks, 0),
      touched_(static_cast<int64_t>(placement.layout.num_nodes()) * needs.num_words, 0),
      single_(touched_.size(), 0) {
  for (int32_t slot = 0; slot < placement.layout.num_slots(); ++slot) {
    const int32_t item = placement.item_at[slot];
    if (!placement.is_blank(item)) add(item, placement.node_of[placement.cell_of[slot]], 1, nullptr);
  }
  for (int32_t node = 0; node < placement.layout.num_nodes(); ++node) {
    for (int32_t word = 0; word < needs.num_words; ++word) total_ += bytes_of(touched(node)[word], word);
  }
  for (const int64_t size : needs.bytes) total_ -= size;
}

int64_t Traffic::change(int32_t leaving, int32_t home, int32_t coming, int32_t away) const {
  int64_t sum = 0;
  const bool leaves = leaving < num_chunks_, comes = coming < num_chunks_;
  const uint64_t* out = leaves ? needs_.nets_of(leaving) : nullptr;
  const uint64_t* in = comes ? needs_.nets_of(coming) : nullptr;
  if (leaves) {
    const uint64_t *joined = touched(away), *left = single(home);
    for (int32_t word = needs_.first_word[leaving]; word < needs_.end_word[leaving]; ++word) {
      const uint64_t both = comes ? in[word] : 0;
      sum += bytes_of(out[word] & ~joined[word], word) - bytes_of(out[word] & left[word] & ~both, word);
    }
  }
  if (comes) {
    const uint64_t *joined = touched(home), *left = single(away);
    for (int32_t word = needs_.first_word[coming]; word < needs_.end_word[coming]; ++word) {
      const uint64_t both = leaves ? out[word] : 0;
      sum += bytes_of(in[word] & ~joined[word], word) - bytes_of(in[word] & left[word] & ~both, word);
    }
  }
  return sum;
}

void Traffic::exchange(int32_t leaving, int32_t home, int32_t coming, int32_t away, int64_t change) {
  const uint64_t* out = leaving < num_chunks_ ? needs_.nets_of(leaving) : nullptr;
  const uint64_t* in = coming < num_chunks_ ? needs_.nets_of(coming) : nullptr;
  if (out) {
    add(leaving, home, -1, in);
    add(leaving, away, 1, in);
  }
  if (in) {
    add(coming, away, -1, out);
    add(coming, home, 1, out);
  }
  total_ += change;
}

int64_t Traffic::change_of_leaving(int32_t chunk, int32_t home) const {
  if (chunk >= num_chunks_) return 0;
  int64_t sum = 0;
  for (int32_t word = needs_.first_word[chunk]; word < needs_.end_word[chunk]; ++word) {
    sum -= bytes_of(needs_.nets_of(chunk)[word] & single(home)[word], word);
  }
  return sum;
}

int64_t Traffic::change_of_joining(int32_t chunk, int32_t away) const {
  if (chunk >= num_chunks_) return 0;
  int64_t sum = 0;
  for (int32_t word = needs_.first_word[chunk]; word < needs_.end_word[chunk]; ++word) {
    sum += bytes_of(needs_.nets_of(chunk)[word] & ~touched(away)[word], word);
  }
  return sum;
}

// Counts a chunk in or out of a node on its nets but those in `except`.
void Traffic::add(int32_t chunk, int32_t node, int32_t sign, const uint64_t* except) {
  const uint64_t* nets = needs_.nets_of(chunk);
  int32_t* count = &count_[static_cast<int64_t>(node) * num_chunks_];
  uint64_t* touched = &touched_[static_cast<int64_t>(node) * needs_.num_words];
  uint64_t* single = &single_[static_cast<int64_t>(node) * needs_.num_words];
  for (int32_t word = needs_.first_word[chunk]; word < needs_.end_word[chunk]; ++word) {
    for (uint64_t left = nets[word] & ~(except ? except[word] : 0); left; left &= left - 1) {
      const uint64_t bit = left & (~left + 1);
      const int32_t now = count[word * 64 + __builtin_ctzll(left)] += sign;
      touched[word] = now > 0 ? touched[word] | bit : touched[word] & ~bit;
      single[word] = now == 1 ? single[word] | bit : single[word] & ~bit;
    }
  }
}

}  // namespace fm3::planner
