"""Numba with a compilation cache that notices changes in anything that was compiled.

Numba's own cache checks the file of the outermost function alone, so a kernel would keep running an
old version of a function or a constant from another file. Here the key of a cached kernel is a hash
of its code, of the functions that it calls and of the constants that it reads, wherever they are.
Every file has a checksum; a damaged one is compiled again. Of processes that need the same kernel
at the same time, one compiles it and the others wait: a run may have a worker for every core.
"""

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba.core import config
from numba.core.caching import IndexDataCacheFile
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic

_config: Any = config
_OPTIONS = {"nogil": True, "error_model": "numpy"}
_COUNTS = "_nrt"  # the name of Numba's option
_LIBRARIES = ("numpy", "math", "numba", "llvmlite")  # Numba compiles its own versions of these


@cache
def _cache_dir() -> str | None:
    """Return a writable folder for kernels of this version of Numba; None if there is none.

    Versions in one folder would overwrite each other's files, also while these are loaded.
    """
    root = _config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "save_rl" / f"numba-{numba.__version__}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return str(folder)
    except OSError:
        return None


def fingerprint(function: FunctionType) -> str:
    """Return a hash of all that is compiled with a function: its code, callees and constants.

    Callees are kernels, Numba's intrinsics and what these call to make code.
    """
    seen: list[FunctionType] = [function]  # in an order that is the same in every process
    found = [repr(_OPTIONS)]
    for function in seen:  # the loop appends to it
        used = _used(function)
        found += [_name(function), _text(function.__code__)]
        found += [f"{name} = {_constant(value)}" for name, value in used]
        callees = [_python(value) for _, value in used]
        seen += [callee for callee in callees if callee is not None and callee not in seen]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


def _used(function: FunctionType) -> list[tuple[str, Any]]:
    """Return what a function's global and free names stand for, sorted by name."""
    code, cells = function.__code__, function.__closure__ or ()
    used = dict(zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=True))
    names = _names(code)
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if not isinstance(value, ModuleType):
            used[name] = value
        elif not _is_library(value.__name__):
            here = vars(value)
            used |= {f"{name}.{x}": here[x] for x in names & here.keys()}
    return sorted(used.items())


def _python(value: Any) -> FunctionType | None:
    """Return the Python function of a callee that is ours; None for anything else."""
    if isinstance(value, Dispatcher):
        value = value.py_func
    elif isinstance(value, _Intrinsic):
        value = value._defn
    is_ours = isinstance(value, FunctionType) and not _is_library(value.__module__)
    return value if is_ours else None


def counts_references(kernel: Any) -> bool:
    """Test whether a kernel counts references to arrays, see `njit`."""
    return kernel.targetoptions[_COUNTS]


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


def _name(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _names(code: CodeType) -> set[str]:
    """Return the global names and attributes in a function, and in functions inside it."""
    inside = (_names(x) for x in code.co_consts if isinstance(x, CodeType))
    return set(code.co_names).union(*inside)


def _text(code: CodeType) -> str:
    """Return all of a function's code but where it stands in its file."""
    constants = [_text(x) if isinstance(x, CodeType) else _constant(x) for x in code.co_consts]
    return repr((code.co_code, code.co_names, code.co_varnames, constants))


def _constant(value: Any) -> str:
    """Describe a value in the same words in every process."""
    if isinstance(value, Dispatcher):
        return f"{_name(value)} {sorted(value.targetoptions.items())}"
    if isinstance(value, FunctionType | _Intrinsic):
        return _name(value)
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, np.ndarray):
        return repr((value.dtype.str, value.shape, value.tobytes()))
    if isinstance(value, frozenset):
        return repr(sorted(map(repr, value)))
    if isinstance(value, type):  # the members of an enumeration, the fields of a named tuple
        members = dict(getattr(value, "__members__", {}))
        return repr((value.__qualname__, members, getattr(value, "_fields", ())))
    return repr(value)


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


class _Turn:
    """Lets one process at a time compile a kernel; without locks of files, all do."""

    def __init__(self, cached: Any, path: str):
        self._load, self._save, self._path = cached.load_overload, cached.save_overload, path
        self._file: int | None = None

    def load(self, *arguments: Any) -> Any:
        """Load a kernel, or wait until nobody else compiles it; None if this process must."""
        found = self._load(*arguments)
        if found is not None:
            return found
        self._release()
        with contextlib.suppress(OSError):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        found = self._load(*arguments)
        if found is not None:
            self._release()
        return found

    def save(self, *arguments: Any) -> None:
        try:
            self._save(*arguments)
        finally:
            self._release()

    def of(self, compiles: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that loads or compiles; others need not wait for one that fails."""

        def compile_in_turn(*arguments: Any) -> Any:
            try:
                return compiles(*arguments)
            finally:
                self._release()

        return compile_in_turn

    def _release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def njit(function: Callable[..., Any] | None = None, *, refcounts: bool = False) -> Any:
    """Compile a kernel: cached on disk, without the GIL, division as in NumPy.

    refcounts: count references to arrays, as kernels need that make arrays or call reductions of
    NumPy, and all that call these; Numba refuses most that should say so, tests the rest. Counting
    the arrays of all arguments in every call takes longer than the work where they are many, as
    trees have.
    """
    if function is None:
        return partial(njit, refcounts=refcounts)
    options = {**_OPTIONS, _COUNTS: refcounts}
    folder = _cache_dir()
    before = _config.CACHE_DIR
    _config.CACHE_DIR = folder or before
    try:
        kernel: Any = numba.njit(cache=folder is not None, **options)(function)
    finally:
        _config.CACHE_DIR = before
    if folder is not None:
        cached = kernel._cache
        plain, index_key = cached._cache_file, cached._index_key
        name = plain._index_name.removesuffix(".nbi")
        cached._cache_file = _Checked(plain._cache_path, name, "the key says what was compiled")
        # Callees are known when a kernel is first called: all modules are loaded then.
        once = cache(lambda: fingerprint(function))
        cached._index_key = lambda sig, codegen: (*index_key(sig, codegen), refcounts, once())
        turn = _Turn(cached, os.path.join(plain._cache_path, f"{name}.lock"))
        cached.load_overload, cached.save_overload = turn.load, turn.save
        kernel.compile = turn.of(kernel.compile)
    return kernel
