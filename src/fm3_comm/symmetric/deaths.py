"""Processes of other ranks that have ended."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Mapping


class Deaths:
    """Watches processes of this host.

    Args:
        pids: process of each rank; this process is not watched.
    """

    def __init__(self, pids: Mapping[int, int]) -> None:
        """Begin to watch."""
        self._lock = threading.Lock()
        self._found: dict[int, str] = {}
        self._watched: dict[int, tuple[int, int]] = {}
        for rank, pid in pids.items():
            if pid != os.getpid():
                try:
                    self._watched[os.pidfd_open(pid)] = rank, pid
                except ProcessLookupError:
                    self._found[rank] = f"its process {pid} has ended"

    def found(self) -> dict[int, str]:
        """Return ranks whose processes have ended; one that nobody has reaped yet has ended, too."""
        with self._lock:
            poll = select.poll()
            for descriptor in self._watched:
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll(0) if self._watched else []:
                rank, pid = self._watched.pop(descriptor)
                self._found[rank] = f"its process {pid} has ended"
                os.close(descriptor)
            return dict(self._found)

    def close(self) -> None:
        """Stop watching."""
        with self._lock:
            for descriptor in self._watched:
                os.close(descriptor)
            self._watched.clear()
