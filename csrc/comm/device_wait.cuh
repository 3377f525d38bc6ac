// Words that several devices write and await, and the waits.
#pragma once

#include <cuda/atomic>
#include <cuda/std/chrono>

#include "comm/device_wait.h"

namespace fm3::comm {

template <typename Word>
using SystemWord = cuda::atomic_ref<Word, cuda::thread_scope_system>;

template <typename Word>
using DeviceWord = cuda::atomic_ref<Word, cuda::thread_scope_device>;

// ld.acquire.sys: what its writer released, on this device or another, is seen afterwards.
template <typename Word>
__device__ inline Word load_acquire(Word* word) {
  return SystemWord<Word>(*word).load(cuda::memory_order_acquire);
}

// st.release.sys: after everything that this thread stored or knows to be stored.
template <typename Word>
__device__ inline void store_release(Word* word, Word value) {
  SystemWord<Word>(*word).store(value, cuda::memory_order_release);
}

__device__ inline uint64_t now_nanoseconds() {
  const auto now = cuda::std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(cuda::std::chrono::duration_cast<cuda::std::chrono::nanoseconds>(now).count());
}

// One wait of one thread: asks now and then whether it should give up.
class Patience {
 public:
  __device__ explicit Patience(const WaitLimit& limit) : limit_(limit) {}

  // Begins anew: something has come.
  __device__ void restart() { started_ = 0; }

  // Whether to go on waiting; writes the report when the time is over.
  __device__ bool lasts(WaitKind kind, int peer, int index, uint64_t expected, uint64_t seen) {
    __nanosleep(kNapNanoseconds);
    if (limit_.report == nullptr) return true;
    if (SystemWord<uint32_t>(limit_.report->kind).load(cuda::memory_order_relaxed) != 0) return false;
    if (limit_.nanoseconds == 0) return true;
    const uint64_t now = now_nanoseconds();
    if (started_ == 0) started_ = now;
    if (now - started_ < limit_.nanoseconds) return true;
    uint32_t nobody = 0;
    const auto mine = static_cast<uint32_t>(kind);
    if (SystemWord<uint32_t>(limit_.report->kind).compare_exchange_strong(nobody, mine, cuda::memory_order_relaxed)) {
      limit_.report->peer = peer;
      limit_.report->index = index;
      limit_.report->expected = expected;
      limit_.report->seen = seen;
    }
    return false;
  }

 private:
  static constexpr unsigned kNapNanoseconds = 100;

  const WaitLimit& limit_;
  uint64_t started_ = 0;
};

// Waits until a word is at least `value`; false when the time is over.
__device__ inline bool await_word(uint64_t* word, uint64_t value, const WaitLimit& limit, WaitKind kind, int peer,
                                  int index) {
  Patience patience(limit);
  for (uint64_t seen = load_acquire(word); seen < value; seen = load_acquire(word)) {
    if (!patience.lasts(kind, peer, index, value, seen)) return false;
  }
  return true;
}

// The same for an epoch that is counted modulo 2^32.
__device__ inline bool has_come(uint32_t seen, uint32_t epoch) { return static_cast<int32_t>(seen - epoch) >= 0; }

__device__ inline bool await_epoch(uint32_t* flag, uint32_t epoch, const WaitLimit& limit, WaitKind kind, int index) {
  Patience patience(limit);
  for (uint32_t seen = load_acquire(flag); !has_come(seen, epoch); seen = load_acquire(flag)) {
    if (!patience.lasts(kind, -1, index, epoch, seen)) return false;
  }
  return true;
}

}  // namespace fm3::comm
