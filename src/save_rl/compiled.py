"""Numba with a compilation cache that notices changes in any kernel's source.

Numba's own cache checks only the file of the outermost function, so a kernel would keep running an
old version of a function from another file. Here the name of the cache folder is a hash of all
kernels' sources. Every file has a checksum; a damaged one is compiled again.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import config
from numba.core.caching import IndexDataCacheFile

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
    """Return a writable folder for this version of the kernels; None if there is none."""
    sources = b"".join((_PACKAGE / name).read_bytes() for name in _KERNELS)
    root = _config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "save_rl" / f"numba-{hashlib.sha256(sources).hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError:
        return None


class _Checked(IndexDataCacheFile):
    """Cache files of a kernel, each followed by a checksum; damaged ones are ignored.

    With a full disk, or files of another user, the kernel is just compiled again.
    """

    def save(self, key: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            super().save(key, data)

    def _dump(self, obj: Any) -> bytes:
        data = super()._dump(obj)
        return data + hashlib.sha256(data).digest()  # Numba ignores what follows the end

    def _load_index(self) -> dict[Any, str]:
        try:
            return super()._load_index()
        except Exception:  # a damaged file raises anything
            with contextlib.suppress(OSError):
                os.unlink(self._index_path)
            return {}

    def _load_data(self, name: str) -> Any:
        data = Path(self._data_path(name)).read_bytes()
        if hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
            return None
        return super()._load_data(name)


_DIGEST = hashlib.sha256().digest_size


def njit(function: Callable[..., Any]) -> Any:
    """Compile a kernel: cached on disk, without the GIL, division as in NumPy."""
    folder = _cache_dir()
    before = _config.CACHE_DIR
    _config.CACHE_DIR = folder or before
    try:
        kernel: Any = numba.njit(cache=folder is not None, nogil=True, error_model="numpy")(
            function
        )
    finally:
        _config.CACHE_DIR = before
    if folder is not None:
        plain = kernel._cache._cache_file
        kernel._cache._cache_file = _Checked(
            plain._cache_path, plain._index_name.removesuffix(".nbi"), plain._source_stamp
        )
    return kernel
