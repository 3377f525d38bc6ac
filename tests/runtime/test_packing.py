"""Documents are packed whole and in order; what is no text is left out and named."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fm3_runtime import DocumentError, pack_documents
from fm3_runtime.packing import standard_library


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.txt").write_text("first ")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "c.txt").write_text("thïrd")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "binary.txt").write_bytes(b"a\0b")
    (tmp_path / "c_latin.txt").write_bytes("é".encode("latin-1") + b" text")
    return tmp_path


def test_documents_follow_in_the_order_of_their_names(folder):
    packed = pack_documents(folder, 18)
    assert packed.names == ("a.txt", "b.txt", "inside/c.txt")
    assert packed.lengths == (6, 6, 6)
    assert packed.tokens.tobytes() == "first secondthïrd".encode()
    assert packed.tokens.dtype == np.uint8


def test_the_last_document_is_cut_to_fill_the_sequence(folder):
    packed = pack_documents(folder, 8)
    assert packed.lengths == (6, 2)


def test_files_that_are_no_text_are_named_with_the_reason(folder):
    assert pack_documents(folder, 18).skipped == (
        "binary.txt: binary (it holds a NUL byte)",
        "c_latin.txt: binary (not UTF-8 at byte 0)",
        "empty.txt: empty",
    )


def test_too_little_text_says_how_much_there_is(folder):
    with pytest.raises(
        DocumentError,
        match=r"holds 18 bytes of text in 3 files named '\*', 100 tokens were asked for; 3 files were left",
    ):
        pack_documents(folder, 100)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(DocumentError, match="holds 0 bytes of text in 0 files"):
        pack_documents(tmp_path, 1)


def test_a_missing_folder_and_a_file_are_refused(tmp_path):
    with pytest.raises(DocumentError, match="does not exist"):
        pack_documents(tmp_path / "none", 1)
    (tmp_path / "file").write_text("x")
    with pytest.raises(DocumentError, match="is not a folder"):
        pack_documents(tmp_path / "file", 1)


def test_an_unreadable_file_is_left_out_and_named(folder, monkeypatch):
    real = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path.name == "b.txt":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    packed = pack_documents(folder, 12)
    assert packed.names == ("a.txt", "inside/c.txt")
    assert "b.txt: Permission denied" in packed.skipped


def test_an_unreadable_folder_is_refused(folder, monkeypatch):
    def iterdir(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", iterdir)
    with pytest.raises(DocumentError, match="cannot be read: Permission denied"):
        pack_documents(folder, 1)


def test_no_tokens_are_refused(folder):
    with pytest.raises(DocumentError, match="num_tokens must be >= 1, got 0"):
        pack_documents(folder, 0)


def test_the_standard_library_fills_a_sequence():
    packed = pack_documents(standard_library(), 16384, "*.py")
    assert sum(packed.lengths) == len(packed.tokens) == 16384
    assert len(packed.lengths) > 1


def test_a_folder_may_be_a_string(folder):
    assert pack_documents(str(folder), 6).names == ("a.txt",)


def test_links_that_form_a_circle_count_a_folders_text_once(folder):
    (folder / "inside" / "self").symlink_to(".")
    (folder / "inside" / "up").symlink_to("..")
    (folder / "z").symlink_to("inside")
    with pytest.raises(DocumentError, match=r"holds 18 bytes of text in 3 files .*; 6 files were left out"):
        pack_documents(folder, 19)


def test_pipes_devices_and_broken_links_are_left_out_and_named(folder):
    os.mkfifo(folder / "a_pipe")
    (folder / "a_device").symlink_to("/dev/zero")
    (folder / "a_link").symlink_to("nowhere")
    (folder / "a_loop").symlink_to("a_loop")
    packed = pack_documents(folder, 18)
    assert packed.names == ("a.txt", "b.txt", "inside/c.txt")
    assert packed.skipped[:4] == (
        f"{folder}/a_device: no regular file",
        f"{folder}/a_link: No such file or directory",
        f"{folder}/a_loop: Too many levels of symbolic links",
        f"{folder}/a_pipe: no regular file",
    )
