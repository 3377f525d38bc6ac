#include "bindings/comm_kernels.h"

#include <pybind11/pybind11.h>

#include <cstdint>

#include "comm/device_wait.h"
#include "comm/pull.h"
#include "comm/put.h"
#include "comm/reduce.h"
#include "comm/signal.h"
#include "comm/slots.h"
#include "comm/sparsity.h"

namespace py = pybind11;

namespace fm3::bindings {

namespace {

template <typename T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

cudaStream_t stream_at(uintptr_t stream) { return pointer<CUstream_st>(stream); }

// Tables of structs are written in Python, as rows of a numpy record: these are what it must agree with.
template <typename Row>
void tell_size(py::dict& sizes, const char* name) {
  sizes[name] = sizeof(Row);
}

py::dict row_sizes() {
  py::dict sizes;
  tell_size<comm::PulledChunk>(sizes, "PulledChunk");
  tell_size<comm::Reader>(sizes, "Reader");
  tell_size<comm::Signal>(sizes, "Signal");
  tell_size<comm::PutChunk>(sizes, "PutChunk");
  tell_size<comm::SummedChunk>(sizes, "SummedChunk");
  tell_size<comm::WaitReport>(sizes, "WaitReport");
  return sizes;
}

comm::SlotLayout slot_layout(int64_t k_start, int64_t v_start, int64_t k_token_bytes, int64_t v_token_bytes,
                             int32_t batch, int32_t num_slots, int32_t chunk_tokens) {
  return {k_start, v_start, k_token_bytes, v_token_bytes, batch, num_slots, chunk_tokens};
}

void bind_values(py::module_& module) {
  using py::arg;
  module.def("row_sizes", &row_sizes, "Bytes of a row of each table.");
  py::class_<comm::SlotLayout>(module, "SlotLayout", "Where chunks of keys and values lie in the exchange buffer.")
      .def(py::init(&slot_layout), py::kw_only(), arg("k_start"), arg("v_start"), arg("k_token_bytes"),
           arg("v_token_bytes"), arg("batch"), arg("num_slots"), arg("chunk_tokens"));
  py::class_<comm::WaitLimit>(module, "WaitLimit", "How long kernels wait, and where they say what did not come.")
      .def(py::init([](uint64_t nanoseconds, uintptr_t report) {
             return comm::WaitLimit{nanoseconds, pointer<comm::WaitReport>(report)};
           }),
           py::kw_only(), arg("nanoseconds"), arg("report"));
  py::enum_<comm::WaitKind>(module, "WaitKind", "What a kernel waited for.")
      .value("NOTHING", comm::WaitKind::kNothing)
      .value("LANDED", comm::WaitKind::kLanded)
      .value("OPENED", comm::WaitKind::kOpened)
      .value("CLOSED", comm::WaitKind::kClosed)
      .value("WORK_DONE", comm::WaitKind::kWorkDone)
      .value("CONTRIBUTORS", comm::WaitKind::kContributors)
      .value("WORD", comm::WaitKind::kWord);
  py::enum_<comm::Wire>(module, "Wire", "What partial gradients travel as.")
      .value("FLOAT32", comm::Wire::kFloat32)
      .value("BFLOAT16", comm::Wire::kBfloat16);
  py::enum_<comm::Fetch>(module, "Fetch", "Atomic operations.")
      .value("OR", comm::Fetch::kOr)
      .value("ADD", comm::Fetch::kAdd);
}

void pull(uintptr_t chunks, int32_t num_chunks, uintptr_t readers, uintptr_t seen, uintptr_t buffer, uintptr_t landed,
          uintptr_t ready, uintptr_t finished_ctas, uintptr_t resident_ctas, const comm::SlotLayout& layout,
          const comm::WaitLimit& limit, uint64_t epoch, int num_ctas, uintptr_t stream) {
  const comm::PullParams params{
      .chunks = pointer<const comm::PulledChunk>(chunks),
      .readers = pointer<const comm::Reader>(readers),
      .seen = pointer<const uint8_t>(seen),
      .buffer = pointer<uint8_t>(buffer),
      .landed = pointer<uint64_t>(landed),
      .ready = pointer<uint32_t>(ready),
      .finished_ctas = pointer<uint32_t>(finished_ctas),
      .resident_ctas = pointer<uint32_t>(resident_ctas),
      .layout = layout,
      .limit = limit,
      .epoch = epoch,
      .num_chunks = num_chunks,
  };
  comm::pull(params, num_ctas, stream_at(stream));
}

void put(uintptr_t chunks, int32_t num_chunks, uintptr_t dk, uintptr_t dv, uintptr_t final, uintptr_t words,
         uintptr_t buffer, uintptr_t finished_ctas, const comm::SlotLayout& layout, const comm::WaitLimit& limit,
         uint64_t epoch, int64_t contributions_start, int64_t contribution_bytes, int64_t staging_start,
         comm::Wire wire, int32_t rank, int num_ctas, uintptr_t stream) {
  const comm::PutParams params{
      .chunks = pointer<const comm::PutChunk>(chunks),
      .dk = pointer<const float>(dk),
      .dv = pointer<const float>(dv),
      .final = pointer<uint32_t>(final),
      .words = pointer<uint64_t>(words),
      .buffer = pointer<uint8_t>(buffer),
      .finished_ctas = pointer<uint32_t>(finished_ctas),
      .layout = layout,
      .limit = limit,
      .epoch = epoch,
      .contributions_start = contributions_start,
      .contribution_bytes = contribution_bytes,
      .staging_start = staging_start,
      .wire = wire,
      .rank = rank,
      .num_chunks = num_chunks,
  };
  comm::put(params, num_ctas, stream_at(stream));
}

void reduce(uintptr_t chunks, int32_t num_chunks, uintptr_t expected, uintptr_t buffer, uintptr_t words,
            uintptr_t final, uintptr_t dk, uintptr_t dv, uintptr_t finished_ctas, const comm::SlotLayout& layout,
            const comm::WaitLimit& limit, uint64_t epoch, int64_t contributions_start, int64_t contribution_bytes,
            comm::Wire wire, int32_t rank, int32_t words_per_mask, int num_ctas, uintptr_t stream) {
  const comm::ReduceParams params{
      .chunks = pointer<const comm::SummedChunk>(chunks),
      .expected = pointer<const uint64_t>(expected),
      .buffer = pointer<const uint8_t>(buffer),
      .words = pointer<uint64_t>(words),
      .final = pointer<uint32_t>(final),
      .dk = pointer<float>(dk),
      .dv = pointer<float>(dv),
      .finished_ctas = pointer<uint32_t>(finished_ctas),
      .layout = layout,
      .limit = limit,
      .epoch = epoch,
      .contributions_start = contributions_start,
      .contribution_bytes = contribution_bytes,
      .wire = wire,
      .rank = rank,
      .words_per_mask = words_per_mask,
      .num_chunks = num_chunks,
  };
  comm::reduce(params, num_ctas, stream_at(stream));
}

void bind_transfers(py::module_& module) {
  using py::arg;
  module.def("pull", &pull, py::kw_only(), arg("chunks"), arg("num_chunks"), arg("readers"), arg("seen"), arg("buffer"),
             arg("landed"), arg("ready"), arg("finished_ctas"), arg("resident_ctas"), arg("layout"), arg("limit"),
             arg("epoch"), arg("num_ctas"), arg("stream"),
             "Pull chunks as they land and set their ready flags; returns without waiting.");
  module.def("put", &put, py::kw_only(), arg("chunks"), arg("num_chunks"), arg("dk"), arg("dv"), arg("final"),
             arg("words"), arg("buffer"), arg("finished_ctas"), arg("layout"), arg("limit"), arg("epoch"),
             arg("contributions_start"), arg("contribution_bytes"), arg("staging_start"), arg("wire"), arg("rank"),
             arg("num_ctas"), arg("stream"),
             "Put partial gradients as they get final and set this rank's bits; returns without waiting.");
  module.def("reduce", &reduce, py::kw_only(), arg("chunks"), arg("num_chunks"), arg("expected"), arg("buffer"),
             arg("words"), arg("final"), arg("dk"), arg("dv"), arg("finished_ctas"), arg("layout"), arg("limit"),
             arg("epoch"), arg("contributions_start"), arg("contribution_bytes"), arg("wire"), arg("rank"),
             arg("words_per_mask"), arg("num_ctas"), arg("stream"),
             "Add partial gradients as they come, in ascending order of rank; returns without waiting.");
}

void bind_words(py::module_& module) {
  using py::arg;
  module.def(
      "signal",
      [](uintptr_t signals, int32_t num_signals, uintptr_t words, uint64_t value, uintptr_t stream) {
        comm::signal({pointer<const comm::Signal>(signals), pointer<uint64_t>(words), value, num_signals},
                     stream_at(stream));
      },
      py::kw_only(), arg("signals"), arg("num_signals"), arg("words"), arg("value"), arg("stream"),
      "Set words of other ranks after the stream's earlier work.");
  module.def(
      "await_words",
      [](uintptr_t awaited, int32_t num_awaited, uintptr_t words, const comm::WaitLimit& limit, comm::WaitKind kind,
         uint64_t value, uintptr_t stream) {
        comm::await({pointer<const comm::Signal>(awaited), pointer<uint64_t>(words), limit, kind, value, num_awaited},
                    stream_at(stream));
      },
      py::kw_only(), arg("awaited"), arg("num_awaited"), arg("words"), arg("limit"), arg("kind"), arg("value"),
      arg("stream"), "Hold up the stream until words of this rank have come.");
  module.def(
      "fetch",
      [](comm::Fetch operation, uintptr_t word, uint64_t value, int rank, uintptr_t result, uintptr_t stream) {
        comm::fetch(operation, pointer<uint64_t>(word), value, rank, pointer<uint64_t>(result), stream_at(stream));
      },
      py::kw_only(), arg("operation"), arg("word"), arg("value"), arg("rank"), arg("result"), arg("stream"),
      "Change a word of a rank atomically; `result`, which the host sees, gets what it was.");
  module.def(
      "find_seen_chunks",
      [](uintptr_t lts, uintptr_t lte, uintptr_t uts, uintptr_t ute, uintptr_t seen, int64_t num_masks,
         int64_t num_keys, int32_t num_rows, int32_t chunk_tokens, uintptr_t stream) {
        comm::find_seen_chunks(
            {pointer<const int32_t>(lts), pointer<const int32_t>(lte), pointer<const int32_t>(uts),
             pointer<const int32_t>(ute), pointer<uint8_t>(seen), num_masks, num_keys, num_rows, chunk_tokens},
            stream_at(stream));
      },
      py::kw_only(), arg("lts"), arg("lte"), arg("uts"), arg("ute"), arg("seen"), arg("num_masks"), arg("num_keys"),
      arg("num_rows"), arg("chunk_tokens"), arg("stream"), "Fill seen, uint8 [chunks]; returns without waiting.");
}

}  // namespace

void bind_comm_kernels(py::module_& module) {
  bind_values(module);
  bind_transfers(module);
  bind_words(module);
}

}  // namespace fm3::bindings
