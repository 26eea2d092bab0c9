"""Checkpoints: all arrays of a run, compressed, checksummed, and never half-written.

`checkpoints/000000064/` holds `arrays.npz` and `manifest.json`. It is written under a temporary
name, synced and renamed; the newest three are kept. If one is broken, a warning says so and the one
before it is used.

An array is deflated if that makes it a tenth smaller, else stored; `numpy.load` reads both. Nothing
is unpickled. A light checkpoint leaves the replay out. Reading takes no more memory than the
expected arrays do; one that may have any length takes at most `LONGEST_DEFLATED`, or if stored its
bytes in the file.
"""

import hashlib
import json
import math
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.lib import format as npy

from save_rl.errors import InputError
from save_rl.files import naming

KEEP = 3
FORMAT = 6
"""Version of the layout; a checkpoint with another one is not used."""
LONGEST_DEFLATED = 2**26
"""Bytes; a longer array with one axis is stored, since its reader may allow any length."""
_LEVEL = 6  # 1 makes checkpoints of covering 8 % larger in 0.6 of the time
_QUICK, _LARGE = 1, 2**26  # level of arrays of more bytes: truth values take a fifth of the time
_SAMPLE, _SAMPLES = 2**12, 16  # bytes, and how often in a large array
_LONGEST_MANIFEST = 2**20  # bytes; ours have a few hundred
_SEAL = "manifest_sha256"
_VERSION = (1, 0)  # of array headers; these have at most 64 kB


class Checkpoint(NamedTuple):
    """A state and its manifest: values that the host saved with it."""

    state: Any
    manifest: dict[str, Any]


def named_leaves(state: Any) -> dict[str, Any]:
    """Return the arrays of a pytree by the names that they have in a file."""
    return {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(state)}


@contextmanager
def _synced(path: Path) -> Iterator[Any]:
    """Open a new file, and sync it to disk at the end."""
    with naming(path), path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(manifest: dict[str, Any]) -> str:
    """Return the checksum of a manifest, independent of its formatting."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _gets_smaller(array: np.ndarray) -> bool:
    """Test with samples whether deflate makes an array at least a tenth smaller."""
    size = _SAMPLE // array.itemsize
    starts = range(0, array.size, max(array.size // _SAMPLES, size))
    sample = b"".join(array.flat[start : start + size].tobytes() for start in starts)
    return len(zlib.compress(sample, _LEVEL)) < 0.9 * len(sample)


def write_arrays(file: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an `.npz` file, piece by piece."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            archive.compresslevel = _QUICK if array.nbytes > _LARGE else _LEVEL
            long = array.ndim == 1 and array.nbytes > LONGEST_DEFLATED
            deflate = not long and _gets_smaller(array)
            archive.compression = zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED
            with archive.open(_file(name), "w", force_zip64=True) as member:
                npy.write_array(member, array, _VERSION, allow_pickle=False)


def without_replay(state: Any) -> Any:
    """Return a state, or its template, as it is in a light checkpoint."""
    return state._replace(replay=())


def save(folder: Path, number: int, state: Any, manifest: dict[str, Any]) -> Path:
    """Write checkpoint `number`; return its folder. manifest: values for the host to restore; for
    a state `without_replay`, `light` must be true."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".writing-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    arrays = {name: np.asarray(x) for name, x in named_leaves(state).items()}
    final, temporary = folder / f"{number:09d}", folder / f".writing-{number:09d}"
    try:
        temporary.mkdir()
        with _synced(temporary / "arrays.npz") as file:
            write_arrays(file, arrays)
        digest = _digest(temporary / "arrays.npz")
        manifest = {"format": FORMAT, "number": number, "sha256": digest, **manifest}
        manifest[_SEAL] = seal(manifest)
        with _synced(temporary / "manifest.json") as file:
            file.write(json.dumps(manifest, indent=2).encode())
        _sync_folder(temporary)
        if final.exists():  # the same step, saved again after a resume
            shutil.rmtree(final)
        temporary.rename(final)
        _sync_folder(folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    older = [other for other in numbers(folder) if other < number]  # later ones are broken
    for old in older[: 1 - KEEP]:
        shutil.rmtree(folder / f"{old:09d}", ignore_errors=True)
    return final


def numbers(folder: Path) -> list[int]:
    """Return the numbers of the checkpoints in a folder, oldest first."""
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir()]
    return sorted(int(name) for name in names if re.fullmatch("[0-9]{9,}", name))


def is_count(value: Any) -> bool:
    """Test whether a value of a manifest is a whole number, 0 or more."""
    return type(value) is int and 0 <= value < 2**63


def is_number(value: Any) -> bool:
    """Test whether a value of a manifest is a finite number."""
    return type(value) in (int, float) and abs(value) < math.inf


