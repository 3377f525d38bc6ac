"""A backend of one's own: ranks that leave each other files in a folder.

Ranks may be threads, processes, or machines that mount the same folder. The base class checks tensors, packs
chunks, relays, counts bytes and adds gradients; what is left is to move one message from rank to rank.

Run: python examples/custom_backend.py. The contract suite of all backends runs on it, too:
PYTHONPATH=examples python -m pytest tests/comm/contract -p custom_backend -k folder
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from fm3_comm import ExchangeBackend, Head, Message, PointToPointBackend, backends
from fm3_comm.rank_threads import run_rank_threads
from fm3_core import ExchangeError, UnsupportedError, patterns
from fm3_core.check import require_int
from fm3_runtime import ContextParallel, attention

R = TypeVar("R")

_LOOK_SECONDS = 0.002


class FolderBackend(PointToPointBackend):
    """One rank. A message is a file that appears whole; `stopped` holds the first rank's reason to stop."""

    def __init__(self, folder: Path, rank: int, num_ranks: int, timeout_seconds: float) -> None:
        super().__init__(rank, num_ranks)
        self._folder = folder
        self._timeout_seconds = timeout_seconds

    def _start(
        self, operation: int, outgoing: Mapping[int, Message], expected: Mapping[int, Head]
    ) -> Callable[[], Mapping[int, Message]]:
        self._raise_if_stopped(f"operation {operation}")
        for peer, message in outgoing.items():
            content = (message.head.encode(), message.body.cpu())
            self._write(self._name(operation, self.rank, peer), lambda file, it=content: torch.save(it, file))

        def arrive() -> Mapping[int, Message]:
            deadline = time.monotonic() + self._timeout_seconds
            return {peer: self._take(operation, peer, head, deadline) for peer, head in expected.items()}

        return arrive

    def abort(self, reason: str) -> None:
        """Leave the reason where every rank looks while it waits; the first one counts."""
        if not (self._folder / "stopped").exists():
            text = f"rank {self.rank} stopped: {reason}"
            self._write("stopped", lambda file: file.write_text(text, encoding="utf-8"))

    def _take(self, operation: int, peer: int, expected: Head, deadline: float) -> Message:
        where = f"{expected.operation} (operation {operation}), message from rank {peer}"
        path = self._folder / self._name(operation, peer, self.rank)
        while not path.exists():
            self._raise_if_stopped(where)
            if time.monotonic() > deadline:
                raise ExchangeError(f"rank {self.rank} of {self.num_ranks}: {where}: nothing in time")
            time.sleep(_LOOK_SECONDS)
        encoded, body = torch.load(path)
        path.unlink()
        head = Head.decode(encoded)
        difference = head.difference(expected)
        if difference is not None:
            raise ExchangeError(f"rank {self.rank} of {self.num_ranks}: {where}: {difference}")
        return Message(head, body)

    def _raise_if_stopped(self, where: str) -> None:
        note = self._folder / "stopped"
        if note.exists():
            text = note.read_text(encoding="utf-8")
            raise ExchangeError(f"rank {self.rank} of {self.num_ranks}: {where}: {text}")

    def _name(self, operation: int, source: int, destination: int) -> str:
        return f"{operation}-{source}-{destination}.pt"

    def _write(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a file that nobody sees before all of it is there."""
        unfinished = self._folder / f"{name}.{self.rank}.part"
        write(unfinished)
        unfinished.rename(self._folder / name)


class FolderKind:
    """What the registry holds: `connect` takes (folder, rank, ranks) as the group."""

    def connect(self, group: Any = None, *, timeout_seconds: float | None = None) -> ExchangeBackend:
        """Return a rank's handle; a handle is returned as it is."""
        if isinstance(group, FolderBackend):
            return group
        if group is None:
            raise UnsupportedError("backend 'folder'", ["group must be (folder, rank, ranks)"])
        folder, rank, num_ranks = group
        return FolderBackend(
            Path(folder), rank, num_ranks, 300.0 if timeout_seconds is None else timeout_seconds
        )

    def run(
        self, num_ranks: int, fn: Callable[[ExchangeBackend], R], *, timeout_seconds: float = 300.0
    ) -> list[R]:
        """Run P ranks as threads; the first that fails stops the others."""
        num_ranks = require_int("num_ranks", num_ranks, minimum=1, error=ExchangeError)
        with tempfile.TemporaryDirectory() as folder:
            handles = [
                FolderBackend(Path(folder), rank, num_ranks, timeout_seconds) for rank in range(num_ranks)
            ]

            def stop(rank: int, error: BaseException) -> None:
                handles[rank].abort(f"{type(error).__name__}: {error}")

            try:
                return run_rank_threads(num_ranks, lambda rank: fn(handles[rank]), stop)
            finally:
                for handle in handles:
                    handle.close()

    def why_unavailable(self) -> str | None:
        """There are files everywhere."""
        return None


backends.register("folder", FolderKind())


def main() -> None:
    """Compute attention on 4 ranks that leave each other files, and compare with one rank."""
    mask = patterns.causal_document([300, 500, 224])
    q, k, v = (torch.randn(1, mask.num_rows, 2, 16, dtype=torch.float64) for _ in range(3))

    def one_rank(backend: ExchangeBackend) -> tuple[torch.Tensor, int]:
        step = ContextParallel(backend=backend, chunk_size=32, ranks_per_node=2, route="hierarchical").plan(
            mask
        )
        out = attention(*(step.scatter(x) for x in (q, k, v)), step)
        return step.gather(out), backend.traffic.total

    results = backends.get("folder").run(4, one_rank)
    worst = max((out - attention(q, k, v, mask)).abs().max().item() for out, _ in results)
    print(f"4 ranks, {sum(sent for _, sent in results):,} bytes through files, worst difference {worst:.1e}")
    assert worst < 1e-12


if __name__ == "__main__":
    main()
