"""What budget, c, β_A, ε and γ do, one at a time, on two small problems; see results."""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
from side_by_side import run_all

from save_rl.report.results import write_results

# What the others are while one is changed.
PROBLEMS = {
    "FrozenLake 8x8": {
        "env": "gym/FrozenLake8x8-v1", "env_options": {"is_slippery": False}, "lanes": 16,
        "learning_rate": 1e-3, "steps": 24_576, "chunk": 64, "discount": 0.97, "c": 2.0,
        "epsilon_episodes": 500, "batch": 16, "replay": 4000, "replay_ratio": 4,
        "epsilon_end": 0.01, "reward_scale": 1.0, "check": False,
    },
    "Tightrope": {"env": "tightrope", "episodes": 10_000, "chunk": 64},
}  # fmt: skip
SWEEPS = {
    "budget": (2, 5, 10, 20),
    "c": (0.02, 0.2, 2.0, 20.0),
    "beta_a": (0.0, 0.05, 0.5, 5.0),
    "epsilon_end": (0.0, 0.01, 0.1),
    "epsilon_episodes": (50, 500, 5_000),
    "discount": (0.8, 0.9, 0.97, 1.0),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="folder for finished runs, to go on with")
    arguments = parser.parse_args()
    work = [
        {
            "name": f"{problem.replace(' ', '-')}-{setting}-{value}-{seed}",
            "train": {**options, setting: value, "seed": seed},
            "budgets": (0, 10),
            "episodes": 50,
            "key": (problem, setting, value),
        }
        for problem, options in PROBLEMS.items()
        for setting, values in SWEEPS.items()
        for value in values
        for seed in range(arguments.seeds)
    ]
    work.sort(key=lambda job: -job["train"].get("budget", 10))
    with tempfile.TemporaryDirectory() as scratch:
        found = run_all(work, arguments.processes, arguments.work or Path(scratch))
    rows = []
    for job, result in zip(work, found, strict=True):
        problem, setting, value = job["key"]
        same = {
            "experiment": "settings-sweep", "agent": "save", "seed": job["train"]["seed"],
            "problem": problem, "setting": setting, "setting_value": value,
        }  # fmt: skip
        curve = [line["return_mean"] for line in result["metrics"] if "return_mean" in line]
        rows.append({**same, "metric": "training_return", "value": float(np.mean(curve))})
        for budget, returns in result["tests"].items():
            rows.append(
                {**same, "metric": f"test_return_{budget}", "value": float(np.mean(returns))}
            )
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_results(arguments.out / "results.csv", rows)
    (arguments.out / "table.md").write_text("\n".join(summary(rows)) + "\n")


def summary(rows):
    """Means over seeds in Markdown."""
    for problem in PROBLEMS:
        yield f"\n**{problem}**\n"
        yield "| setting | value | while training | test, budget 0 | test, budget 10 |"
        yield "|---|---|---|---|---|"
        for setting, values in SWEEPS.items():
            for value in values:
                here = [
                    r for r in rows
                    if (r["problem"], r["setting"], r["setting_value"]) == (problem, setting, value)
                ]  # fmt: skip
                cells = [
                    f"{np.mean([r['value'] for r in here if r['metric'] == metric]):.2f}"
                    for metric in ("training_return", "test_return_0", "test_return_10")
                ]
                yield f"| {setting} | {value} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
