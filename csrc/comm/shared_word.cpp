#include "comm/shared_word.h"

#include <time.h>

#include <chrono>

namespace fm3::comm {

namespace {

// Other processes see these as plain words: the operations must need no lock that lives elsewhere.
static_assert(__atomic_always_lock_free(sizeof(uint64_t), nullptr), "64-bit atomics need a lock on this machine");

constexpr int kLooksAtOnce = 64;
constexpr int64_t kFirstNapNanoseconds = 2'000;
constexpr int64_t kLongestNapNanoseconds = 100'000;

}  // namespace

uint64_t load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

void store(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

uint64_t fetch_add(uint64_t* word, uint64_t value) { return __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL); }

uint64_t fetch_or(uint64_t* word, uint64_t value) { return __atomic_fetch_or(word, value, __ATOMIC_ACQ_REL); }

bool wait_ge(const uint64_t* word, uint64_t value, double timeout_seconds) {
  for (int look = 0; look < kLooksAtOnce; ++look) {
    if (load(word) >= value) return true;
  }
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_seconds);
  for (int64_t nap = kFirstNapNanoseconds; Clock::now() < deadline;) {
    const timespec pause{0, nap};
    nanosleep(&pause, nullptr);
    if (load(word) >= value) return true;
    nap = nap * 2 < kLongestNapNanoseconds ? nap * 2 : kLongestNapNanoseconds;
  }
  return load(word) >= value;
}

}  // namespace fm3::comm
