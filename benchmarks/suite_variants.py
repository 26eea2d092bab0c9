"""Agents of minatar or jax-suite with other settings, to find out why one is ahead of another.

    python benchmarks/suite_variants.py --out runs/n-step --envs jumanji/Maze-v0 --set n_step=5
    python benchmarks/suite_variants.py --out runs/variants --envs gymnax/SpaceInvaders-MinAtar \
      --steps 450000 --window 350000 450000 --set c=0.5 --budgets

Everything but what `--set` says is as in `save-rl reproduce … --scale paper`. Prints the reward of
training in a window of real steps and of tests at every budget: mean over seeds, with the lowest
and the highest seed. `--budgets` alone leaves out the tests.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from minatar_training import rewards

from save_rl.evaluation import evaluate
from save_rl.experiments.suites import JAX_SUITE, MINATAR, MINATAR_SUITE, make_cells
from save_rl.training.run.loop import train


def changed(given: list[str]) -> dict[str, Any]:
    """Return settings given as `name=value`, with values in JSON."""
    return {name: json.loads(value) for name, _, value in (text.partition("=") for text in given)}


def shown(means: Any) -> str:
    return f"{means.mean():.2f} ({means.min():.2f} to {means.max():.2f})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--envs", nargs="+", required=True)
    parser.add_argument("--agents", nargs="+", default=["save"])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--window", type=int, nargs=2)
    parser.add_argument("--budgets", type=int, nargs="*")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    settings = changed(given.set)
    what = ", ".join(given.set) or "as it is"
    for env in given.envs:
        axes = (MINATAR_SUITE if env in MINATAR else JAX_SUITE).scales["paper"]
        axes = replace(axes, envs=(env,), agents=tuple(given.agents))
        axes = replace(axes, steps=given.steps or axes.steps)
        for cell in make_cells(axes, given.out / "_".join(given.set or ["as-it-is"])):
            train(replace(cell.settings, **settings), cell.folder, device=given.device)
            if given.window:
                means = rewards(cell.folder, *given.window)
                print(f"{cell.name}, {what}, training: {shown(means)}", flush=True)
            budgets = axes.budgets if given.budgets is None else given.budgets
            for test in (
                evaluate(
                    cell.folder, budgets, axes.test_episodes, device=given.device, baseline="none"
                )
                if budgets
                else []
            ):
                means = test.returns.mean(-1)
                print(f"{cell.name}, {what}, budget {test.budget}: {shown(means)}", flush=True)


if __name__ == "__main__":
    main()
