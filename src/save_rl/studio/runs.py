"""What there is to say about a run; the list of all runs and its stream of changes."""

import fcntl
import json
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from save_rl.files import LOCK
from save_rl.studio.folder import Folder
from save_rl.studio.metrics import MetricsCache, Table, read_tail

_LONGEST_JSON = 2**22  # bytes; a config.json has a few thousand
_HEARTBEAT = 120.0  # seconds; counts only where folders can't be locked


class Unreadable(ValueError):
    """A file of a run can't be used; says why."""


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; raise Unreadable with a reason."""
    try:
        with path.open("rb") as file:
            data = file.read(_LONGEST_JSON + 1)
        if len(data) > _LONGEST_JSON:
            raise Unreadable(f"{path.name} is too long")
        return json.loads(data)
    except FileNotFoundError:
        raise Unreadable(f"{path.name} is missing") from None
    except OSError as error:
        raise Unreadable(f"{path.name} can't be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(f"{path.name} is damaged or half-written") from None


def read_config(run: Path) -> dict[str, Any]:
    """Return a run's config.json, with `settings`; raise Unreadable with a reason."""
    config = read_json(run / "config.json")
    settings = config.get("settings") if isinstance(config, dict) else None
    if not isinstance(settings, dict):
        raise Unreadable("config.json has no settings")
    texts = all(isinstance(settings.get(name), str) for name in ("env", "agent"))
    seeds = settings.get("seeds")
    if not texts or not isinstance(seeds, list) or not seeds:
        raise Unreadable("config.json names no environment, agent or seeds")
    return config


