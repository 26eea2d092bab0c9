"""The page of one run: settings, provenance, tests, checkpoints."""

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from save_rl.studio.answers import JSON
from save_rl.studio.folder import NotInFolder
from save_rl.studio.reading import (
    Unreadable,
    checkpoint_numbers,
    finite,
    is_training,
    read_bytes,
    read_config,
    read_json,
    read_table,
)
from save_rl.studio.runs import summarise
from save_rl.training.settings import TrainSettings

PICTURES = {".png": "image/png", ".gif": "image/gif"}
"""Kinds of files that are handed out as they are."""
_LAST_WORDS = 4000  # bytes of job.log
_MAIN_TESTS = "evaluation.csv"


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by their names, those in groups as `group.name`."""
    for name, value in settings.items():
        if isinstance(value, dict) and value and name != "env_options":
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def compare_settings(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all settings with their defaults, those that differ first."""
    usual = dict(_flat(finite(asdict(TrainSettings()))))
    listed = [
        {"name": name, "value": value, "default": usual.get(name), "known": name in usual,
         "differs": name not in usual or value != usual[name]}
        for name, value in _flat(settings)
    ]  # fmt: skip
    return sorted(listed, key=lambda one: not one["differs"])


def rewards_by_budget(path: Path) -> dict[str, Any]:
    """Return the test rewards of an evaluation*.csv by budget, with their standard errors."""
    name = path.name
    try:
        rows = read_table(path)
        returns: dict[int, list[float]] = defaultdict(list)
        for row in rows:
            returns[int(row["budget"])].append(float(row["return"]))
    except Unreadable as error:
        return {"file": name, "problem": f"{error}.", "budgets": []}
    except (KeyError, ValueError):
        return {"file": name, "problem": f"{name} is damaged or half-written.", "budgets": []}
    budgets = [
        {"budget": budget, "mean": np.mean(values), "min": min(values), "max": max(values),
         "error": np.std(values) / np.sqrt(len(values)), "episodes": len(values)}
        for budget, values in sorted(returns.items())
    ]  # fmt: skip
    return {"file": name, "problem": "", "budgets": budgets}


def checkpoints(run: Path, folder: str) -> list[dict[str, Any]]:
    """Return the checkpoints in a folder of a run, newest first."""
    found = []
    for number in reversed(checkpoint_numbers(run, folder)):
        path = run / folder / number
        entry: dict[str, Any] = {"folder": folder, "number": int(number), "problem": ""}
        try:
            manifest = read_json(path / "manifest.json")
            if not isinstance(manifest, dict):
                raise Unreadable("manifest.json is damaged")
            entry |= {
                "time_s": _of_kind(manifest, "time_s", int | float),
                "light": manifest.get("light") is True, "scores": manifest.get("scores"),
                "failed": _of_kind(manifest, "failed", dict) or {},
                "bytes": (path / "arrays.npz").stat().st_size,
                "saved": path.stat().st_mtime,
            }  # fmt: skip
        except Unreadable as error:
            entry["problem"] = f"{error}."
        except OSError:
            entry["problem"] = "arrays.npz is missing."
        found.append(entry)
    return found


def _of_kind(manifest: dict[str, Any], name: str, kind: Any) -> Any:
    """Return an entry of a manifest; None if it is absent or something else."""
    return value if isinstance(value := manifest.get(name), kind) else None


def last_words(run: Path) -> str:
    """Return the end of a run's job.log; "" without one."""
    try:
        return read_bytes(run / "job.log", _LAST_WORDS).decode(errors="replace")
    except Unreadable:
        return ""


def describe(name: str, run: Path) -> dict[str, Any]:
    """Return everything that the page of a run shows, besides its curves."""
    told: dict[str, Any] = {
        "line": summarise(name, run), "training": is_training(run), "path": str(run)
    }  # fmt: skip
    try:
        config = read_config(run)
        told |= {
            "settings": compare_settings(config["settings"]),
            "agent": config.get("agent"), "run_id": config.get("run_id"),
            "device": config.get("device"), "versions": config.get("versions"),
            "git_commit": config.get("git_commit"),
        }  # fmt: skip
    except Unreadable:
        told["settings"] = []  # its line says what is wrong
    files = sorted(entry.name for entry in os.scandir(run) if entry.is_file())
    tests = [file for file in files if file.startswith("evaluation") and file.endswith(".csv")]
    tests.sort(key=lambda file: file != _MAIN_TESTS)
    told |= {
        "files": [file for file in files if not file.startswith(".")],
        "evaluations": [rewards_by_budget(run / file) for file in tests],
        "checkpoints": checkpoints(run, "checkpoints"), "best": checkpoints(run, "best"),
        "log": last_words(run),
    }  # fmt: skip
    return finite(told)


def _run(request: Request) -> Response:
    name = request.query_params.get("run", "")
    return JSON(describe(name, request.app.state.folder.run(name)))


def _picture(request: Request) -> Response:
    """Answer with a picture of a run or an experiment."""
    query = request.query_params
    path = request.app.state.folder.path(query.get("in", "."), query.get("file", ""))
    kind = PICTURES.get(path.suffix.lower())
    if kind is None or not path.is_file():
        raise NotInFolder(f"'{query.get('file', '')}' is not a picture of this folder.")
    return FileResponse(path, media_type=kind)


routes: list[BaseRoute] = [Route("/api/run", _run), Route("/api/picture", _picture)]
