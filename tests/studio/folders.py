"""Run directories written by hand, as docs/run-directory.md describes them."""

import fcntl
import json
import os
from contextlib import contextmanager

COLUMNS = (
    "time_s", "episodes", "env_steps", "simulator_steps", "return_mean", "test_return", "level",
    "seed",
)  # fmt: skip


def line(**cells):
    """A line of metrics.csv; cells that are not named are empty."""
    return ",".join(str(cells.get(name, "")) for name in COLUMNS) + "\n"


def lines(count, seed=0, of=lambda i: i / 10):
    """Lines of a seed, each 10 s, 100 episodes, 300 real and 3,000 simulator steps later."""
    return [
        line(time_s=10 * i, episodes=100 * i, env_steps=300 * i, simulator_steps=3000 * i,
             return_mean=of(i), seed=seed)
        for i in range(1, count + 1)
    ]  # fmt: skip


def make_run(path, rows=(), **settings):
    """Write a run that was to have 1,000 episodes."""
    path.mkdir(parents=True, exist_ok=True)
    chosen = {"env": "tightrope", "agent": "save", "seeds": [0], "episodes": 1000, **settings}
    (path / "config.json").write_text(json.dumps({"run_id": "id", "settings": chosen}))
    (path / "metrics.csv").write_text(",".join(COLUMNS) + "\n" + "".join(rows))
    return path


def append(run, *rows):
    with (run / "metrics.csv").open("a") as file:
        file.writelines(rows)


@contextmanager
def locked(run):
    """Hold the lock of a run, as its training process does."""
    handle = os.open(run / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def make_checkpoint(run, number, **manifest):
    path = run / "checkpoints" / f"{number:09d}"
    path.mkdir(parents=True)
    (path / "arrays.npz").write_bytes(b"x" * 100)
    (path / "manifest.json").write_text(json.dumps({"number": number, **manifest}))
    return path


def contents(folder):
    """Every file below a folder with its bytes and the time of its last change."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }
