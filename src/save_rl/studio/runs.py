"""A line for every run of the folder: what it is, how far it is, how well it does."""

import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from save_rl.files import FAILURE
from save_rl.report.palette import looks
from save_rl.studio.answers import JSON
from save_rl.studio.folder import Folder
from save_rl.studio.metrics import MetricsCache, Table, read_tail, sample_column
from save_rl.studio.reading import Unreadable, failures, finite, is_training, read_config

_RECENT = 8  # lines of a seed over which its speed is measured
_SPARK = 32  # points of the small curve


def summarise(name: str, run: Path) -> dict[str, Any]:
    """Return the line of a run; if files are broken, its state is so and `problem` says which.

    Whatever is in its files, there is a line: one broken run must not hide the others.
    """
    try:
        return finite(_line(name, run))
    except Exception as error:
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        problem = f"It can't be read ({why})."
        return {"name": name, "state": "broken", "problem": problem, "updated": None}


def _line(name: str, run: Path) -> dict[str, Any]:
    line: dict[str, Any] = {"name": name, "state": "broken", "problem": "", "updated": None}
    try:
        settings = read_config(run)["settings"]
    except Unreadable as error:
        return {**line, "problem": f"{error}."}
    agent, seeds = settings["agent"], settings["seeds"]
    steps, episodes = settings.get("steps"), settings.get("episodes")
    unit, target = ("steps", steps) if _is_count(steps) else ("episodes", episodes)
    line |= {
        "env": settings["env"], "agent": agent, "seeds": seeds, "budget": settings.get("budget"),
        "label": looks([agent])[agent].label, "unit": unit,
        "target": target if _is_count(target) else None,
    }  # fmt: skip
    metrics = run / "metrics.csv"
    try:
        table = read_tail(metrics, 2 * _RECENT * len(seeds))
        line["updated"] = metrics.stat().st_mtime
    except FileNotFoundError:
        return {**line, "problem": "metrics.csv is missing."}
    if not {"seed", "episodes"} <= set(table.columns):
        return {**line, "problem": "metrics.csv has no header."}
    line |= _progress(table, unit, line["target"])
    tested = line["test_reward"] is not None
    shown = "test_return" if tested else "return_mean"
    line["spark"] = sample_column(metrics, shown, _SPARK, len(seeds))
    training, failed = is_training(run), failures(run)
    line["state"] = (
        "training" if training
        else "failed" if failed
        else "finished" if line["target"] is not None and line["done"] >= line["target"]
        else "stopped"
    )  # fmt: skip
    if not training:
        line["left_s"] = None
    if failed:
        line["problem"] = failed
    elif table.damaged:
        line["problem"] = "metrics.csv has damaged lines; they are left out."
    return line


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _progress(table: Table, unit: str, target: int | None) -> dict[str, Any]:
    """Return how far a run is, its latest rewards, its speed, and the time left."""
    seeds = table.column("seed")
    of_seeds = [table.values[seeds == seed] for seed in np.unique(seeds[~np.isnan(seeds)])]

    def cells(name: str) -> list[np.ndarray]:
        """The cells of each seed that have a value."""
        if name not in table.columns:
            return []
        found = [rows[:, table.columns.index(name)] for rows in of_seeds]
        return [column[~np.isnan(column)] for column in found]

    def latest(name: str) -> float | None:
        last = [column[-1] for column in cells(name) if len(column)]
        return float(np.mean(last)) if last else None

    def speeds(name: str) -> list[float]:
        """Per second, of each seed, over its last lines."""
        found = []
        for times, counts in zip(cells("time_s"), cells(name), strict=False):
            recent = min(len(times), len(counts), _RECENT)
            took = times[-1] - times[-recent] if recent > 1 else 0.0
            found.append((counts[-1] - counts[-recent]) / took if took > 0 else math.nan)
        return found

    counted = "env_steps" if unit == "steps" else "episodes"
    done = min((column[-1] for column in cells(counted) if len(column)), default=0.0)
    pace = min(speeds(counted), default=math.nan)
    return {
        "done": int(done), "episodes": latest("episodes"), "time_s": latest("time_s"),
        "reward": latest("return_mean"), "test_reward": latest("test_return"),
        "level": latest("level"), "steps_per_s": float(np.sum(speeds("env_steps"))) or None,
        "left_s": max(target - done, 0.0) / pace if target and pace > 0 else None,
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
                run = self.folder.root / name
                mark = _mark(run)
                known = before.get(name)
                if known is None or known[0] != mark:
                    known = mark, summarise(name, run)
                self._known[name] = known
            return [line for _, line in self._known.values()]

    def overview(self) -> dict[str, Any]:
        """Return everything that the page with all runs shows."""
        found = self.folder.found()
        return {
            "folder": str(self.folder.root), "cut": found.cut, "now": time.time(),
            "runs": self.lines(),
        }  # fmt: skip


def _mark(run: Path) -> tuple[Any, ...]:
    """Return what is different after every change of a run that its line shows."""
    marks: list[Any] = [is_training(run)]
    for name in ("config.json", "metrics.csv", "checkpoints", FAILURE):
        try:
            stat = os.stat(run / name)
            marks.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
        except OSError:
            marks.append(None)
    return tuple(marks)


def _list(request: Request) -> Response:
    return JSON(request.app.state.library.overview())


async def _stream(request: Request) -> Response:
    return StreamingResponse(
        request.app.state.stream.events(), media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )  # fmt: skip


routes: list[BaseRoute] = [Route("/api/runs", _list), Route("/api/stream", _stream)]
