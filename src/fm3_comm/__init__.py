"""Moving keys, values and their gradients between ranks as a plan says.

`make_exchange` derives from a partition and a mask's needs what each rank gathers: exactly the chunks that
its rows see. A backend moves it: a pruned all-gather of keys and values, and on the way back a pruned
reduce-scatter of their gradients, summed in one fixed order. `loopback.run` runs P ranks in one process;
`torch_dist` joins the ranks of a torch.distributed group; `symmetric` exchanges one-sidedly, over memory that
ranks read and write without asking each other.
"""

from fm3_comm import loopback, symmetric, torch_dist
from fm3_comm.backend import (
    BackendKind,
    ChunkedBackend,
    ChunkedPending,
    ExchangeBackend,
    Pending,
    SegmentedPending,
    backends,
)
from fm3_comm.connect import connect
from fm3_comm.exchange import check_exchange, make_exchange
from fm3_comm.hops import arrival_order, hops
from fm3_comm.message import Head, Message
from fm3_comm.point_to_point import PointToPointBackend
from fm3_comm.routing import Route, routes
from fm3_comm.segments import DEFAULT_SEGMENTS, cut_segments
from fm3_comm.traffic import Traffic, bytes_by_pair, gather_bytes, reduce_bytes

__all__ = [
    "DEFAULT_SEGMENTS",
    "BackendKind",
    "ChunkedBackend",
    "ChunkedPending",
    "ExchangeBackend",
    "Head",
    "Message",
    "Pending",
    "PointToPointBackend",
    "Route",
    "SegmentedPending",
    "Traffic",
    "arrival_order",
    "backends",
    "bytes_by_pair",
    "check_exchange",
    "connect",
    "cut_segments",
    "gather_bytes",
    "hops",
    "loopback",
    "make_exchange",
    "reduce_bytes",
    "routes",
    "symmetric",
    "torch_dist",
]
