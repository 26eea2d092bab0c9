"""The cache of compiled kernels: what is damaged there is compiled anew."""

import os
import shutil

import pytest

from save_rl import compiled


def double_and_add(a, b):
    return 2 * a + b


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache with one kernel in it."""
    folder = tmp_path_factory.mktemp("numba")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_cache_dir", lambda: str(folder))
        assert compiled.njit(double_and_add)(3, 4) == 10
    return folder


def truncated(data):
    return data[: len(data) // 2]


def flipped(data):
    """One bit of another value, deep in the compiled code: `pickle` would not notice."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGE = {
    "empty": lambda data: b"",
    "truncated": truncated,
    "garbage": lambda data: bytes(range(1, 256)) * 40,
    "zeros": lambda data: bytes(len(data)),
    "flipped": flipped,
    "end lost": lambda data: data[:-1],
}


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_compiled_anew(filled, tmp_path, monkeypatch, suffix, damage):
    folder = tmp_path / "cache"
    shutil.copytree(filled, folder)
    monkeypatch.setattr(compiled, "_cache_dir", lambda: str(folder))
    (file,) = folder.rglob(f"*{suffix}")
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    kernel = compiled.njit(double_and_add)
    assert kernel(3, 4) == 10
    read = sum(kernel.stats.cache_hits.values())
    if suffix == ".nbc":
        assert read == 0
    again = compiled.njit(double_and_add)  # from what was written in its place
    assert again(3, 4) == 10
    assert sum(again.stats.cache_hits.values()) == 1


def test_a_sound_cache_is_read(filled, monkeypatch):
    monkeypatch.setattr(compiled, "_cache_dir", lambda: str(filled))
    kernel = compiled.njit(double_and_add)
    assert kernel(3, 4) == 10
    assert sum(kernel.stats.cache_hits.values()) == 1


def test_a_full_disk_costs_nothing_but_time(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_cache_dir", lambda: str(tmp_path))

    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", full)
    assert compiled.njit(double_and_add)(3, 4) == 10
