"""The words by which ranks open their buffers to one another, and what else has one place a peer.

Rank p has, for each peer q: `opened[q]` and `closed[q]`, the last epoch that q opened to p and that q has
finished of those that p opened to q; `stopped[q]`, whether q has stopped or left; a mailbox for the head of
what q opened; a mailbox for q's last words. Besides, bytes of its own for texts that peers read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fm3_comm.message import Head
from fm3_comm.symmetric.memory import WORD_BYTES, SignalOp, SymmetricMemory
from fm3_comm.symmetric.program import AnyOf, Program, Until
from fm3_core import ExchangeError

HEAD_NUMBERS = 10
NOTICE_BYTES = 1024
TEXT_BYTES = 1 << 16

STOPPED = 1
LEFT = 2


class Board:
    """This rank's board and its way to the others'.

    Args:
        memory: where it is allocated, on all ranks alike.
    """

    def __init__(self, memory: SymmetricMemory) -> None:
        """Allocate."""
        self._memory = memory
        self._ranks = memory.num_ranks
        self._heads = 3 * self._ranks * WORD_BYTES
        self._notices = self._heads + self._ranks * HEAD_NUMBERS * 8
        self._text = self._notices + self._ranks * NOTICE_BYTES
        self.buffer = memory.alloc(self._text + TEXT_BYTES)
        self._opened_to: dict[int, int] = {}
        self._kept: list[Tensor] = []

    @property
    def rank(self) -> int:
        """This rank."""
        return self._memory.rank

    def all_closed(self) -> Program[None]:
        """Wait until every rank that this one ever opened something to is done with it.

        Only then may this rank overwrite its buffers, or open anything again.
        """
        for peer, epoch in self._opened_to.items():
            what = f"rank {peer} to be done with operation {epoch} of rank {self.rank}"
            yield AnyOf((Until(self.buffer, self._ranks + peer, epoch, peer, what),))
        self._opened_to.clear()
        self._kept.clear()

    def open_to(self, peer: int, head: Head, epoch: int) -> None:
        """Tell a peer what this rank's operation `epoch` is, and that its buffers are ready for it."""
        numbers = torch.cat([torch.tensor([epoch]), head.encode()]).view(torch.uint8)
        self._kept.append(numbers)
        self._memory.put_signal(
            numbers,
            self.buffer,
            self._heads + self.rank * HEAD_NUMBERS * 8,
            word=self.rank,
            value=epoch,
            op=SignalOp.SET,
            pe=peer,
        )
        self._opened_to[peer] = epoch

    def opened_by(self, peer: int, epoch: int) -> Until:
        """Return what to wait for before reading from, or writing to, a peer's buffers."""
        return Until(self.buffer, peer, epoch, peer, f"rank {peer} to open operation {epoch}")

    def head_of(self, peer: int, epoch: int, expected: Head) -> Head:
        """Return the head that a peer opened with.

        Raises:
            ExchangeError: it is not the expected one; it names the peer and the difference.
        """
        start = self._heads + peer * HEAD_NUMBERS * 8
        numbers = self.buffer.local[start : start + HEAD_NUMBERS * 8].clone().view(torch.int64)
        head = Head.decode(numbers[1:])
        difference = head.difference(expected)
        if difference is None and int(numbers[0]) != epoch:
            difference = f"its operation has number {int(numbers[0])}, expected {epoch}"
        if difference is not None:
            raise ExchangeError(f"rank {peer}: {difference}")
        return head

    def close_to(self, peer: int, epoch: int) -> None:
        """Tell a peer that this rank is done with what it opened."""
        self._memory.put_signal(
            None,
            self.buffer,
            0,
            word=self._ranks + self.rank,
            value=epoch,
            op=SignalOp.SET,
            pe=peer,
        )

    def text(self) -> Tensor:
        """Return this rank's bytes for texts."""
        return self.buffer.local[self._text :]

    def get_text(self, into: Tensor, peer: int) -> None:
        """Start copying the first bytes of a peer's text."""
        self._memory.get(into, self.buffer, self._text, peer)

    def say(self, state: int, reason: str) -> None:
        """Tell every rank that this one has stopped or left, and why."""
        raw = reason.encode()[:NOTICE_BYTES].ljust(NOTICE_BYTES, b"\0")
        notice = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        for peer in range(self._ranks):
            self._memory.put_signal(
                notice,
                self.buffer,
                self._notices + self.rank * NOTICE_BYTES,
                word=2 * self._ranks + self.rank,
                value=state,
                op=SignalOp.SET,
                pe=peer,
            )
        self._memory.quiet()

    def state_of(self, peer: int) -> int:
        """Return 0, STOPPED or LEFT."""
        return self._memory.read(self.buffer, 2 * self._ranks + peer)

    def stopped(self) -> str | None:
        """Return the reason of the first rank that has stopped, or None."""
        for peer in range(self._ranks):
            if self.state_of(peer) == STOPPED:
                start = self._notices + peer * NOTICE_BYTES
                raw = self.buffer.local[start : start + NOTICE_BYTES].cpu().numpy().tobytes()
                return raw.rstrip(b"\0").decode(errors="replace")
        return None
