#include "comm/nvshmem_job.h"

#include <nvshmem.h>
#include <nvshmemx.h>

#include <cstring>

#include "host/error.h"

namespace fm3::comm {
namespace {

int signal_operation(bool adds) { return adds ? NVSHMEM_SIGNAL_ADD : NVSHMEM_SIGNAL_SET; }

void require(int status, const char* call) {
  if (status != 0) throw Error(std::string(call) + ": status " + std::to_string(status));
}

}  // namespace

Version device_library_version() {
  return {NVSHMEM_VENDOR_MAJOR_VERSION, NVSHMEM_VENDOR_MINOR_VERSION, NVSHMEM_VENDOR_PATCH_VERSION};
}

Version host_library_version() {
  Version version{};
  nvshmemx_vendor_get_version_info(&version[0], &version[1], &version[2]);
  return version;
}

std::string make_job_id() {
  nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
  require(nvshmemx_get_uniqueid(&id), "nvshmemx_get_uniqueid");
  return {reinterpret_cast<const char*>(&id), sizeof(id)};
}

void join_job(int rank, int num_ranks, const std::string& bytes) {
  nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
  if (bytes.size() != sizeof(id)) throw Error("join_job: the id must have " + std::to_string(sizeof(id)) + " bytes");
  std::memcpy(&id, bytes.data(), sizeof(id));
  nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
  require(nvshmemx_set_attr_uniqueid_args(rank, num_ranks, &id, &attributes), "nvshmemx_set_attr_uniqueid_args");
  require(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes), "nvshmemx_init_attr");
}

void leave_job() { nvshmem_finalize(); }

void* allocate(size_t num_bytes) {
  void* memory = nvshmem_malloc(num_bytes);
  if (memory == nullptr && num_bytes > 0) {
    throw Error("nvshmem_malloc: no room for " + std::to_string(num_bytes) +
                " bytes in the symmetric heap (NVSHMEM_SYMMETRIC_SIZE)");
  }
  return memory;
}

void release(void* memory) { nvshmem_free(memory); }

void* mapped_at(const void* memory, int rank) { return nvshmem_ptr(memory, rank); }

void get(void* target, const void* source, size_t num_bytes, int rank, cudaStream_t stream) {
  nvshmemx_getmem_nbi_on_stream(target, source, num_bytes, rank, stream);
}

void put_signal(void* target, const void* source, size_t num_bytes, uint64_t* word, uint64_t value, bool adds, int rank,
                cudaStream_t stream) {
  nvshmemx_putmem_signal_nbi_on_stream(target, source, num_bytes, word, value, signal_operation(adds), rank, stream);
}

void signal_word(uint64_t* word, uint64_t value, bool adds, int rank, cudaStream_t stream) {
  nvshmemx_signal_op_on_stream(word, value, signal_operation(adds), rank, stream);
}

void quiet(cudaStream_t stream) { nvshmemx_quiet_on_stream(stream); }

}  // namespace fm3::comm
