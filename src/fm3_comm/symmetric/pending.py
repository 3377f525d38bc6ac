"""Operations under way: a gather that tells what is here, a reduction that is fed part by part."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from torch import Tensor

from fm3_comm.assembly import Assembly
from fm3_comm.hops import RankHops
from fm3_comm.symmetric.site import Site
from fm3_core import ExchangeError
from fm3_core.check import require_int

Sums = Mapping[int, Tensor]
Assemble = Callable[[Mapping[int, Tensor], Sequence[int]], tuple[Tensor, Tensor]]


class GatherPending:
    """A Pending that tells which chunks are here.

    Args:
        site: where the operation works.
        tree: this rank's place in the trees.
        gathered: chunks that it gathers.
    """

    def __init__(self, site: Site, tree: RankHops, gathered: tuple[int, ...]) -> None:
        """Nothing is here but what this rank owns."""
        self._site = site
        self._tree = tree
        self._gathered = gathered
        self._epoch: int | None = None
        self._future: Future[dict[int, Tensor]] | None = None
        self._assembly: Assembly[Mapping[int, Tensor]] | None = None
        self._assemble: Assemble | None = None
        self._here: dict[int, Tensor] = {}
        self._changed = threading.Condition()

    def ready_chunks(self) -> tuple[int, ...]:
        """Return the gathered chunks that are here by now, ascending; own ones always are."""
        assert self._future is not None
        received = self._tree.received_index
        epoch = self._epoch
        ready = tuple(
            chunk
            for chunk in self._gathered
            if chunk not in received or (epoch is not None and self._site.is_ready(received[chunk], epoch))
        )
        return self._gathered if self._future.done() else ready

    def wait(self) -> tuple[Tensor, Tensor]:
        """Return the keys and values of all gathered chunks."""
        assert self._assembly is not None
        return self._assembly.wait()

    def first_ready(self, groups: Sequence[Sequence[int]]) -> int:
        """Wait until all chunks of one of the groups are here; return the index of the first such group."""
        assert self._future is not None
        with self._changed:
            while True:
                for index, chunks in enumerate(groups):
                    if all(chunk in self._here for chunk in chunks if chunk in self._tree.received_index):
                        return index
                if self._future.done():
                    self._future.result()
                self._changed.wait()

    def take(self, chunks: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Wait for some of the gathered chunks; return their keys and values, in the order given."""
        self.first_ready([chunks])
        assert self._assemble is not None
        return self._assemble(self._here, chunks)

    def attach(self, epoch: int) -> None:
        """Learn the epoch of the ready flags."""
        self._epoch = epoch

    def arrive(self, chunk: int, body: Tensor) -> None:
        """Have a received chunk's bytes."""
        with self._changed:
            self._here[chunk] = body
            self._changed.notify_all()

    def follow(
        self,
        future: Future[dict[int, Tensor]],
        assemble: Assemble,
    ) -> None:
        """Take the chunks from there."""
        self._future = future
        self._assemble = assemble
        self._assembly = Assembly(future.result, lambda received: assemble(received, self._gathered))
        future.add_done_callback(lambda _: self._tell())

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()


class SegmentedReduce:
    """A Pending whose partials leave segment by segment.

    Args:
        segments: (first, last + 1) of the gathered keys of each segment; some may be empty.
        snapshot: copies a segment's partials.
        assemble: makes the result of the sums.
    """

    def __init__(
        self,
        *,
        segments: tuple[tuple[int, int], ...],
        snapshot: Callable[[int], None],
        assemble: Callable[[Sums], tuple[Tensor, Tensor]],
    ) -> None:
        """Start with nothing done."""
        self.segments = segments
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._done: set[int] = set()
        self._signal: Callable[[int], None] | None = None
        self._future: Future[dict[int, Tensor]] | None = None
        self._assembly: Assembly[Sums] = Assembly(self._arrive, assemble)

    def work_done(self, segment: int) -> None:
        """Say that the partials of a segment are final; they are copied before this returns, and leave.

        Raises:
            ExchangeError: there is no such segment, or it was done already.
        """
        segment = require_int("segment", segment, maximum=len(self.segments) - 1, error=ExchangeError)
        with self._lock:
            if segment in self._done:
                raise ExchangeError(f"segment {segment} was done already")
            self._done.add(segment)
            self._snapshot(segment)
            if self._signal is not None:
                self._signal(segment)

    def wait(self) -> tuple[Tensor, Tensor]:
        """Return the sums for this rank's own tokens, when every rank has done every segment."""
        return self._assembly.wait()

    def attach(self, signal: Callable[[int], None]) -> None:
        """Call `signal` for each segment that is done, now or later."""
        with self._lock:
            self._signal = signal
            for segment in sorted(self._done):
                signal(segment)

    def follow(self, future: Future[dict[int, Tensor]]) -> None:
        """Take the sums from there."""
        self._future = future

    def _arrive(self) -> Sums:
        assert self._future is not None
        return self._future.result()
