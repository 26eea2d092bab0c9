"""The cache of compiled kernels: what is damaged there, or was changed since, is compiled anew."""

import fcntl
import importlib
import json
import os
import shutil
import subprocess
import sys

import pytest
from numba.core.errors import TypingError

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


def test_versions_of_numba_keep_their_kernels_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled._config, "CACHE_DIR", str(tmp_path))
    folders = []
    for version in ("0.62.0", "0.68.1"):
        monkeypatch.setattr(compiled.numba, "__version__", version)
        folders.append(compiled._cache_dir.__wrapped__())
    assert folders[0] != folders[1]
    assert sorted(folders) == sorted(str(x) for x in tmp_path.glob("save_rl/*"))


def test_a_full_disk_costs_nothing_but_time(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_cache_dir", lambda: str(tmp_path))

    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", full)
    assert compiled.njit(double_and_add)(3, 4) == 10


OUTER = """
from save_rl.compiled import njit
import {inner}
from {inner} import Kind, add

@njit
def kernel(x):
    return add(x) + {inner}.STEP + Kind.SECOND
"""
INNER = """
from enum import IntEnum
from numba import types
from numba.extending import intrinsic
from save_rl.compiled import njit

STEP = 10

def width():
    return 64

def constant(number):
    @intrinsic
    def get(typing):
        def generate(context, builder, signature, values):
            return context.get_constant(types.int64, number + width() - 64)

        return types.int64(), generate

    return get

none, ten_thousand = constant(0), constant(10000)

class Kind(IntEnum):
    FIRST = 0
    SECOND = 100

@njit
def twice(x):
    return x + x

@njit
def add(x):
    return twice(x) + 1000 + none() + ten_thousand()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Write both modules, run the kernel, and say whether it was in the cache."""
    monkeypatch.setattr(compiled, "_cache_dir", lambda: str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    inner, outer = f"inner_{tmp_path.name}", f"outer_{tmp_path.name}"  # not those of other tests

    def run(text):
        (tmp_path / f"{inner}.py").write_text(text)
        (tmp_path / f"{outer}.py").write_text(OUTER.format(inner=inner))
        for name in (inner, outer):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        kernel = importlib.import_module(outer).kernel
        return kernel(1), sum(kernel.stats.cache_hits.values()) > 0

    (tmp_path / "cache").mkdir()
    assert run(INNER) == (11112, False)
    return run


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("STEP = 10", "STEP = 20", (11122, False)),
        ("SECOND = 100", "SECOND = 200", (11212, False)),
        ("x + x", "x + x + x", (11113, False)),
        ("return twice(x)", "return x", (11111, False)),
        ("constant(10000)", "constant(20000)", (21112, False)),
        ("return 64", "return 65", (11114, False)),
        ("@njit\ndef twice", "@njit(refcounts=True)\ndef twice", (11112, False)),
        ("STEP = 10", "# ten\nSTEP = 5 + 5", (11112, True)),
    ],
    ids=[
        "constant", "member", "callee of a callee", "callee", "what an intrinsic holds",
        "what an intrinsic calls", "how a callee is compiled", "comment",
    ],
)  # fmt: skip
def test_a_kernel_is_compiled_anew_when_anything_in_it_has_changed(run, old, new, expected):
    assert run(INNER) == (11112, True)
    assert INNER.count(old) == 1
    assert run(INNER.replace(old, new)) == expected
    assert run(INNER) == (11112, True)


def refused(x):
    return x.nothing_of_this_name


def test_nobody_waits_for_a_kernel_that_can_not_be_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_cache_dir", lambda: str(tmp_path))
    kernel = compiled.njit(refused)
    for _ in range(2):
        with pytest.raises(TypingError):
            kernel(1)
        (lock,) = tmp_path.rglob("*.lock")
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


ALL_KERNELS = """
import importlib, json
from pathlib import Path
from numba.core.dispatcher import Dispatcher
import save_rl
from save_rl.compiled import _used, counts_references, fingerprint
found = {}
package = Path(save_rl.__file__).parent
for path in package.rglob("*.py"):
    if "@njit" in path.read_text():
        module = ".".join(["save_rl", *path.relative_to(package).with_suffix("").parts])
        for name, kernel in vars(importlib.import_module(module)).items():
            if isinstance(kernel, Dispatcher):
                callees = [x for _, x in _used(kernel.py_func) if isinstance(x, Dispatcher)]
                counts = counts_references(kernel), any(map(counts_references, callees))
                found[f"{module}.{name}"] = fingerprint(kernel.py_func), *counts
print(json.dumps(found))
"""


def test_what_names_a_kernel_is_the_same_in_every_process_and_references_are_counted():
    first, second = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", ALL_KERNELS], check=True, capture_output=True, text=True,
                env={**os.environ, "PYTHONHASHSEED": seed},
            ).stdout
        )
        for seed in "12"
    )  # fmt: skip
    assert first == second
    kernels = {"save_rl.search.trees.select", "save_rl.envs.construction.box2d.kernel.settle"}
    assert kernels <= first.keys()
    assert len({what for what, _, _ in first.values()}) > 60
    for name, (_, counts, of_callees) in first.items():  # else nobody frees what a callee made
        assert counts or not of_callees, name
    assert {counts for _, counts, _ in first.values()} == {True, False}
