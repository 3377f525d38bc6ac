"""Settings of the whole suite: hypothesis draws the same examples every time, and says how to repeat one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("fm3", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("fm3")


@pytest.fixture(scope="session")
def ranks_share_gpus() -> Iterator[None]:
    """Let several processes work on one GPU at a time."""
    from mps import mps_daemon

    with mps_daemon():
        yield
