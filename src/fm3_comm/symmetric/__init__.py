"""One-sided exchange: ranks read and write each other's memory; nobody answers, flags tell.

`SymmetricMemory` is what a transport offers, `SymmetricBackend` the exchange over any of them. The protocol,
who writes which flag when, is in docs/exchange.md; `gather` and `reduce` are its two halves.
"""

from fm3_comm.symmetric.backend import SymmetricBackend, SymmetricOptions
from fm3_comm.symmetric.device_backend import DeviceBackend
from fm3_comm.symmetric.device_gather import DeviceOptions, DevicePending
from fm3_comm.symmetric.in_process import InProcessKind, InProcessMemory, InProcessWorld
from fm3_comm.symmetric.kinds import SymmetricKind
from fm3_comm.symmetric.memory import MemoryKind, SignalOp, SymmetricBuffer, SymmetricMemory, memories
from fm3_comm.symmetric.nvshmem import NvshmemKind, NvshmemMemory
from fm3_comm.symmetric.pending import GatherPending, SegmentedReduce
from fm3_comm.symmetric.shm import ShmKind, ShmMemory
from fm3_comm.symmetric.simulate import interleave, simulate

__all__ = [
    "DeviceBackend",
    "DeviceOptions",
    "DevicePending",
    "GatherPending",
    "InProcessMemory",
    "InProcessWorld",
    "MemoryKind",
    "NvshmemMemory",
    "SegmentedReduce",
    "ShmMemory",
    "SignalOp",
    "SymmetricBackend",
    "SymmetricBuffer",
    "SymmetricKind",
    "SymmetricMemory",
    "SymmetricOptions",
    "interleave",
    "memories",
    "simulate",
]

memories.register("in_process", InProcessKind())
memories.register("nvshmem", NvshmemKind())
memories.register("shm", ShmKind())
