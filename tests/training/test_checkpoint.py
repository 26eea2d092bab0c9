"""A checkpoint is whole or not there, and a broken one costs no more than itself."""

import errno
import hashlib
import io
import json
import os
import shlex
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.lib import format as npy

from save_rl.errors import InputError
from save_rl.training.counters import AnyLength
from save_rl.training.run import checkpoint, loop


class State(NamedTuple):
    weights: dict
    count: np.ndarray


def state(value: float) -> State:
    return State({"w": np.full((3, 2), value, np.float32), "b": np.arange(4)}, np.int32(value))


@contextmanager
def memory_below(limit: int) -> Iterator[None]:
    """Check that the body never holds this many bytes more than before."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit


def refuse(message: str) -> None:
    raise AssertionError(f"unexpected warning: {message}")


def equal(a: State, b: State) -> bool:
    return (
        all(np.array_equal(a.weights[k], b.weights[k]) for k in a.weights)
        and a.weights.keys() == b.weights.keys()
        and a.count == b.count
    )


def members(path: Path) -> list[zipfile.ZipInfo]:
    with zipfile.ZipFile(path / "arrays.npz") as archive:
        return archive.infolist()


def come_back(folder: Path, array: np.ndarray, expected: Any) -> zipfile.ZipInfo:
    """Check that an array is the same after saving and loading; return its entry in the file."""
    path = checkpoint.save(folder, 1, {"x": array}, {})
    loaded = checkpoint.load_newest(folder, {"x": expected}, refuse)
    assert loaded is not None
    found = loaded.state["x"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    with np.load(path / "arrays.npz") as arrays:
        assert arrays["['x']"].tobytes() == array.tobytes()
    (member,) = members(path)
    return member


TYPES = [np.bool_, np.uint8, np.int32, np.int64, np.float16, np.float32]
LAYOUTS = {
    "as it is": lambda x: x,
    "transposed": lambda x: x.T,
    "backwards": lambda x: x[..., ::-1] if x.ndim else x,
    "every second": lambda x: x[::2] if x.ndim else x,
    "repeated": lambda x: np.broadcast_to(x, (50, *x.shape)),
}


@given(
    bits=hnp.arrays(np.uint64, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)),
    dtype=st.sampled_from(TYPES),
    layout=st.sampled_from(sorted(LAYOUTS)),
)
def test_arrays_come_back_bit_for_bit(tmp_path_factory, bits, dtype, layout):
    """Any bits, so that NaNs are of all kinds."""
    if dtype is np.bool_:
        array = bits % 2 == 1
    else:
        array = bits.astype(f"u{np.dtype(dtype).itemsize}").view(dtype)
    array = LAYOUTS[layout](np.asarray(array))
    come_back(tmp_path_factory.mktemp("c"), array, array)
    if array.ndim == 1:
        come_back(tmp_path_factory.mktemp("c"), array, AnyLength(dtype))


@pytest.mark.parametrize("dtype", TYPES)
def test_large_arrays_of_padding_become_small(tmp_path, dtype):
    array = np.full((500, 8610), -np.inf if np.issubdtype(dtype, np.floating) else 0, dtype)
    array[::50] = 1
    assert come_back(tmp_path, array, array).compress_size < array.nbytes / 100


def test_what_would_hardly_get_smaller_is_stored(tmp_path):
    rng = np.random.default_rng(0)
    for array in (np.frombuffer(rng.bytes(10**6), np.uint8), rng.normal(size=10**5), np.array(7)):
        assert come_back(tmp_path, array, array).compress_type == zipfile.ZIP_STORED


def test_a_long_array_that_may_have_any_length_is_stored_and_so_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "LONGEST_DEFLATED", 8000)
    for length, kind in ((1000, zipfile.ZIP_DEFLATED), (1001, zipfile.ZIP_STORED)):
        assert come_back(tmp_path, np.zeros(length), AnyLength(float)).compress_type == kind
    fixed = np.zeros((1001, 1))
    assert come_back(tmp_path, fixed, fixed).compress_type == zipfile.ZIP_DEFLATED


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_saving_takes_little_memory(tmp_path, kind):
    array = np.zeros((2, 2**26), np.uint8)
    if kind == zipfile.ZIP_STORED:
        array = array.reshape(-1)
    with memory_below(40 * 2**20):
        path = checkpoint.save(tmp_path, 1, {"x": array}, {})
    assert [member.compress_type for member in members(path)] == [kind]


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


def reseal(path: Path, **changes: Any) -> None:
    """Make the checksums right again, after changes to the arrays and these to the manifest.

    A value of None stands for a key that is left out.
    """
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["manifest_sha256"]
    manifest["sha256"] = hashlib.sha256((path / "arrays.npz").read_bytes()).hexdigest()
    manifest |= changes
    manifest = {key: value for key, value in manifest.items() if value is not None}
    text = json.dumps(manifest, sort_keys=True)
    manifest["manifest_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


def damage_value(path: Path) -> None:
    """Change a number of the manifest, as a flipped bit may."""
    text = (path / "manifest.json").read_text()
    assert '"time_s": 2.5' in text
    (path / "manifest.json").write_text(text.replace('"time_s": 2.5', '"time_s": 6.5'))


def damage_to(data: bytes, name: str = "manifest.json") -> Callable[[Path], object]:
    return lambda path: (path / name).write_bytes(data)


def damage_number(path: Path) -> None:
    reseal(path, number=3)


NAME = "['x'].npy"  # of the only array
LARGE = 200 * 2**20  # bytes


def header(numbers: int) -> bytes:
    """Return the header of an array of this many numbers."""
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (numbers,)})
    return file.getvalue()


@cache
def deflated(start: bytes, zeros: int) -> bytes:
    """Deflate `start` and many zeros."""
    packer = zlib.compressobj(1, wbits=-15)
    pieces = [packer.compress(start), *(packer.compress(bytes(2**20)) for _ in range(zeros >> 20))]
    return b"".join([*pieces, packer.compress(bytes(zeros % 2**20)), packer.flush()])


def forge(
    path: Path, kind: int, data: bytes, crc: int, length: int, packed: int | None = None
) -> None:
    """Write a file with one array: its bytes, and what the directory says of them.

    crc, length: of their content. packed: their number, default the true one.
    """
    with zipfile.ZipFile(path / "arrays.npz", "w") as archive:
        archive.writestr(NAME, data)
    file = bytearray((path / "arrays.npz").read_bytes())
    entry = file.rindex(b"PK\x01\x02")
    file[entry + 10 : entry + 12] = struct.pack("<H", kind)
    file[entry + 16 : entry + 28] = struct.pack("<III", crc, packed or len(data), length)
    (path / "arrays.npz").write_bytes(file)
    reseal(path)


def damage_bomb(path: Path) -> None:
    """200 MB of zeros in a file of 1 MB, and all headers say so."""
    start = header(LARGE // 8)
    crc = zlib.crc32(bytes(LARGE), zlib.crc32(start))
    forge(path, zipfile.ZIP_DEFLATED, deflated(start, LARGE), crc, len(start) + LARGE)


def damage_long_data(path: Path) -> None:
    """The same behind a header that says four numbers."""
    start = header(4)
    crc = zlib.crc32(bytes(LARGE), zlib.crc32(start))
    forge(path, zipfile.ZIP_DEFLATED, deflated(start, LARGE), crc, len(start) + LARGE)


def damage_hidden_data(path: Path) -> None:
    """The same, and the directory too knows only of four numbers."""
    start = header(4)
    crc = zlib.crc32(start + bytes(32))
    forge(path, zipfile.ZIP_DEFLATED, deflated(start, LARGE), crc, len(start) + 32)


def damage_hidden_number(path: Path) -> None:
    """1001 numbers where the header and the directory say 1000; a reader that looks one byte
    further finds a right checksum."""
    start = header(1000)
    crc = zlib.crc32(start + bytes(8001))
    forge(path, zipfile.ZIP_STORED, start + bytes(8008), crc, len(start) + 8000)


def damage_short_data(path: Path) -> None:
    """Three numbers where the header and the directory say four."""
    start = header(4)
    crc = zlib.crc32(start + bytes(24))
    forge(path, zipfile.ZIP_DEFLATED, deflated(start, 24), crc, len(start) + 32)


def damage_long_header(path: Path) -> None:
    """A header of 200 MB, in the version that can be so long."""
    start = npy.magic(2, 0) + struct.pack("<I", LARGE)
    crc = zlib.crc32(bytes(LARGE), zlib.crc32(start))
    forge(path, zipfile.ZIP_DEFLATED, deflated(start, LARGE), crc, len(start) + LARGE)


def damage_header(path: Path) -> None:
    """A header that promises 8 TB, in front of 8 bytes."""
    with zipfile.ZipFile(path / "arrays.npz", "w") as archive:
        archive.writestr(NAME, header(2**40) + bytes(8))
    reseal(path)


def damage_directory(path: Path) -> None:
    """A header and a directory that promise 1 GB, in front of 8 bytes."""
    start = header(2**27)
    data = start + bytes(8)
    forge(path, zipfile.ZIP_STORED, data, zlib.crc32(data), len(start) + 2**30)


def damage_overlap(path: Path) -> None:
    """The same, and the directory claims 1 GB of the short file."""
    start = header(2**27)
    data, length = start + bytes(8), len(start) + 2**30
    forge(path, zipfile.ZIP_STORED, data, zlib.crc32(data), length, length)


def damage_compression(path: Path) -> None:
    """A right array, compressed in a way of which we know no limits."""
    with zipfile.ZipFile(path / "arrays.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr(NAME, header(4) + bytes(32))
    reseal(path)


FORGERIES = [
    damage_bomb, damage_long_data, damage_hidden_data, damage_hidden_number, damage_short_data,
    damage_long_header, damage_header, damage_directory, damage_overlap, damage_compression,
]  # fmt: skip
DAMAGES = [
    damage_truncate, damage_flip, damage_manifest, damage_missing, damage_value, damage_number,
    *FORGERIES,
]  # fmt: skip
DAMAGES += [damage_to(data) for data in (b"", b"{}", b"3", b"\xff\xfe", b"[" * 10**5, b" " * 2**21)]
DAMAGES += [damage_to(data, "arrays.npz") for data in (b"", b"PK\x05\x06", bytes(1000))]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_checkpoint_is_reported_and_the_one_before_used(tmp_path, damage):
    checkpoint.save(tmp_path, 1, {"x": np.ones(4)}, {"time_s": 1.5})
    damage(checkpoint.save(tmp_path, 2, {"x": np.zeros(4)}, {"time_s": 2.5}))
    warnings: list[str] = []
    loaded = checkpoint.load_newest(tmp_path, {"x": AnyLength(np.float64)}, warnings.append)
    assert loaded is not None
    assert loaded.state["x"].tolist() == [1, 1, 1, 1]
    assert loaded.manifest["time_s"] == 1.5
    assert len(warnings) == 1
    assert "000000002" in warnings[0]


@pytest.mark.parametrize("damage", DAMAGES)
def test_when_all_are_broken_the_run_is_refused(tmp_path, damage):
    damage(checkpoint.save(tmp_path, 1, {"x": np.ones(4)}, {"time_s": 2.5}))
    with pytest.raises(InputError, match=r"no checkpoint in .* can be read \(.+\); train"):
        checkpoint.load_newest(tmp_path, {"x": AnyLength(np.float64)}, lambda message: None)


@pytest.mark.parametrize("damage", FORGERIES)
@pytest.mark.parametrize("expected", [np.zeros(4), AnyLength(np.float64)])
def test_arrays_that_are_no_arrays_of_ours_take_no_memory(tmp_path, damage, expected):
    damage(checkpoint.save(tmp_path, 1, {"x": np.ones(4)}, {}))
    with memory_below(4 * 2**20), pytest.raises(InputError):
        checkpoint.load_newest(tmp_path, {"x": expected}, lambda message: None)


@given(
    cut=st.booleans(), where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7),
    right_checksums=st.booleans(),
)  # fmt: skip
def test_a_cut_or_flipped_file_gives_the_saved_arrays_or_none(
    tmp_path_factory, cut, where, bit, right_checksums
):
    """Nothing but the time in an entry of the file can change without harm."""
    folder = tmp_path_factory.mktemp("c")
    saved = {"a": np.arange(3000.0) // 50, "b": np.random.default_rng(0).normal(size=20)}
    path = checkpoint.save(folder, 1, saved, {})
    assert {member.compress_type for member in members(path)} == {0, zipfile.ZIP_DEFLATED}
    data = bytearray((path / "arrays.npz").read_bytes())
    place = int(where * len(data))
    data[place] ^= 1 << bit
    (path / "arrays.npz").write_bytes(data[:place] if cut else data)
    if right_checksums:
        reseal(path)
    try:
        loaded = checkpoint.load_newest(folder, saved, lambda message: None)
    except InputError:
        return
    assert loaded is not None
    assert right_checksums
    assert not cut
    assert all(np.array_equal(loaded.state[name], array) for name, array in saved.items())


NEEDS = {"metrics_bytes": checkpoint.is_count, "time_s": checkpoint.is_number}
INVALID = [
    {"metrics_bytes": None}, {"metrics_bytes": -1}, {"metrics_bytes": 3.0}, {"metrics_bytes": True},
    {"metrics_bytes": "3"}, {"metrics_bytes": 2**63}, {"time_s": None}, {"time_s": [1.0]},
    {"time_s": float("nan")}, {"time_s": float("inf")}, {"time_s": "1"}, {"run_id": "other"},
    {"run_id": None}, {"number": None}, {"number": 2.0}, {"number": "2"}, {"format": None},
    {"format": 1}, {"format": checkpoint.FORMAT - 1}, {"format": checkpoint.FORMAT + 1},
    {"format": str(checkpoint.FORMAT)}, {"sha256": 5},
]  # fmt: skip


@pytest.mark.parametrize("changes", INVALID, ids=str)
def test_a_manifest_with_right_checksums_and_wrong_values_is_not_used(tmp_path, changes):
    right = {"run_id": "mine", "metrics_bytes": 7, "time_s": 1.5}
    checkpoint.save(tmp_path, 1, state(1), right)
    reseal(checkpoint.save(tmp_path, 2, state(2), right))
    loaded = checkpoint.load_newest(tmp_path, state(0), refuse, run_id="mine", needs=NEEDS)
    assert loaded is not None
    assert loaded.manifest["number"] == 2  # what the test does by itself changes nothing
    reseal(tmp_path / "000000002", **changes)
    warnings: list[str] = []
    loaded = checkpoint.load_newest(tmp_path, state(0), warnings.append, run_id="mine", needs=NEEDS)
    assert loaded is not None
    assert loaded.manifest["number"] == 1
    assert len(warnings) == 1


def test_a_checkpoint_of_an_older_version_is_refused_with_a_sentence_that_says_so(tmp_path):
    path = checkpoint.save(tmp_path, 1, state(1), {})
    digest = hashlib.sha256((path / "arrays.npz").read_bytes()).hexdigest()
    manifest = {"number": 1, "sha256": digest, "metrics_bytes": 7, "time_s": 1.5}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError) as refusal:
        checkpoint.load_newest(tmp_path, state(0), lambda message: None)
    assert str(refusal.value) == (
        f"--resume: no checkpoint in '{tmp_path}' can be read (it was written by an older version "
        "of save_rl); train again with another --out."
    )


def test_broken_checkpoints_of_later_do_not_push_out_new_ones(tmp_path):
    for number in (1, 50, 60, 70):
        path = checkpoint.save(tmp_path, number, state(number), {})
        if number > 1:
            damage_truncate(path)
    for number in (2, 3, 4):
        checkpoint.save(tmp_path, number, state(number), {})
    assert checkpoint.numbers(tmp_path) == [2, 3, 4, 50, 60, 70]
    for number in (50, 51):
        checkpoint.save(tmp_path, number, state(number), {})
    assert checkpoint.numbers(tmp_path) == [4, 50, 51, 60, 70]


def test_other_names_beside_checkpoints_are_not_looked_at(tmp_path):
    checkpoint.save(tmp_path, 1, state(1), {})
    for name in ("²", "١", "12", "notes", "000000002.bak"):
        (tmp_path / name).mkdir()
    assert checkpoint.numbers(tmp_path) == [1]


def test_a_checkpoint_of_another_agent_is_refused(tmp_path):
    checkpoint.save(tmp_path, 1, {"other": np.zeros(3)}, {})
    with pytest.raises(InputError):
        checkpoint.load_newest(tmp_path, state(0), lambda message: None)
    for count in (np.zeros(7, np.int32), np.float32(0)):
        checkpoint.save(tmp_path, 2, state(0)._replace(count=count), {})
        with pytest.raises(InputError, match="no checkpoint"):
            checkpoint.load_newest(tmp_path, state(0), lambda message: None)


def test_objects_are_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.abort, ())

    path = checkpoint.save(tmp_path, 1, {"x": np.zeros(1)}, {})
    np.savez(path / "arrays.npz", **{"['x']": np.array([Trap()], object)})
    reseal(path)
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


@pytest.mark.slow
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
    assert done.stderr.strip().splitlines()[-1].startswith("save-rl: can't read or write")
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
