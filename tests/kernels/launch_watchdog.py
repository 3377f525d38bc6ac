"""Ends the test process when a launch does not return, and says on which input.

A kernel that waits for ever cannot be interrupted from Python: without this a mistake in its barriers would
cost the whole run, and nobody would know the input.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_CODE = 70

_last_input = "no input was noted"


def note_input(description: str) -> None:
    """Remember what is launched next."""
    global _last_input
    _last_input = description


@contextmanager
def watchdog(test: str, seconds: float) -> Iterator[None]:
    """End the process with EXIT_CODE, the test's name and the last input unless the body is left in time."""

    def give_up() -> None:
        sys.__stderr__.write(f"\n{test} did not end within {seconds:g} s; last input: {_last_input}\n")
        sys.__stderr__.flush()
        os._exit(EXIT_CODE)

    note_input("no input was noted")
    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
