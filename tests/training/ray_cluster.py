"""Ray in tests: a cluster apart from this user's own, runs on it by the command line, and waiting.

Nothing here has a time limit that a slow machine could reach: `LIMIT` only ends a test that hangs.
"""

import csv
import io
import os
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from save_rl.training.cluster import local_cluster
from save_rl.training.run import checkpoint
from tests.training.numbered import check_numbers

ROOT = Path(__file__).parents[2]
LIMIT = 1200  # seconds
CORES = 4  # of the cluster that tests share
LANES, RATIO, BATCH = 8, 4, 16
SETTINGS = [
    "train", "tests.training.numbered:Numbered", "--lanes", str(LANES), "--batch", str(BATCH),
    "--replay", "20000", "--min-replay", "8", "--budget", "2", "--chunk", "8", "--seed", "3",
    "--checkpoint-seconds", "0",
]  # fmt: skip
_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS")


class Shared(NamedTuple):
    """The cluster of all tests that need no other."""

    address: str
    process: int  # above all others of the cluster
    variables: dict[str, str]  # with which it was started


@contextmanager
def environment(variables):
    """Set variables for Ray, and remove those that it would read otherwise."""
    from ray._private.authentication_test_utils import reset_auth_token_state

    with pytest.MonkeyPatch.context() as patch:
        for name in _VARIABLES:
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        reset_auth_token_state()  # Ray reads them once
        yield
    reset_auth_token_state()


@contextmanager
def private_folder(token=True):
    """Make a folder for Ray's files, with a short name; yield the variables that name it.

    Without `token`, a token is made in that folder when a cluster is started.
    """
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        variables = {"RAY_TMPDIR": folder, "HOME": folder, "PYTHONPATH": path}
        # Kernels are compiled once for all tests, wherever HOME is.
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        variables["XDG_CACHE_HOME"] = cache
        if token:
            variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex}
        yield variables


@contextmanager
def private_ray(token=True):
    """Have Ray's files, and its token, in a folder of our own."""
    with private_folder(token) as variables, environment(variables):
        yield


@contextmanager
def shared_cluster():
    """Start the cluster that tests share; other tests run while it does, with their variables."""
    with private_folder() as variables:
        with environment(variables):
            address, process = local_cluster.start_cluster(f"--num-cpus={CORES}")
        yield Shared(address, process, variables)
        with environment(variables):
            local_cluster.end_cluster(process)


def start(*more):
    """Start a run by the command line."""
    return subprocess.Popen(
        [sys.executable, "-m", "save_rl", *SETTINGS, *map(str, more)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process, code=0):
    """Wait for a run to end with this exit code; return what it printed and its errors."""
    said, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    return said, errors


def wait_for(event, process=None):
    """Wait until `event` returns something, and return it; `process` must be alive until then."""
    began = time.monotonic()
    while not (found := event()):
        assert process is None or process.poll() is None, process.communicate()[1]
        assert time.monotonic() - began < LIMIT, "it did not happen"
        time.sleep(0.05)
    return found


def newest(out):
    """Return the number of the newest checkpoint of a run; -1 if there is none."""
    return max(checkpoint.numbers(out / "checkpoints"), default=-1)


def descendants(process):
    """Return the command lines of all processes below one."""
    asked = ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="]  # whatever COLUMNS says
    listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    lines = [line.split(None, 2) for line in listed.splitlines()]
    found, todo = {}, [process]
    while todo:
        parent = todo.pop()
        below = {int(pid): name for pid, above, name in lines if int(above) == parent}
        found |= below
        todo += below
    return found


def called(process, name):
    """Return the processes below one whose command line begins with `name`."""
    return [pid for pid, args in descendants(process).items() if args.startswith(name)]


def exists(pid):
    """Test whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second if it ends while it is read
        return False


def check_counters(out, finished=True):
    """Check a run: every transition counted once, and the replay ratio that was asked for."""
    with np.load(out / "checkpoints" / f"{newest(out):09d}" / "arrays.npz") as arrays:
        steps, updates = int(arrays[".env_steps"][0]), int(arrays[".updates"][0])
        assert int(arrays[".replay.added"][0]) == steps
        check_numbers(arrays[".replay.data.observation"][0], steps)
    assert updates * BATCH == pytest.approx(steps * RATIO, rel=0.05)
    lines = list(csv.DictReader(io.StringIO((out / "metrics.csv").read_text())))
    for name in ("env_steps", "updates", "episodes"):
        values = [int(line[name]) for line in lines]
        assert all(before <= after for before, after in pairwise(values))
    assert int(lines[-1]["env_steps"]) == steps or not finished
