"""NVSHMEM is optional: what is missing is said, and versions that differ are refused with both."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from fm3_comm import backends
from fm3_comm.symmetric import memories, nvshmem_library
from fm3_core import UnsupportedError

HAS_EXTENSION = importlib.util.find_spec("fm3_comm._C") is not None
needs_extension = pytest.mark.skipif(not HAS_EXTENSION, reason="fm3_comm._C was not built")


def test_equal_versions_pass():
    nvshmem_library.require_same_version([3, 4, 5], [3, 4, 5])


@pytest.mark.parametrize("host", [[3, 4, 6], [3, 5, 5], [4, 4, 5], [2, 4, 5]])
def test_versions_that_differ_are_refused_with_both(host):
    loaded = ".".join(map(str, host))
    with pytest.raises(
        ImportError, match=rf"linked with NVSHMEM 3\.4\.5 .* has loaded {loaded} .*=={loaded}"
    ):
        nvshmem_library.require_same_version([3, 4, 5], host)


@pytest.fixture
def unloaded():
    """Forget what was loaded, before and after."""
    nvshmem_library.load.cache_clear()
    yield
    nvshmem_library.load.cache_clear()


def test_without_the_extension_the_reason_says_how_to_get_it(unloaded, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = memories.get("nvshmem").why_unavailable()
    assert "fm3_comm._C was not built" in reason
    assert "nvidia-nvshmem-cu13" in reason
    with pytest.raises(UnsupportedError, match=r"backend 'nvshmem': fm3_comm\._C was not built"):
        backends.get("nvshmem").connect()


@needs_extension
def test_without_the_wheel_the_reason_says_how_to_get_it(unloaded, monkeypatch):
    def absent():
        raise ImportError(f"{nvshmem_library.HOST_LIBRARY} was not found; pip install nvidia-nvshmem-cu13")

    monkeypatch.setattr(nvshmem_library, "_load_host_library", absent)
    assert "pip install nvidia-nvshmem-cu13" in memories.get("nvshmem").why_unavailable()


@needs_extension
def test_the_extension_says_what_it_was_built_with_where_there_is_no_gpu():
    extension = nvshmem_library.load()
    assert extension.build_info()["architecture"] == "90a"
    assert extension.build_info()["nvshmem"] == extension.host_library_version()


@needs_extension
def test_an_id_that_is_none_is_refused():
    with pytest.raises(RuntimeError, match="the id must have 128 bytes"):
        nvshmem_library.load().join_job(rank=0, num_ranks=1, id=b"nonsense")


def test_importing_the_package_loads_no_nvshmem():
    code = (
        "import fm3_comm; maps = open('/proc/self/maps').read(); "
        "assert 'nvshmem_host' not in maps and 'fm3_comm/_C' not in maps"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
