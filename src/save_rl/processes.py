"""Processes of Python that this one starts, and that end with it."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

_THREADS = ("OMP_NUM", "OPENBLAS_NUM", "MKL_NUM", "NUMBA_NUM", "VECLIB_MAXIMUM")
ONE_THREAD = {f"{library}_THREADS": "1" for library in _THREADS}
"""Environment variables of a process that uses one thread."""
_HERE = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def start_python(
    code: str, *arguments: str, stdout: Any = None, stderr: Any = None,
    pass_fds: Sequence[int] = (), env: dict[str, str] | None = None,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Start a process that runs `code`, which finds `arguments` in `sys.argv[1:]`.

    It finds the same modules as this one, and has its own process group, so that Ctrl-C does not
    reach it. The other arguments are those of `subprocess.Popen`.
    """
    path = json.dumps([folder for folder in sys.path if isinstance(folder, str)])
    command = [sys.executable, "-P", "-c", _HERE + code, path, *arguments]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, pass_fds=pass_fds, env=env,
        process_group=0,
    )  # fmt: skip


def die_with(parent: int) -> None:
    """Make Linux kill this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def end_group(process: subprocess.Popen[bytes], grace: float = 0.0) -> None:
    """Wait until a process has ended; after `grace` seconds, kill it and its process group."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ending(code: int | None) -> str:
    """Return the words for the return code of a process that has ended."""
    if code is None or code >= 0:
        return f"it exited with code {code}"
    try:
        return f"it was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"it was killed by signal {-code}"
