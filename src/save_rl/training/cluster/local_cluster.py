"""Find, start and end a Ray cluster on this machine."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from save_rl.errors import RunError
from save_rl.training.cluster import guard

_PATIENCE = 300.0  # seconds for a cluster to start, and to end
_RAY = [sys.executable, "-m", "ray.scripts.scripts"]
_START = ["start", "--head", "--block", "--disable-usage-stats"]
_DRIVER = "save-rl-driver"  # the label of a cluster's head node that names who started it


class _Head(NamedTuple):
    """A process that this one has started."""

    process: subprocess.Popen[bytes]
    pipe: int  # the writing end, see `guard`; closed after "keep"


_mine: dict[int, _Head] = {}  # by the process number


def answers(address: str, seconds: float = 5.0) -> bool:
    """Test whether a process listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), seconds).close()
    except OSError:
        return False
    return True


def running_cluster() -> str | None:
    """Return the address of the cluster that this machine is part of, if there is one."""
    from ray._private.utils import read_ray_address

    address = os.environ.get("RAY_ADDRESS") or read_ray_address()
    return address if address and answers(address) else None


def make_token() -> None:
    """Write a token for clusters of this user, unless there is one, where Ray looks for it.

    Only this user can read it afterwards. With RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH the token is
    the user's own affair.
    """
    if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        return
    path = Path.home() / ".ray" / "auth_token"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and not path.read_text().strip():  # Ray would ask for no token at all
        path.unlink()
    if not path.exists():
        with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:  # has mode 600
            file.write(uuid.uuid4().hex)
            file.flush()
            with suppress(FileExistsError):  # another run was faster
                os.link(file.name, path)
    for private, mode in ((path.parent, 0o700), (path, 0o600)):
        if private.stat().st_mode & 0o077:
            private.chmod(mode)


def start_guarded(command: list[str], log: int) -> int:
    """Start a command that ends with this process, until `keep`; return its guard's number.

    log: the file that it writes to.
    """
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", guard.__file__, str(reading), *command],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            pass_fds=[reading],
        )  # fmt: skip
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    _mine[process.pid] = _Head(process, writing)
    return process.pid


def keep(process: int) -> None:
    """Let a guarded command outlive this process; does nothing for one of another process."""
    head = _mine.get(process)
    if head is not None and head.pipe >= 0:
        os.write(head.pipe, b"k")
        os.close(head.pipe)
        _mine[process] = head._replace(pipe=-1)


def start_cluster(*options: str) -> tuple[str, int]:
    """Start a cluster on this machine; return its address and the process to end it with.

    options: of ray start.

    The cluster ends with this process until `keep` is called. Whoever joins it needs a token, which
    Ray finds by itself in this user's home.
    """
    if "RAY_AUTH_MODE" not in os.environ:
        make_token()
    ports = [_free_port() for _ in range(2)]
    chosen = [
        f"--port={ports[0]}", f"--dashboard-port={ports[1]}", f"--labels={_DRIVER}={os.getpid()}",
    ]  # fmt: skip
    with tempfile.TemporaryFile("w+") as log:
        process = start_guarded([*_RAY, *_START, *chosen, *options], log.fileno())
        began = time.monotonic()
        try:
            # It says this after it has noted its address for processes that look for it.
            while "will now block" not in (said := _read(log.fileno())):
                late = time.monotonic() - began > _PATIENCE
                if _mine[process].process.poll() is not None or late:
                    last = (said.strip().splitlines() or ["it printed nothing"])[-1]
                    raise RunError(f"--cluster: Ray could not be started here; {last}")
                time.sleep(0.1)
        except BaseException:
            end_cluster(process)
            raise
    return f"127.0.0.1:{ports[0]}", process


def abandoned(address: str) -> list[int]:
    """Return the head processes of a cluster here if a run started it and its driver is gone."""
    running, port = _running(), address.rpartition(":")[2]
    heads = {
        process: int(found.group(1))
        for process, command in running.items()
        if f" --port={port} " in command and (found := re.search(rf"{_DRIVER}=(\d+)", command))
    }
    return [process for process, driver in heads.items() if driver not in running]


def module_path() -> dict[str, str]:
    """Return the variable with which processes of a cluster find the modules of this script.

    They look in its working folder, beside the script, and where its own PYTHONPATH says.
    """
    path = [os.getcwd(), sys.path[0], *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {"PYTHONPATH": os.pathsep.join(x for x in dict.fromkeys(path) if x)}


def same_port(one: str, other: str) -> bool:
    """Test whether two addresses of this machine are the same."""
    return one.rpartition(":")[2] == other.rpartition(":")[2]


def end_cluster(*processes: int) -> None:
    """End a cluster that `start_cluster` started, here or elsewhere, and wait until it is gone.

    Other processes, that may have got its numbers meanwhile, are left alone.
    """
    running, command = _running(), " ".join(_START[:3])
    heads = {process for process in processes if command in running.get(process, "")}
    for process in heads:
        os.kill(process, signal.SIGTERM)
    for process in processes:
        head = _mine.pop(process, None)
        if head is not None:
            head.process.wait()
            if head.pipe >= 0:
                os.close(head.pipe)
    began = time.monotonic()
    while _running().keys() & heads and time.monotonic() - began < _PATIENCE:
        time.sleep(0.1)
    _forget()


def _forget() -> None:
    """Remove Ray's note of a cluster that has ended; it would still look for it."""
    from ray._common.utils import reset_ray_address
    from ray._private.utils import read_ray_address

    noted = read_ray_address()
    if noted and not answers(noted):
        reset_ray_address()


def _running() -> dict[int, str]:
    """Return the command lines of all processes but those that wait to be reaped."""
    asked = ["ps", "-A", "-ww", "-o", "pid=,stat=,args="]
    listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    lines = [line.split(None, 2) for line in listed.splitlines()]
    return {int(pid): args[0] if args else "" for pid, state, *args in lines if state[0] != "Z"}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def _read(file: int) -> str:
    return os.pread(file, 1 << 20, 0).decode()
