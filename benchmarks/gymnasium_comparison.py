"""SAVE and Q-learning on Gymnasium environments at equal real steps; see results/gymnasium."""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.ticker import EngFormatter
from side_by_side import run_all

from save_rl.report.canvas import WIDTH, clean, empty_figure, legend_below, save_png
from save_rl.report.palette import looks
from save_rl.report.results import write_results
from save_rl.report.statistics import greater_p

# Settings are the same for both agents and all environments, but for these.
ENVIRONMENTS = {
    "Taxi": {"env": "gym/Taxi-v4", "discount": 0.97, "epsilon_episodes": 500},
    "CartPole": {"env": "gym/CartPole-v1", "discount": 0.99, "epsilon_episodes": 200},
    "FrozenLake 8x8": {
        "env": "gym/FrozenLake8x8-v1", "env_options": {"is_slippery": False}, "discount": 0.97,
        "epsilon_episodes": 500,
    },
    "FrozenLake slippery": {
        "env": "gym/FrozenLake-v1", "discount": 0.97,
        "epsilon_episodes": 500,
    },
}  # fmt: skip
# The paper's; left out, they would be chosen (docs/settings.md).
PAPER = {
    "batch": 16, "replay": 4000, "replay_ratio": 4, "epsilon_end": 0.01, "reward_scale": 1.0,
    "check": False,
}  # fmt: skip
COMMON = {"lanes": 16, "chunk": 128, "learning_rate": 1e-3, "test_episodes": 10, **PAPER}
AGENTS = ("save", "q-learning")
BUDGETS = (0, 10)


def jobs(steps, seeds, episodes):
    return [
        {
            "name": f"{title.replace(' ', '-')}-{agent}-{seed}",
            "train": {**COMMON, **options, "agent": agent, "seed": seed, "steps": steps},
            "budgets": BUDGETS,
            "episodes": episodes,
            "title": title,
        }
        for agent in AGENTS
        for title, options in ENVIRONMENTS.items()
        for seed in range(seeds)
    ]


def rows(work, found):
    """Long form: tests after training per budget, and the learning curve."""
    for job, result in zip(work, found, strict=True):
        same = {
            "experiment": "gymnasium", "agent": job["train"]["agent"], "seed": job["train"]["seed"],
            "environment": job["title"],
        }  # fmt: skip
        for budget, returns in result["tests"].items():
            at = {"budget": int(budget), "env_steps": job["train"]["steps"]}
            yield {**same, **at, "metric": "test_return", "value": float(np.mean(returns))}
        trained = 10 if job["train"]["agent"] == "save" else 0
        for line in result["metrics"]:
            at = {"budget": trained, "env_steps": int(line["env_steps"])}
            yield {**same, **at, "metric": "curve", "value": line["test_return"]}


def figure(table, path):
    """A panel per environment: median over seeds and the range, against real steps."""
    drawing = empty_figure(WIDTH, 6.5)
    drawing.suptitle("SAVE and Q-learning at equal real steps")
    panels = drawing.subplots(2, 2)
    agents = looks(AGENTS)
    for axes, title in zip(np.ravel(panels), ENVIRONMENTS, strict=True):
        for agent, look in reversed(agents.items()):
            curve = [r for r in table if r["metric"] == "curve" and r["environment"] == title]
            curve = [r for r in curve if r["agent"] == agent]
            steps = sorted({r["env_steps"] for r in curve})
            values = [[r["value"] for r in curve if r["env_steps"] == at] for at in steps]
            axes.plot(steps, [np.median(v) for v in values], color=look.colour, label=look.label)
            low, high = [min(v) for v in values], [max(v) for v in values]
            axes.fill_between(steps, low, high, color=look.colour, alpha=0.15, linewidth=0)
        axes.set_title(title)
        axes.set_xlabel("Real steps")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_ylabel("Test return")
        clean(axes)
    legend_below(drawing, agents.values())
    save_png(drawing, path)


def summary(table):
    """A table in Markdown: mean and range over seeds, and a rank test at the training budgets."""
    yield "| environment | agent | budget 0 | budget 10 | SAVE above, p |"
    yield "|---|---|---|---|---|"
    for title in ENVIRONMENTS:
        tests = [r for r in table if r["metric"] == "test_return" and r["environment"] == title]

        def of(agent, budget, tests=tests):
            return [r["value"] for r in tests if (r["agent"], r["budget"]) == (agent, budget)]

        p = greater_p(of("save", 10), of("q-learning", 0))
        for agent in AGENTS:
            cells = []
            for budget in BUDGETS:
                values = of(agent, budget)
                cells.append(f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})")
            last = f"{p:.3f}" if agent == "save" else ""
            yield f"| {title} | {agent} | {' | '.join(cells)} | {last} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=49_152, help="real steps of each run")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=50, help="test episodes per budget")
    parser.add_argument("--work", type=Path, help="folder for finished runs, to go on with")
    arguments = parser.parse_args()
    work = jobs(arguments.steps, arguments.seeds, arguments.episodes)
    with tempfile.TemporaryDirectory() as scratch:
        found = run_all(work, arguments.processes, arguments.work or Path(scratch))
    table = list(rows(work, found))
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_results(arguments.out / "results.csv", table)
    figure(table, arguments.out / "figure.png")
    (arguments.out / "table.md").write_text("\n".join(summary(table)) + "\n")


if __name__ == "__main__":
    main()
