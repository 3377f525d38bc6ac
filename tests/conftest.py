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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with tests whose ranks fork from this process: no other may have used the GPU before them."""

    def forks(item: pytest.Item) -> bool:
        return "ranks_share_gpus" in getattr(item, "fixturenames", ()) or "nvshmem" in item.name

    items.sort(key=lambda item: not forks(item))


class _AtOnce:
    """Prints each failure of a GPU's test when it happens: a run there may end before its summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and "gpu" in report.keywords:
            writer = self._config.get_terminal_writer()
            writer.line()
            writer.line(f"{report.nodeid} ({report.when}): {report.longreprtext}")
            writer.flush()


def pytest_configure(config: pytest.Config) -> None:
    """Add what prints failures."""
    config.pluginmanager.register(_AtOnce(config))


@pytest.fixture(scope="session")
def ranks_share_gpus() -> Iterator[None]:
    """Let several processes work on one GPU at a time."""
    from mps import mps_daemon

    with mps_daemon():
        yield
