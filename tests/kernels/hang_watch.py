"""A fixture that ends the session, naming what runs, where a kernel does not come back.

Nothing can stop a kernel that waits for ever, and no call to the device returns behind it: the process ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

EXIT_CODE = 70


class HangWatch:
    """Bounds the time between entering and leaving a block.

    Args:
        seconds: how long a block may take.
        reveal: called before the message, to give standard error back to whoever captured it.
    """

    def __init__(self, seconds: float = 60.0, reveal: Callable[[], object] = lambda: None) -> None:
        self.seconds, self.reveal = seconds, reveal

    @contextmanager
    def over(self, what: str) -> Iterator[None]:
        """Run a block that must end in time; `what` is enough to repeat it."""
        timer = threading.Timer(self.seconds, self._end, [what])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end(self, what: str) -> None:
        self.reveal()
        os.write(2, f"\nFAILED: no end after {self.seconds:g} seconds of: {what}\n".encode())
        os._exit(EXIT_CODE)


@pytest.fixture(scope="session")
def hang_watch(pytestconfig: pytest.Config) -> HangWatch:
    """Return a watch whose message reaches the terminal."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    return HangWatch(reveal=lambda: capture and capture.suspend_global_capture(in_=True))
