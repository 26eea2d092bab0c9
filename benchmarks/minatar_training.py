"""Training rewards of the experiment minatar in a window of real steps, per agent and seed.

    mkdir -p runs/minatar && tar xzf results/minatar/runs.tgz -C runs/minatar
    python benchmarks/minatar_training.py runs/minatar Breakout --steps 1800000 2000000

A reward is the mean over all episodes that ended in the window. Runs that did not reach its end are
left out. p: one-sided rank test over seeds that SAVE is above.
"""

import argparse
from pathlib import Path

import numpy as np

from save_rl.experiments.suites import AGENTS, SAVE, run_folder
from save_rl.report.statistics import greater_p
from save_rl.training.run.run_directory import RunDirectory


def rewards(folder: Path, first: int, last: int) -> np.ndarray | None:
    """Return the mean reward of every seed; None if there is no run or it is too short."""
    if not (folder / "metrics.csv").exists():
        return None
    lines, means = RunDirectory(folder).read_metrics(), []
    for seed in sorted({line["seed"] for line in lines}):
        own = [line for line in lines if line["seed"] == seed]
        if own[-1]["env_steps"] < last:
            return None
        ended = np.diff([0, *(line["episodes"] for line in own)])
        counted = [
            (count, line["return_mean"])
            for count, line in zip(ended, own, strict=True)
            if count > 0 and first < line["env_steps"] <= last and "return_mean" in line
        ]
        counts, returns = np.transpose(counted)
        means.append(np.average(returns, weights=counts))
    return np.array(means)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("game")
    parser.add_argument("--steps", type=int, nargs=2, default=(1_800_000, 2_000_000))
    given = parser.parse_args()
    found = {
        agent: rewards(run_folder(given.out, f"gymnax/{given.game}-MinAtar", agent), *given.steps)
        for agent in AGENTS
    }
    for agent, means in found.items():
        if means is None:
            print(f"{agent}: no run that reached {given.steps[1]:,} steps")
            continue
        save = found[SAVE]
        test = "" if agent == SAVE or save is None else f", p = {greater_p(save, means):.3f}"
        print(f"{agent}: {means.mean():.1f} ({means.min():.1f} to {means.max():.1f}){test}")


if __name__ == "__main__":
    main()
