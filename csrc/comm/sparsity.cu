#include "comm/sparsity.h"

#include <limits>

#include "host/error.h"

namespace fm3::comm {
namespace {

constexpr int kThreads = 256;

// Whether two spans together hide every row of [0, num_rows).
__device__ bool hides_all(int32_t first_start, int32_t first_end, int32_t second_start, int32_t second_end,
                          int32_t num_rows) {
  const bool first_is_empty = first_start >= first_end, second_is_empty = second_start >= second_end;
  if (first_is_empty && second_is_empty) return num_rows == 0;
  if (first_is_empty) return second_start <= 0 && second_end >= num_rows;
  if (second_is_empty) return first_start <= 0 && first_end >= num_rows;
  const bool they_touch = max(first_start, second_start) <= min(first_end, second_end);
  const bool one_does = (first_start <= 0 && first_end >= num_rows) || (second_start <= 0 && second_end >= num_rows);
  return one_does || (they_touch && min(first_start, second_start) <= 0 && max(first_end, second_end) >= num_rows);
}

// One CTA for one chunk.
__global__ void __launch_bounds__(kThreads) sparsity_kernel(const __grid_constant__ SparsityParams params) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * params.chunk_tokens;
  const int64_t length = min(static_cast<int64_t>(params.chunk_tokens), params.num_keys - first);
  bool is_seen = false;
  for (int64_t i = threadIdx.x; i < params.num_masks * length; i += kThreads) {
    const int64_t column = i / length * params.num_keys + first + i % length;
    is_seen |=
        !hides_all(params.lts[column], params.lte[column], params.uts[column], params.ute[column], params.num_rows);
  }
  const bool any = __syncthreads_or(is_seen) != 0;
  if (threadIdx.x == 0) params.seen[blockIdx.x] = any ? 1 : 0;
}

}  // namespace

void find_seen_chunks(const SparsityParams& params, cudaStream_t stream) {
  if (params.num_masks < 0 || params.num_keys < 0 || params.num_rows < 0 || params.chunk_tokens < 1) {
    throw Error("find_seen_chunks: sizes must not be negative, and chunk_tokens at least 1");
  }
  const int64_t num_chunks = (params.num_keys + params.chunk_tokens - 1) / params.chunk_tokens;
  if (num_chunks > std::numeric_limits<int32_t>::max())
    throw Error("find_seen_chunks: more chunks than one grid holds");
  if (num_chunks == 0) return;
  sparsity_kernel<<<static_cast<unsigned>(num_chunks), kThreads, 0, stream>>>(params);
  check(cudaGetLastError(), "find_seen_chunks");
}

}  // namespace fm3::comm
