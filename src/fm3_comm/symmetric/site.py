"""What one rank's programs work on: the memory, the board, the exchange buffer, and the count of epochs."""

from __future__ import annotations

import threading

from torch import Tensor

from fm3_comm.message import Head
from fm3_comm.symmetric.board import Board
from fm3_comm.symmetric.footprint import Footprint
from fm3_comm.symmetric.memory import SignalOp, SymmetricBuffer, SymmetricMemory
from fm3_comm.symmetric.program import QUIET, AnyOf, Program, Until


class Site:
    """One rank's place of work; one operation works here at a time.

    Args:
        memory: this rank's.
    """

    def __init__(self, memory: SymmetricMemory) -> None:
        """Allocate the board; the exchange buffer comes with the first exchange."""
        self.memory = memory
        self.board = Board(memory)
        self.room = Footprint(num_ranks=memory.num_ranks)
        self.epoch = 0
        self._buffer: SymmetricBuffer | None = None
        self._lock = threading.Lock()

    @property
    def rank(self) -> int:
        """This rank."""
        return self.memory.rank

    @property
    def buffer(self) -> SymmetricBuffer:
        """The exchange buffer: one for sends and receives of all layers, forward and backward."""
        assert self._buffer is not None
        return self._buffer

    def next_epoch(self) -> int:
        """Count the next operation: from 1, the same number on every rank."""
        self.epoch += 1
        return self.epoch

    def make_room(self, footprint: Footprint, head: Head) -> Program[None]:
        """Agree with all ranks on a larger buffer, if this one is too small for the operation of `head`.

        All ranks find that at the same operation. They compare heads first: ranks in different operations
        would ask for different sizes.
        """
        if self._buffer is not None and self.room.holds(footprint):
            return
        epoch = self.next_epoch()
        peers = [peer for peer in range(self.memory.num_ranks) if peer != self.rank]
        yield from self.board.all_closed()
        for peer in peers:
            self.board.open_to(peer, head, epoch)
        for peer in peers:
            yield AnyOf((self.board.opened_by(peer, epoch),))
            self.board.head_of(peer, epoch, head)
            self.board.close_to(peer, epoch)
        yield QUIET
        # Each rank has opened this epoch, so it is done with the old buffer.
        with self._lock:
            self.room = self.room.joined(footprint)
            if self._buffer is not None:
                self.memory.free(self._buffer)
            self._buffer = self.memory.alloc(self.room.num_bytes)

    def is_ready(self, index: int, epoch: int) -> bool:
        """Say whether the index-th received chunk of the operation under way is here; any thread may ask."""
        with self._lock:
            return self.memory.read(self.buffer, self.room.ready(index)) >= epoch

    def slot(self, start: int, num_bytes: int) -> Tensor:
        """Return bytes of this rank's slots, from the first one on."""
        first = self.room.slots_start + start
        return self.buffer.local[first : first + num_bytes]

    def get(self, into: Tensor, start: int, pe: int) -> None:
        """Start reading bytes of a peer's slots."""
        self.memory.get(into, self.buffer, self.room.slots_start + start, pe)

    def put(self, data: Tensor, start: int, *, word: int, epoch: int, pe: int) -> None:
        """Start writing bytes to a peer's slots, with a flag."""
        self.memory.put_signal(
            data,
            self.buffer,
            self.room.slots_start + start,
            word=word,
            value=epoch,
            op=SignalOp.SET,
            pe=pe,
        )

    def flag(self, word: int, epoch: int, pe: int) -> None:
        """Start setting a flag."""
        self.memory.put_signal(None, self.buffer, 0, word=word, value=epoch, op=SignalOp.SET, pe=pe)

    def until(self, word: int, value: int, peer: int, what: str) -> Until:
        """Return a wait for a word of the exchange buffer."""
        return Until(self.buffer, word, value, peer, what)
