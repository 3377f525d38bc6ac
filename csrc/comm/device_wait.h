// How long kernels wait for words that others write, and how they say what did not come.
#pragma once

#include <cstdint>

namespace fm3::comm {

enum class WaitKind : uint32_t { kNothing = 0, kLanded, kOpened, kClosed, kWorkDone, kContributors, kWord };

// The first wait that ran out of time. In memory that the host and the device see; zero before a launch.
struct WaitReport {
  uint32_t kind = 0;  // a WaitKind; once it is set every wait of the rank's kernels gives up
  int32_t peer = -1;
  int32_t index = -1;  // of the chunk, segment or word
  uint32_t padding = 0;
  uint64_t expected = 0;
  uint64_t seen = 0;
};

struct WaitLimit {
  uint64_t nanoseconds = 0;      // 0: no limit
  WaitReport* report = nullptr;  // nullptr: no limit
};

}  // namespace fm3::comm
