"""Curves of runs: a line per run, or one for all that differ only in seeds, thinned for a screen.

The seeds of a line are brought onto one axis, and the line is their median, the range their lowest
and highest value. Seeds of a run never end at quite the same place, so near the ends a seed keeps
its first or last value; where it has ended long before, the others go on without it.
"""

import json
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from save_rl.errors import InputError, require, unknown_name
from save_rl.report.palette import looks
from save_rl.studio.answers import JSON
from save_rl.studio.metrics import Table
from save_rl.studio.reading import Unreadable, read_config

AXES = ("episodes", "env_steps", "simulator_steps", "time_s")
"""Columns that a curve can be drawn over."""
_MOST_RUNS = 100
_MOST_POINTS = 2000
_NEAR = 0.05  # of the axis: how far a seed keeps its first or last value

Points = tuple[np.ndarray, np.ndarray]
"""Places and values `[points]` of one seed."""


class Curve(NamedTuple):
    """Median, lowest and highest value of the seeds at each place, all `[points]`."""

    x: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray


def seed_points(table: Table, over: str, metric: str) -> list[Points]:
    """Return the points of each seed, without empty cells and in the order of their places."""
    x, y, seeds = (table.column(name) for name in (over, metric, "seed"))
    found = []
    for seed in np.unique(seeds[~np.isnan(seeds)]):
        kept = (seeds == seed) & np.isfinite(x) & np.isfinite(y)
        if kept.any():
            order = np.argsort(x[kept], kind="stable")
            found.append((x[kept][order], y[kept][order]))
    return found


def thin(points: Points, most: int) -> Points:
    """Return at most `most` points: means of neighbours, in groups of equal size."""
    x, y = points
    if len(x) <= most:
        return points
    starts = np.linspace(0, len(x), most, endpoint=False).astype(int)
    sizes = np.diff(np.append(starts, len(x)))
    return np.add.reduceat(x, starts) / sizes, np.add.reduceat(y, starts) / sizes


def _on_grid(grid: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the values of a seed at the places of a grid, NaN far from its ends."""
    near = _NEAR * (grid[-1] - grid[0])
    known = (grid >= x[0] - near) & (grid <= x[-1] + near)
    return np.where(known, np.interp(grid, x, y), np.nan)


def combine(seeds: Sequence[Points], most: int, log: bool = False) -> Curve:
    """Return the curve of some seeds. log: the axis is logarithmic, places ≤ 0 are left out."""
    if log:
        seeds = [(x[x > 0], y[x > 0]) for x, y in seeds]
    thinned = [thin(points, most) for points in seeds if len(points[0])]
    if not thinned:
        none = np.empty(0)
        return Curve(none, none, none, none)
    if len(thinned) == 1:
        x, y = thinned[0]
        return Curve(x, y, y, y)
    first, last = min(x[0] for x, _ in thinned), max(x[-1] for x, _ in thinned)
    to, back = (np.log, np.exp) if log else (np.asarray, np.asarray)
    count = min(most, max(len(x) for x, _ in thinned))
    grid = back(np.linspace(to(first), to(last), count)) if first < last else np.array([first])
    grid[0], grid[-1] = first, last  # exp(log(x)) is only nearly x
    values = np.stack([_on_grid(to(grid), to(x), y) for x, y in thinned])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # places that no seed has
        curve = Curve(
            grid, np.nanmedian(values, 0), np.nanmin(values, 0), np.nanmax(values, 0)
        )  # fmt: skip
    known = ~np.isnan(curve.median)
    return Curve(*(part[known] for part in curve))


def _group(settings: dict[str, Any]) -> str:
    """Return what is equal for runs that differ only in their seeds."""
    return json.dumps({k: v for k, v in settings.items() if k != "seeds"}, sort_keys=True)


def _numbers(values: np.ndarray) -> list[float]:
    return [float(f"{value:.6g}") for value in values]


def _curves(request: Request) -> Response:
    query, library = request.query_params, request.app.state.library
    names, metrics = query.getlist("run"), query.getlist("metric") or ["return_mean"]
    over = query.get("x", "episodes")
    if over not in AXES:
        raise unknown_name("axis", over, AXES, "x")
    require(len(names) <= _MOST_RUNS, "run", f"{len(names)} runs", f"at most {_MOST_RUNS}")
    try:
        most = int(query.get("points", "500"))
    except ValueError:
        raise InputError("points: it must be a whole number.") from None
    require(2 <= most <= _MOST_POINTS, "points", most, f"between 2 and {_MOST_POINTS}")
    log, together = query.get("log") == "1", query.get("together") == "1"
    tables: dict[str, Table] = {}
    groups: dict[str, list[str]] = {}
    told: dict[str, dict[str, Any]] = {}
    problems = {}
    for name in names:
        run = library.folder.run(name)
        try:
            settings = read_config(run)["settings"]
            tables[name] = library.metrics.read(run / "metrics.csv")
        except Unreadable as error:
            problems[name] = f"{error}."
            continue
        except OSError as error:
            problems[name] = f"metrics.csv can't be read ({error.strerror})."
            continue
        key = _group(settings) if together else name
        groups.setdefault(key, []).append(name)
        told[key] = settings
    colours = looks(settings["agent"] for settings in told.values())
    lines = []
    for key, members in groups.items():
        settings = told[key]
        for metric in metrics:
            seeds = [p for name in members for p in seed_points(tables[name], over, metric)]
            curve = combine(seeds, most, log)
            lines.append({
                "runs": members, "agent": settings["agent"], "env": settings["env"],
                "label": colours[settings["agent"]].label,
                "colour": colours[settings["agent"]].colour, "metric": metric,
                "seeds": len(seeds), "x": _numbers(curve.x), "median": _numbers(curve.median),
                "low": _numbers(curve.low) if len(seeds) > 1 else None,
                "high": _numbers(curve.high) if len(seeds) > 1 else None,
            })  # fmt: skip
    known = {column: None for table in tables.values() for column in table.columns}
    return JSON({"curves": lines, "columns": list(known), "problems": problems})


routes: list[BaseRoute] = [Route("/api/curves", _curves)]
