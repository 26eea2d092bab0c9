"""Experiments: figure, claims with their verdicts, and the runs behind them."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from save_rl.studio.answers import JSON
from save_rl.studio.details import PICTURES
from save_rl.studio.folder import NotInFolder
from save_rl.studio.reading import Unreadable, finite, read_json, read_table

_MAIN_FIGURE = "figure.png"
VERDICTS = {True: "holds", False: "does not hold", None: "too small to tell"}
"""Words for `holds` of a claim."""


def _read(path: Path, kind: type, problems: list[str]) -> Any:
    """Return a JSON file of this kind, or an empty one; what is wrong goes to `problems`."""
    try:
        found = read_json(path)
        if not isinstance(found, kind):
            raise Unreadable(f"{path.name} is damaged")
    except Unreadable as error:
        problems.append(f"{error}.")
        return kind()
    return found


def _verdict(holds: Any) -> str:
    return VERDICTS[holds if isinstance(holds, bool) else None]


def claims_of(folder: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Return the claims of an experiment, each with its `verdict` in words."""
    found = _read(folder / "claims.json", list, problems)
    return [{**c, "verdict": _verdict(c.get("holds"))} for c in found if isinstance(c, dict)]


def pictures(folder: Path) -> list[str]:
    """Return the pictures of an experiment, its main figure first."""
    names = [e.name for e in os.scandir(folder) if Path(e.name).suffix.lower() in PICTURES]
    return sorted(names, key=lambda name: (name != _MAIN_FIGURE, name))


def summarise(name: str, folder: Path) -> dict[str, Any]:
    """Return the entry of an experiment in the list of all."""
    problems: list[str] = []
    experiment = _read(folder / "experiment.json", dict, problems)
    claims = claims_of(folder, problems)
    return {
        "name": name, "experiment": experiment.get("experiment", ""), "problems": problems,
        "verdicts": Counter(claim["verdict"] for claim in claims),
        "picture": next(iter(pictures(folder)), None),
    }  # fmt: skip


def describe(name: str, folder: Path, runs: list[str]) -> dict[str, Any]:
    """Return everything that the page of an experiment shows."""
    problems: list[str] = []
    experiment = _read(folder / "experiment.json", dict, problems)
    told: dict[str, Any] = {
        "name": name, "experiment": experiment.get("experiment", ""),
        "axes": experiment.get("axes", {}), "claims": claims_of(folder, problems),
        "provenance": _read(folder / "provenance.json", dict, []),  # written at the end
        "pictures": pictures(folder),
        "runs": [run for run in runs if name == "." or run.startswith(f"{name}{os.sep}")],
    }  # fmt: skip
    try:
        rows = read_table(folder / "results.csv")
        told["numbers"] = len(rows)
        told["metrics"] = sorted({row.get("metric", "") for row in rows})
    except Unreadable as error:
        problems.append(f"{error}.")
    return finite({**told, "problems": problems})


def _list(request: Request) -> Response:
    folder = request.app.state.folder
    found = folder.found().experiments
    return JSON({
        "folder": str(folder.root),
        "experiments": finite([summarise(name, folder.root / name) for name in found]),
    })  # fmt: skip


def _one(request: Request) -> Response:
    folder, name = request.app.state.folder, request.query_params.get("name", "")
    if name not in folder.found().experiments:
        raise NotInFolder(f"'{name}' holds no experiment.")
    return JSON(describe(name, folder.path(name), folder.found().runs))


routes: list[BaseRoute] = [Route("/api/experiments", _list), Route("/api/experiment", _one)]
