"""GPU tests end when a launch does not return."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from launch_watchdog import watchdog

SECONDS = 120


@pytest.fixture(autouse=True)
def no_launch_hangs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Watch over each test that runs on a GPU."""
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with watchdog(request.node.nodeid, SECONDS, reveal=lambda: capture.suspend_global_capture(in_=True)):
        yield
