"""The registry of backends and the choice among them."""

from __future__ import annotations

import pytest

from fm3_comm import BackendKind, ExchangeBackend, backends, connect, loopback
from fm3_core import ExchangeError, UnknownNameError


def test_the_backends_of_this_package_are_registered():
    assert {"loopback", "torch_dist"} <= set(backends.names())


def test_an_unknown_backend_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"unknown backend 'pigeon'; known: .*loopback, .*torch_dist"):
        connect(backend="pigeon")


def test_nothing_at_all_is_a_world_of_one_rank():
    handle = connect()
    assert isinstance(handle, ExchangeBackend)
    assert (handle.rank, handle.num_ranks) == (0, 1)


@pytest.mark.parametrize("backend", ["auto", "loopback"])
def test_a_handle_is_returned_as_it_is(backend):
    assert loopback.run(2, lambda handle: connect(handle, backend=backend) is handle) == [True, True]


def test_loopback_refuses_other_groups():
    with pytest.raises(
        ExchangeError, match=r"takes the handle that fm3_comm\.loopback\.run passes .*, got str"
    ):
        connect("world", backend="loopback")


def test_a_backend_that_a_user_registers_is_used():
    class Mine(loopback.LoopbackKind):
        def connect(self, group=None, *, timeout_seconds=None):
            return ("mine", group, timeout_seconds)

    kind: BackendKind = Mine()
    backends.register("mine", kind)
    try:
        assert connect("g", backend="mine", timeout_seconds=5.0) == ("mine", "g", 5.0)
    finally:
        backends.unregister("mine")
