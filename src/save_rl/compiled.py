"""Numba with a compilation cache that notices changes in any kernel's source.

Numba's own cache looks at the file of the outermost function alone, so a kernel would keep running
an old version of what it calls from another file. Here the cache folder is named after the sources
of all of them.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import config

_config: Any = config
_PACKAGE = Path(__file__).parent
_KERNELS = (
    "compiled.py", "rescaling.py", "search/rules.py", "search/host.py", "envs/tightrope.py",
    "training/tabular.py", "training/host_acting.py", "learning/sequence_replay.py",
    "envs/construction/geometry.py", "envs/construction/score.py", "envs/construction/scene.py",
    "envs/construction/fields.py", "envs/construction/kernel.py", "envs/construction/state.py",
    "envs/atari/frames.py",
)  # fmt: skip


@cache
def _cache_dir() -> str | None:
    """A writable folder for this version of the kernels; None where there is none."""
    sources = b"".join((_PACKAGE / name).read_bytes() for name in _KERNELS)
    root = _config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "save_rl" / f"numba-{hashlib.sha256(sources).hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError:
        return None


def njit(function: Callable[..., Any]) -> Any:
    """Compile a kernel: cached on disk, without the interpreter's lock, division as in NumPy."""
    folder = _cache_dir()
    before = _config.CACHE_DIR
    _config.CACHE_DIR = folder or before
    try:
        return numba.njit(cache=folder is not None, nogil=True, error_model="numpy")(function)
    finally:
        _config.CACHE_DIR = before
