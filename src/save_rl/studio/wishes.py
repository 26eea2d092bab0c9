"""Requests of an episode page: checkpoints, seeds, levels and budgets that there are."""

from pathlib import Path
from typing import Any

from save_rl.agents import AGENTS, usual_budget
from save_rl.envs import require_trust
from save_rl.errors import InputError, require
from save_rl.studio.reading import Unreadable, checkpoint_numbers, read_config

MOST_STEPS, MOST_BUDGET = 10_000, 100_000


def choices(run: Path, name: str, trust: bool) -> dict[str, Any]:
    """Return what there is to choose for an episode of a run; `problem` says why there is none."""
    try:
        settings = read_config(run)["settings"]
    except Unreadable as error:
        return {"problem": f"{error}."}
    found = {
        key: settings.get(key) for key in ("env", "agent", "seeds", "budget", "c", "env_options")
    }
    if found["agent"] in AGENTS:
        found["budget"] = usual_budget(AGENTS[found["agent"]], found["budget"])
    kept = [which for which in ("best", "checkpoints") if checkpoint_numbers(run, which)]
    found["checkpoints"] = ["last" if which == "checkpoints" else which for which in kept]
    problem = None if kept else "There is no checkpoint yet, so there is nothing to play."
    try:
        require_trust(found["env"], name, trust, "run")
    except InputError:
        problem = (
            f"Playing would import and run code of '{found['env']}', which this run names. If you "
            "know it, start the studio with: save-rl studio --trust"
        )
    return {**found, "problem": problem}


def wanted_episode(run: Path, body: dict[str, Any], trust: bool) -> dict[str, Any]:
    """Return the settings of an episode that a page asks for; refuse impossible ones."""
    there = choices(run, run.name, trust)
    if there["problem"]:
        raise InputError(there["problem"])
    which = body.get("checkpoint", there["checkpoints"][0])
    known = there["checkpoints"]
    require(which in known, "checkpoint", repr(which), " or ".join(known))
    of = whole_number(body, "of", there["seeds"][0], 0, 2**31)
    require(of in there["seeds"], "seed of the run", of, f"one of {there['seeds']}")
    level = body.get("level")
    return {
        "best": which == "best",
        "of": of,
        "seed": whole_number(body, "seed", 0, 0, 2**31 - 1),
        "level": None if level is None else whole_number(body, "level", 0, 0, 1000),
        "most": whole_number(body, "most", 500, 1, MOST_STEPS),
        **search_wishes(body, there["budget"], there["c"]),
    }


def search_wishes(body: dict[str, Any], budget: Any, c: Any) -> dict[str, Any]:
    """Return budget and c of a request; these are the defaults."""
    found = body.get("c", c)
    number = isinstance(found, int | float) and not isinstance(found, bool)
    require(number and 0 <= found <= 1e6, "c", repr(found), "a number from 0 to a million")
    return {"budget": whole_number(body, "budget", budget, 0, MOST_BUDGET), "c": float(found)}


def whole_number(body: dict[str, Any], name: str, default: Any, low: int, high: int) -> int:
    """Return a whole number of a request."""
    value = body.get(name, default)
    fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    require(fits, name, repr(value), f"a whole number from {low} to {high}")
    return value
