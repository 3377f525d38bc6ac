// The NVSHMEM job of this process, and its operations in the order of a stream.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace fm3::comm {

using Version = std::array<int, 3>;

// The version of the device library that this extension was linked with.
Version device_library_version();

// The version of the host library that this process has loaded.
Version host_library_version();

// Bytes by which the ranks of a job find each other: made by one rank, given to all.
std::string make_job_id();

// Joins the job on the current device; all ranks must come. Throws where the id is none or NVSHMEM refuses.
void join_job(int rank, int num_ranks, const std::string& id);

// Leaves it; all ranks must come.
void leave_job();

// Symmetric memory; all ranks must call these alike. The memory is not set.
void* allocate(size_t num_bytes);
void release(void* memory);

// The address at which this device sees the memory of a rank, nullptr where only NVSHMEM reaches it.
void* mapped_at(const void* memory, int rank);

// Started on the stream and done when `quiet` is. A put's data come before its signal.
void get(void* target, const void* source, size_t num_bytes, int rank, cudaStream_t stream);
void put_signal(void* target, const void* source, size_t num_bytes, uint64_t* word, uint64_t value, bool adds, int rank,
                cudaStream_t stream);
void signal_word(uint64_t* word, uint64_t value, bool adds, int rank, cudaStream_t stream);
void quiet(cudaStream_t stream);

}  // namespace fm3::comm
