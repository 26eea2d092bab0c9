"""Checkpoints: all arrays of a run, checksummed, and never half-written.

`checkpoints/000000064/` holds `arrays.npz` and `manifest.json`. It is written under a temporary
name, synced and renamed; the newest three are kept. A broken one is reported and the one before it
used. Nothing is unpickled.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from save_rl.errors import InputError
from save_rl.report.files import naming

KEEP = 3


class Checkpoint(NamedTuple):
    """A state and what the host knew when it was saved."""

    state: Any
    manifest: dict[str, Any]


def _named_leaves(state: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(state)}


@contextmanager
def _synced(path: Path) -> Iterator[Any]:
    """Open a new file; it is safely on disk afterwards."""
    with naming(path), path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save(folder: Path, number: int, state: Any, manifest: dict[str, Any]) -> Path:
    """Write checkpoint `number`; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".writing-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    arrays: dict[str, Any] = {name: np.asarray(x) for name, x in _named_leaves(state).items()}
    final, temporary = folder / f"{number:09d}", folder / f".writing-{number:09d}"
    try:
        temporary.mkdir()
        with _synced(temporary / "arrays.npz") as file:
            np.savez(file, allow_pickle=False, **arrays)
        manifest = {"number": number, "sha256": _digest(temporary / "arrays.npz"), **manifest}
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
    for old in numbers(folder)[:-KEEP]:
        shutil.rmtree(folder / f"{old:09d}", ignore_errors=True)
    return final


def numbers(folder: Path) -> list[int]:
    """Checkpoints in a folder, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def _load(path: Path, template: Any) -> Checkpoint:
    manifest = json.loads((path / "manifest.json").read_bytes())
    if _digest(path / "arrays.npz") != manifest["sha256"]:
        raise ValueError("its checksum does not match")
    named = _named_leaves(template)
    with np.load(path / "arrays.npz", allow_pickle=False) as arrays:
        if set(arrays.files) != set(named):
            raise ValueError("it holds other arrays than this agent has")
        leaves = []
        for name, expected in named.items():
            array = arrays[name]
            fits = len(array.shape) == len(expected.shape) and all(
                wanted in (size, -1)
                for size, wanted in zip(array.shape, expected.shape, strict=True)
            )
            if not fits or array.dtype != expected.dtype:
                raise ValueError(f"{name} has another shape or type")
            leaves.append(array)
    return Checkpoint(jax.tree.unflatten(jax.tree.structure(template), leaves), manifest)


def load_newest(
    folder: Path, template: Any, warn: Callable[[str], None], option: str = "--resume"
) -> Checkpoint | None:
    """The newest readable checkpoint; None if there never was one.

    template: arrays or shapes of the state that is expected; a size of -1 is any. option: for the
    error message.
    """
    found = numbers(folder)
    for number in reversed(found):
        path = folder / f"{number:09d}"
        try:
            return _load(path, template)
        except (OSError, ValueError, KeyError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            warn(f"checkpoint {path} can't be used ({reason}); trying the one before it.")
    if found:
        raise InputError(
            f"{option}: no checkpoint in '{folder}' can be read; train again with another --out."
        )
    return None
