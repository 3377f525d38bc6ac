"""The daemon that lets ranks share a GPU is stopped however the tests end."""

from __future__ import annotations

import os

import pytest

from mps import mps_daemon


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Put a control program in the path that notes how it is called."""
    notes = tmp_path / "notes"
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(f'#!/bin/sh\nif [ "$1" = -d ]; then echo start; else cat; fi >> {notes}\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return notes


def test_it_starts_and_stops_and_leaves_neither_settings_nor_folders(told):
    before = dict(os.environ)
    with mps_daemon():
        pipe = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
        assert os.path.isdir(pipe)
        assert os.environ["NVSHMEM_REMOTE_TRANSPORT"] == "none"
    assert told.read_text() == "start\nquit\n"
    assert not os.path.exists(pipe)
    assert dict(os.environ) == before


def test_it_stops_when_a_test_fails(told):
    with pytest.raises(LookupError), mps_daemon():
        raise LookupError
    assert told.read_text() == "start\nquit\n"
