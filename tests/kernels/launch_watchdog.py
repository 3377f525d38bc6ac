"""Ends the test process when a launch does not return, and says on which input.

A kernel that waits for ever cannot be interrupted from Python: without this a mistake in its barriers would
cost the whole run, and nobody would know the input.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EXIT_CODE = 70

_notes: list[str] = []
_noted = threading.Condition()


def note_input(description: str) -> None:
    """Remember what is launched next; the clock starts anew."""
    with _noted:
        _notes.append(description)
        _noted.notify_all()


@contextmanager
def watchdog(test: str, seconds: float, reveal: Callable[[], object] = lambda: None) -> Iterator[None]:
    """End the process with EXIT_CODE, the test's name and the last input unless the body is left in time.

    Args:
        test: the test's name.
        seconds: how long the body may take, and again behind each input that it notes.
        reveal: called before the message, to give standard error back to whoever captured it.
    """
    left = threading.Event()

    def watch() -> None:
        with _noted:
            while not left.is_set() and _noted.wait(seconds):
                pass
            if left.is_set():
                return
            last = _notes[-1] if _notes else "no input was noted"
        reveal()
        sys.__stderr__.write(f"\n{test} did not end within {seconds:g} s; last input: {last}\n")
        sys.__stderr__.flush()
        os._exit(EXIT_CODE)

    _notes.clear()
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        with _noted:
            left.set()
            _noted.notify_all()
        thread.join()