def finite(value: Any) -> Any:
    """Return a value as JSON can hold it: None for NaN and infinities."""
    if isinstance(value, dict):
        return {name: finite(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [finite(x) for x in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_training(run: Path) -> bool:
    """Test whether a process holds the lock of a run.

    A shared lock, held for an instant, is how to ask; `lock_folder` tries again for that instant.
    """
    try:
        handle = os.open(run / LOCK, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:  # a filesystem without locks
        return _age(run / "metrics.csv") < _HEARTBEAT
    finally:
        os.close(handle)


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return math.inf


def failures(run: Path) -> list[str]:
    """Return why seeds have stopped, as the newest checkpoint says."""
    for number in reversed(checkpoint_numbers(run)):
        try:
            failed = read_json(run / "checkpoints" / number / "manifest.json").get("failed")
        except (Unreadable, AttributeError):
            continue
        return [str(why) for why in failed.values()] if isinstance(failed, dict) else []
    return []


def checkpoint_numbers(run: Path, kind: str = "checkpoints") -> list[str]:
    """Return the folders of a run's checkpoints, oldest first; kind: 'best' for the best ones."""
    try:
        names = os.listdir(run / kind)
    except OSError:
        return []
    return sorted((name for name in names if name.isdecimal()), key=int)


def _last_rows(table: Table) -> list[np.ndarray]:
    """Return the lines of each seed `[lines, columns]`, in the order of seeds."""
    seeds = table.column("seed")
    return [table.values[seeds == seed] for seed in np.unique(seeds[~np.isnan(seeds)])]


def summarise(name: str, run: Path) -> dict[str, Any]:
    """Return a line of the list of runs; if files are broken, `problem` says which."""
    line: dict[str, Any] = {"name": name, "state": "broken", "problem": "", "updated": None}
    line["training"] = is_training(run)
    try:
        config = read_config(run)
    except Unreadable as error:
        return {**line, "problem": f"{error}."}
    settings = config["settings"]
    line |= {
        "env": settings["env"], "agent": settings["agent"], "seeds": settings["seeds"],
        "budget": settings.get("budget"),
    }  # fmt: skip
    steps = settings.get("steps") or 0
    unit = "steps" if isinstance(steps, int) and steps > 0 else "episodes"
    target = steps if unit == "steps" else settings.get("episodes")
    line |= {"unit": unit, "target": target if isinstance(target, int) else None}
    try:
        table = read_tail(run / "metrics.csv", len(settings["seeds"]))
        line["updated"] = (run / "metrics.csv").stat().st_mtime
    except FileNotFoundError:
        return {**line, "problem": "metrics.csv is missing."}
    if not {"seed", "episodes"} <= set(table.columns):
        return {**line, "problem": "metrics.csv has no header."}
    line |= _progress(table, unit, line["target"])
    failed = failures(run)
    done, target = line["done"], line["target"]
    if line["training"]:
        line["state"] = "training"
    elif failed:
        line["state"] = "failed"
    elif target is not None and done >= target:
        line["state"] = "finished"
    else:
        line["state"] = "stopped"
    if not line["training"]:
        line["left_s"] = None
    if failed:
        line["problem"] = "; ".join(failed) + "."
    elif table.damaged:
        line["problem"] = f"metrics.csv has {table.damaged} damaged lines at its end."
    return finite(line)


def _progress(table: Table, unit: str, target: int | None) -> dict[str, Any]:
    """Return how far a run is, its latest rewards, speed, and the time left."""
    rows = _last_rows(table)
    column = {name: i for i, name in enumerate(table.columns)}
    counted = column.get("env_steps" if unit == "steps" else "episodes", 0)

    def latest(name: str) -> float | None:
        last = [seen[~np.isnan(seen)][-1:] for seen in (r[:, column[name]] for r in rows)
                ] if name in column else []  # fmt: skip
        found = np.concatenate(last) if last else np.empty(0)
        return float(found.mean()) if found.size else None

    def rate(index: int) -> float:
        """Per second, of the slowest seed, over the lines at hand."""
        times = column.get("time_s")
        if times is None or not rows:
            return math.nan
        took = [max(r[-1, times] - r[0, times], 0.0) for r in rows]
        made = [r[-1, index] - r[0, index] for r in rows]
        return min(m / t if t > 0 else math.nan for m, t in zip(made, took, strict=True))

    done = int(min((r[-1, counted] for r in rows), default=0))
    speed = rate(column["env_steps"]) * len(rows) if "env_steps" in column else math.nan
    pace = rate(counted)
    left = (target - done) / pace if target and pace > 0 else None
    return {
        "done": done, "episodes": latest("episodes"), "time_s": latest("time_s"),
        "reward": latest("return_mean"), "test_reward": latest("test_return"),
        "level": latest("level"), "steps_per_s": speed, "left_s": left,
    }  # fmt: skip


class Library:
    """The runs of a folder. A run is read again when its files have changed."""

    def __init__(self, folder: Folder):
        self.folder = folder
        self.metrics = MetricsCache()
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Any, dict[str, Any]]] = {}

    def lines(self) -> list[dict[str, Any]]:
        """Return a line per run, see `summarise`."""
        with self._lock:
            before, self._known = self._known, {}
            for name in self.folder.found().runs:
                mark = _mark(self.folder.root / name)
                known = before.get(name)
                if known is None or known[0] != mark:
                    known = mark, _summarise_or_say_why(name, self.folder.root / name)
                self._known[name] = known
            return [line for _, line in self._known.values()]


def _summarise_or_say_why(name: str, run: Path) -> dict[str, Any]:
    """Return a line for any folder: one run must not keep the others from being shown."""
    try:
        return summarise(name, run)
    except Exception as error:  # whatever is in its files
        why = getattr(error, "strerror", None) or f"{type(error).__name__} {error}"
        return {"name": name, "state": "broken", "problem": f"It can't be read ({why})."}


def _mark(run: Path) -> tuple[Any, ...]:
    """Return what is different after every change of a run that its line shows."""
    marks: list[Any] = [is_training(run)]
    for name in ("config.json", "metrics.csv", "checkpoints"):
        try:
            stat = (run / name).stat()
            marks.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        except OSError:
            marks.append(None)
    return tuple(marks)


def overview(library: Library) -> dict[str, Any]:
    """Return everything that the list of runs shows."""
    found = library.folder.found()
    return {
        "folder": str(library.folder.root), "cut": found.cut,
        "experiments": found.experiments, "runs": library.lines(),
    }  # fmt: skip


def _list(request: Request) -> Response:
    return JSONResponse(overview(request.app.state.library))


async def _stream(request: Request) -> Response:
    return StreamingResponse(
        request.app.state.stream.events(), media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )  # fmt: skip


routes: list[BaseRoute] = [Route("/api/runs", _list), Route("/api/stream", _stream)]
