"""SAVE of the experiment jax-suite with n-step targets, where it was not ahead with one step.

    python benchmarks/jax_suite_n_step.py --out runs/n-step --n-step 5 --envs jumanji/Maze-v0

Everything but n is as in `save-rl reproduce jax-suite --scale paper`. Prints the mean test reward
over seeds by budget, with the lowest and the highest seed.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from save_rl.evaluation import evaluate
from save_rl.experiments.suites import JAX_SUITE, OTHERS, make_cells
from save_rl.training.run.loop import train


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--n-step", type=int, default=5)
    parser.add_argument("--agents", nargs="+", default=["save"])
    parser.add_argument("--envs", nargs="+", default=list(OTHERS))
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    axes = replace(JAX_SUITE.scales["paper"], envs=tuple(given.envs), agents=tuple(given.agents))
    for cell in make_cells(axes, given.out):
        train(replace(cell.settings, n_step=given.n_step), cell.folder, device=given.device)
        tests = evaluate(
            cell.folder, axes.budgets, axes.test_episodes, device=given.device, baseline="none"
        )
        for test in tests:
            means = np.mean(test.returns, -1)
            print(
                f"{cell.name}, {given.n_step} steps, budget {test.budget}: {means.mean():.2f} "
                f"({means.min():.2f} to {means.max():.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
