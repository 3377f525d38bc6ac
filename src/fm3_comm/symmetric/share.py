"""Texts of any length as a program: every rank opens its text piece by piece, every other one pulls it."""

from __future__ import annotations

import torch

from fm3_comm.message import Head
from fm3_comm.rank_backend import text_body, text_head
from fm3_comm.symmetric.board import TEXT_BYTES
from fm3_comm.symmetric.program import QUIET, AnyOf, Program
from fm3_comm.symmetric.site import Site


def share(site: Site, operation: str, raw: bytes) -> Program[list[bytes]]:
    """Return every rank's bytes by rank; all ranks count an epoch for each piece of the longest text."""
    board = site.board
    peers = [peer for peer in range(site.memory.num_ranks) if peer != site.rank]
    head = text_head(operation, raw)
    lengths = dict.fromkeys(peers, 1)
    found: dict[int, list[torch.Tensor]] = {peer: [] for peer in peers}
    start = 0
    while start == 0 or start < max([len(raw), *lengths.values()]):
        epoch = site.next_epoch()
        piece = text_body(raw[start : start + TEXT_BYTES])
        yield from board.all_closed()
        board.text()[: len(piece)].copy_(piece)
        speaks = start == 0 or start < len(raw)
        for peer in peers if speaks else []:
            board.open_to(peer, head, epoch)
        for peer in peers:
            if start == 0 or start < lengths[peer]:
                yield AnyOf((board.opened_by(peer, epoch),))
                lengths[peer] = _length(site, peer, epoch, head)
                size = min(TEXT_BYTES, lengths[peer] - start)
                found[peer].append(torch.empty(size, dtype=torch.uint8))
                board.get_text(found[peer][-1], peer)
                yield QUIET
                board.close_to(peer, epoch)
        yield QUIET
        start += TEXT_BYTES
    texts = {peer: torch.cat(pieces).numpy().tobytes() for peer, pieces in found.items()}
    texts[site.rank] = raw
    return [texts[rank] for rank in range(site.memory.num_ranks)]


def _length(site: Site, peer: int, epoch: int, head: Head) -> int:
    return site.board.head_of(peer, epoch, head).num_tokens
