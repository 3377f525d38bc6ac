"""Bytes that moved, and bytes that an exchange predicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fm3_comm.hops import hops
from fm3_core import Exchange, Transfer


class Traffic:
    """Payload bytes that one rank has sent, counted as messages leave it.

    What counts is the hop: on a route with relays each station that passes a chunk on counts as a source. A
    gather's chunk leaves from its owner; a gradient's leaves from the rank that computed the partial, so its
    transfer here has source and destination swapped.
    """

    def __init__(self) -> None:
        """Start at zero."""
        self._by_transfer: Counter[Transfer] = Counter()

    def add(self, transfer: Transfer, num_bytes: int) -> None:
        """Count `num_bytes` that leave for `transfer.destination`."""
        self._by_transfer[transfer] += num_bytes

    @property
    def by_transfer(self) -> dict[Transfer, int]:
        """Bytes sent for each transfer, those with 0 bytes included; a copy."""
        return dict(self._by_transfer)

    @property
    def by_pair(self) -> dict[tuple[int, int], int]:
        """Bytes sent for each (source, destination); a copy."""
        return bytes_by_pair(self._by_transfer)

    @property
    def total(self) -> int:
        """Bytes sent in all."""
        return sum(self._by_transfer.values())

    def clear(self) -> None:
        """Start at zero again."""
        self._by_transfer.clear()


def gather_bytes(exchange: Exchange, token_bytes: int) -> dict[Transfer, int]:
    """Return the bytes that a gather moves for each hop; on a direct route hops are the transfers.

    Args:
        exchange: what moves.
        token_bytes: bytes of one token's keys and values: batch * heads * (key dim + value dim) * element
            bytes.
    """
    return {hop: exchange.partition.chunk_length(hop.chunk) * token_bytes for hop in hops(exchange)}


def reduce_bytes(exchange: Exchange, token_bytes: int) -> dict[Transfer, int]:
    """Return the bytes that a reduction moves for each reversed hop, from the needing rank to the owner.

    A relay adds the partials of its node before it passes them on, so each hop carries a chunk once, too.

    Args:
        exchange: what the gather moved.
        token_bytes: bytes of one token's dK and dV on the wire.
    """
    return {reverse(transfer): size for transfer, size in gather_bytes(exchange, token_bytes).items()}


def bytes_by_pair(by_transfer: Mapping[Transfer, int]) -> dict[tuple[int, int], int]:
    """Sum bytes by (source, destination)."""
    pairs: Counter[tuple[int, int]] = Counter()
    for transfer, size in by_transfer.items():
        pairs[transfer.source, transfer.destination] += size
    return dict(pairs)


def reverse(transfer: Transfer) -> Transfer:
    """Return the way back of a transfer or hop: of the partial gradients of its chunk."""
    return Transfer(transfer.chunk, transfer.destination, transfer.source, transfer.route[::-1])
