"""A checkpoint is whole or not there, and a broken one costs no more than itself."""

import errno
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from save_rl.errors import InputError
from save_rl.training import checkpoint, loop


class State(NamedTuple):
    weights: dict
    count: np.ndarray


def state(value: float) -> State:
    return State({"w": np.full((3, 2), value, np.float32), "b": np.arange(4)}, np.int32(value))


def refuse(message: str) -> None:
    raise AssertionError(f"unexpected warning: {message}")


def equal(a: State, b: State) -> bool:
    return (
        all(np.array_equal(a.weights[k], b.weights[k]) for k in a.weights)
        and a.weights.keys() == b.weights.keys()
        and a.count == b.count
    )


@given(
    array=hnp.arrays(
        st.sampled_from([np.float32, np.int32, np.uint32, np.bool_]),
        hnp.array_shapes(min_dims=0, max_dims=3),
    )
)
def test_arrays_come_back_bit_for_bit(tmp_path_factory, array):
    folder = tmp_path_factory.mktemp("c")
    checkpoint.save(folder, 1, {"x": array}, {})
    loaded = checkpoint.load_newest(folder, {"x": array}, refuse)
    assert loaded is not None
    assert loaded.state["x"].dtype == array.dtype
    assert loaded.state["x"].tobytes() == array.tobytes()


def test_three_newest_are_kept(tmp_path):
    for number in (1, 5, 20, 100, 1000):
        checkpoint.save(tmp_path, number, state(number), {"time_s": number})
    assert checkpoint.numbers(tmp_path) == [20, 100, 1000]
    loaded = checkpoint.load_newest(tmp_path, state(0), refuse)
    assert loaded is not None
    assert equal(loaded.state, state(1000))
    assert loaded.manifest["time_s"] == 1000


def test_no_checkpoint_is_not_an_error(tmp_path):
    assert checkpoint.load_newest(tmp_path / "absent", state(0), refuse) is None


def damage_truncate(path: Path) -> None:
    data = (path / "arrays.npz").read_bytes()
    (path / "arrays.npz").write_bytes(data[: len(data) // 2])


def damage_flip(path: Path) -> None:
    data = bytearray((path / "arrays.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "arrays.npz").write_bytes(bytes(data))


def damage_manifest(path: Path) -> None:
    (path / "manifest.json").write_text('{"number": 2, ')


def damage_missing(path: Path) -> None:
    (path / "arrays.npz").unlink()


DAMAGES = [damage_truncate, damage_flip, damage_manifest, damage_missing]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_checkpoint_is_reported_and_the_one_before_used(tmp_path, damage):
    checkpoint.save(tmp_path, 1, state(1), {})
    damage(checkpoint.save(tmp_path, 2, state(2), {}))
    warnings: list[str] = []
    loaded = checkpoint.load_newest(tmp_path, state(0), warnings.append)
    assert loaded is not None
    assert equal(loaded.state, state(1))
    assert len(warnings) == 1
    assert "000000002" in warnings[0]


@pytest.mark.parametrize("damage", DAMAGES)
def test_when_all_are_broken_the_run_is_refused(tmp_path, damage):
    damage(checkpoint.save(tmp_path, 1, state(1), {}))
    with pytest.raises(InputError, match=r"no checkpoint in .* can be read"):
        checkpoint.load_newest(tmp_path, state(0), lambda message: None)


def test_a_checkpoint_of_another_agent_is_refused(tmp_path):
    checkpoint.save(tmp_path, 1, {"other": np.zeros(3)}, {})
    with pytest.raises(InputError):
        checkpoint.load_newest(tmp_path, state(0), lambda message: None)
    checkpoint.save(tmp_path, 2, state(0)._replace(count=np.zeros(7)), {})
    with pytest.raises(InputError):
        checkpoint.load_newest(tmp_path, state(0), lambda message: None)


def test_objects_are_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.abort, ())

    path = checkpoint.save(tmp_path, 1, {"x": np.zeros(1)}, {})
    np.savez(path / "arrays.npz", **{"['x']": np.array([Trap()], object)})
    import hashlib
    import json

    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sha256"] = hashlib.sha256((path / "arrays.npz").read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError):
        checkpoint.load_newest(tmp_path, {"x": np.zeros(1)}, lambda message: None)


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_full_disk_leaves_the_old_checkpoint_and_nothing_else(tmp_path, monkeypatch, call):
    checkpoint.save(tmp_path, 1, state(1), {})

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*((os, "fsync") if call == "fsync" else (Path, "rename")), full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, 2, state(2), {})
    assert [path.name for path in tmp_path.iterdir()] == ["000000001"]


def test_a_disk_that_takes_no_more_ends_the_run_with_one_sentence(tmp_path):
    """The shell's limit on file size makes the operating system refuse the checkpoint's bytes."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "save_rl", "train", "--episodes", "10", "--budget", "0",
               "--lanes", "8", "--out", str(out)]  # fmt: skip
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    done = subprocess.run(
        ["sh", "-c", f"ulimit -f 100; exec {shlex.join(command)}"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("save-rl: can't write or read")
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert checkpoint.numbers(out / "checkpoints") == []
    assert list(out.glob("**/.writing-*")) == []


def test_a_checkpoint_that_takes_long_is_made_less_often(tmp_path, monkeypatch):
    """Saving takes 10 s here, training a chunk 7 s: at 7 s it would be 60 % of the time."""
    clock = [0.0]
    saves = []
    monkeypatch.setattr(loop.time, "monotonic", lambda: clock[0])
    run = object.__new__(loop._Run)
    run.saved_at, run._saving = 0.0, 0.0

    def save():
        saves.append(clock[0])
        clock[0] += 10.0
        run.saved_at, run._saving = clock[0], 10.0

    run.save = save
    while clock[0] < 1000:
        clock[0] += 7.0
        run.save_if_due(5.0)
    assert saves[0] == 7.0
    assert 9 <= len(saves) <= 10
    run._saving = 1e9
    for _ in range(3):
        run.save_if_due(0.0)
    assert len(saves) >= 12