def _read_manifest(path: Path, number: int) -> dict[str, Any]:
    with (path / "manifest.json").open("rb") as file:
        data = file.read(_LONGEST_MANIFEST + 1)
    if len(data) > _LONGEST_MANIFEST:
        raise ValueError("its manifest is too long")
    manifest = json.loads(data)
    if not isinstance(manifest, dict):
        raise ValueError("its manifest is not a JSON object")
    version = manifest.get("format", 1)
    if version != FORMAT:
        age = "a newer" if is_count(version) and version > FORMAT else "an older"
        raise ValueError(f"it was written by {age} version of save_rl")
    if manifest.pop(_SEAL, None) != seal(manifest):
        raise ValueError("the checksum of its manifest does not match")
    if not is_count(manifest.get("number")) or manifest["number"] != number:
        raise ValueError("its manifest has another number")
    return manifest


def _file(name: str) -> str:
    """Return the name of the file of an array in its archive."""
    return f"{name}.npy"


def _check_member(archive: zipfile.ZipFile, name: str, wanted: Any) -> None:
    """Raise ValueError unless the array's header and length are as wanted; reads no data."""
    member = archive.getinfo(_file(name))
    with archive.open(member) as file:
        if npy.read_magic(file) != _VERSION:  # headers of others can be long
            raise ValueError(f"{name} has another kind of header")
        shape, _, dtype = npy.read_array_header_1_0(file)
        data = member.file_size - file.tell()
    any_length = wanted.shape == (-1,) and len(shape) == 1
    if not (any_length or shape == wanted.shape) or dtype != wanted.dtype:
        raise ValueError(f"{name} has another shape or type")
    if data != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name} is not as long as its header says")
    stored = member.compress_type == zipfile.ZIP_STORED
    longest = member.compress_size if stored else LONGEST_DEFLATED
    if any_length and data > longest:
        raise ValueError(f"{name} is too long")


def _read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Return an array whose header was checked."""
    member = archive.getinfo(_file(name))
    member.file_size += 1  # else data after the stated length would be ignored
    with archive.open(member) as file:
        array = npy.read_array(file, allow_pickle=False)
        if file.read(1):
            raise ValueError(f"{name} is longer than its header says")
    return array


def read_arrays(path: Path, expected: Mapping[str, Any], part: bool = False) -> list[np.ndarray]:
    """Return arrays in the order of `expected`; all headers are checked before any data is read.

    part: the file may hold other arrays, too.
    """
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        ways = {member.compress_type for member in members}
        if not ways <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise ValueError("its arrays are compressed in another way")
        if sum(member.compress_size for member in members) > path.stat().st_size:
            raise ValueError("its arrays overlap")
        held, wanted = (sorted(x) for x in ((m.filename for m in members), map(_file, expected)))
        if held != wanted and not (part and set(wanted) <= set(held)):
            raise ValueError("it holds other arrays than this agent has")
        for name, kind in expected.items():
            _check_member(archive, name, kind)
        return [_read_array(archive, name) for name in expected]


def _load(
    path: Path, template: Any, run_id: str | None, needs: Mapping[str, Callable[[Any], bool]],
    part: str,
) -> Checkpoint:  # fmt: skip
    manifest = _read_manifest(path, int(path.name))
    if run_id is not None and manifest.get("run_id") != run_id:
        raise ValueError("it belongs to another run")
    for key, fits in needs.items():
        if key not in manifest or not fits(manifest[key]):
            raise ValueError(f"its manifest has no valid {key}")
    if _digest(path / "arrays.npz") != manifest.get("sha256"):
        raise ValueError("its checksum does not match")
    if manifest.get("light") is True and not part:
        template = without_replay(template)
    expected = {f"{part}{name}": x for name, x in named_leaves(template).items()}
    leaves = read_arrays(path / "arrays.npz", expected, part != "")
    return Checkpoint(jax.tree.unflatten(jax.tree.structure(template), leaves), manifest)


def load_newest(
    folder: Path,
    template: Any,
    warn: Callable[[str], None],
    option: str = "--resume",
    *,
    run_id: str | None = None,
    needs: Mapping[str, Callable[[Any], bool]] | None = None,
    part: str = "",
    latest: int | None = None,
) -> Checkpoint | None:
    """Return the newest readable checkpoint; None if there never was one.

    template: arrays or shapes of the expected state; (-1,) matches any length. option: for the
    error message. run_id: of the run that it must belong to; None for any. needs: keys that its
    manifest must have, and tests of their values. part: read only the arrays of the state whose
    names begin with this; the template is that part. latest: leave out those of higher numbers.
    """
    found = [number for number in numbers(folder) if latest is None or number <= latest]
    reasons = []
    for number in reversed(found):
        path = folder / f"{number:09d}"
        try:
            return _load(path, template, run_id, needs or {}, part)
        except Exception as error:  # whatever is wrong with its bytes
            kind = "" if isinstance(error, ValueError | OSError) else type(error).__name__
            reasons.append(f"{kind} {error}".strip().partition("\n")[0])
            warn(f"checkpoint {path} can't be used ({reasons[-1]}); trying the one before it.")
    if found:
        raise InputError(
            f"{option}: no checkpoint in '{folder}' can be read ({reasons[0]}); train again "
            "with another --out."
        )
    return None
