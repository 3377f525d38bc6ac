// Words in memory that several processes map: unsigned 64-bit integers that are read, written and awaited atomically.
#pragma once

#include <cstdint>

namespace fm3::comm {

// Reads a word; what its writer stored before is visible afterwards (acquire).
uint64_t load(const uint64_t* word);

// Writes a word after everything that this thread has stored before (release).
void store(uint64_t* word, uint64_t value);

// Adds modulo 2^64, or sets bits; returns the value before (acquire and release).
uint64_t fetch_add(uint64_t* word, uint64_t value);
uint64_t fetch_or(uint64_t* word, uint64_t value);

// Waits until the word is at least `value`; false when `timeout_seconds` have passed. It looks a few times at once,
// then sleeps between looks: ranks share cores.
bool wait_ge(const uint64_t* word, uint64_t value, double timeout_seconds);

}  // namespace fm3::comm
