"""A file is replaced as a whole or not at all."""

import os

import pytest

from save_rl.files import write_atomically


def test_text_and_bytes_arrive_unchanged(tmp_path):
    write_atomically(tmp_path / "text", "Qθ\r\n±\n")
    write_atomically(tmp_path / "bytes", b"\x00\xff")
    assert (tmp_path / "text").read_bytes() == "Qθ\r\n±\n".encode()
    assert (tmp_path / "bytes").read_bytes() == b"\x00\xff"


def test_an_older_file_is_replaced_and_nothing_else_is_left(tmp_path):
    for text in ("a longer first version", "second"):
        write_atomically(tmp_path / "file", text)
    assert (tmp_path / "file").read_text() == "second"
    assert os.listdir(tmp_path) == ["file"]


def test_a_missing_folder_is_an_error_and_is_not_made(tmp_path):
    with pytest.raises(OSError, match="missing"):
        write_atomically(tmp_path / "missing" / "file", "text")
    assert os.listdir(tmp_path) == []


def test_a_target_that_cannot_be_replaced_leaves_no_temporary_file(tmp_path):
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        write_atomically(tmp_path / "folder", "text")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_full_disk_keeps_the_older_file_and_leaves_no_temporary_file(tmp_path, monkeypatch):
    write_atomically(tmp_path / "file", "older")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "file", "newer")
    assert (tmp_path / "file").read_text() == "older"
    assert os.listdir(tmp_path) == ["file"]


def test_the_file_is_as_readable_as_any_other(tmp_path):
    (tmp_path / "plain").write_text("")
    write_atomically(tmp_path / "file", "")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
