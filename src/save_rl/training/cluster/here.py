"""A Ray cluster on this machine: found, or started and ended again."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

from save_rl.errors import RunError

_PATIENCE = 60.0  # seconds for a cluster to start, and to end
_RAY = [sys.executable, "-m", "ray.scripts.scripts"]
_START = ["start", "--head", "--block", "--disable-usage-stats"]
_mine: dict[int, subprocess.Popen[bytes]] = {}  # clusters that this process has started


def answers(address: str, seconds: float = 5.0) -> bool:
    """Whether somebody listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), seconds).close()
    except OSError:
        return False
    return True


def running_cluster() -> str | None:
    """The address that `ray start` left on this machine, if a cluster is there."""
    from ray._private.utils import read_ray_address

    address = os.environ.get("RAY_ADDRESS") or read_ray_address()
    return address if address and answers(address) else None


def start_cluster(*options: str) -> tuple[str, int]:
    """Start a cluster on this machine; its address, and the process to end it with.

    options: of ray start.

    It does not end with this process. Whoever joins it needs a token, which Ray keeps for this
    user, and finds by itself with the address 'auto'.
    """
    if "RAY_AUTH_MODE" not in os.environ:
        quiet = subprocess.DEVNULL  # it prints the token
        asked = [*_RAY, "get-auth-token", "--generate"]
        if subprocess.run(asked, stdout=quiet, stderr=quiet).returncode:
            raise RunError("--cluster: Ray could not make a token for a cluster on this machine.")
    ports = [_free_port() for _ in range(2)]
    chosen = [f"--port={ports[0]}", f"--dashboard-port={ports[1]}"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*_RAY, *_START, *chosen, *options],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        _mine[process.pid] = process
        began = time.monotonic()
        try:
            while "Ray runtime started" not in (said := _read(log.fileno())):
                late = time.monotonic() - began > _PATIENCE
                if process.poll() is not None or late:
                    last = (said.strip().splitlines() or ["it said nothing"])[-1]
                    raise RunError(f"--cluster: Ray could not be started here; {last}")
                time.sleep(0.1)
        except BaseException:
            end_cluster(process.pid)
            raise
    return f"127.0.0.1:{ports[0]}", process.pid


def module_path() -> dict[str, str]:
    """The variable with which processes of a cluster find modules: as this one, if a script, does.

    They are looked for where it stands, beside the script, and where its own variable says.
    """
    path = [os.getcwd(), sys.path[0], *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {"PYTHONPATH": os.pathsep.join(x for x in dict.fromkeys(path) if x)}


def same_port(one: str, other: str) -> bool:
    """Whether two addresses of this machine are the same."""
    return one.rpartition(":")[2] == other.rpartition(":")[2]


def end_cluster(process: int) -> None:
    """End a cluster that `start_cluster` has started, here or elsewhere; waits until it is gone."""
    started = _mine.pop(process, None)
    asked = ["ps", "-p", str(process), "-o", "args="]
    listed = subprocess.run(asked, capture_output=True, text=True).stdout
    if " ".join(_START[:3]) in listed:
        os.kill(process, signal.SIGTERM)
    if started is not None:
        started.wait()
    began = time.monotonic()
    while _exists(process) and time.monotonic() - began < _PATIENCE:
        time.sleep(0.05)
    _forget()


def _forget() -> None:
    """Have Ray forget the address of a cluster that has ended; it would still look for it."""
    from ray._common.utils import reset_ray_address
    from ray._private.utils import read_ray_address

    noted = read_ray_address()
    if noted and not answers(noted):
        reset_ray_address()


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def _read(file: int) -> str:
    return os.pread(file, 1 << 20, 0).decode()
