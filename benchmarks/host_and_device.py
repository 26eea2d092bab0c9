"""Tightrope over the pool of simulators and inside JAX: do both learn alike? See results."""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
from scipy.stats import ks_2samp, mannwhitneyu
from side_by_side import run_all

from save_rl.report.results import write_results

HOMES = {"host": "save_rl.envs.tightrope:tightrope_simulator", "device": "tightrope"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--episodes", type=int, default=8_000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--work", type=Path, help="folder for finished runs, to go on with")
    arguments = parser.parse_args()
    work = [
        {
            "name": f"tightrope-{home}-{seed}",
            "train": {"env": env, "seed": seed, "episodes": arguments.episodes},
            "budgets": (0, 10),
            "episodes": 200,
            "home": home,
        }
        for home, env in HOMES.items()
        for seed in range(arguments.seeds)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        found = run_all(work, arguments.processes, arguments.work or Path(scratch))
    rows = [
        {
            "experiment": "host-and-device", "agent": "save", "seed": job["train"]["seed"],
            "loop": job["home"], "budget": int(budget), "metric": "test_return",
            "value": float(np.mean(returns)),
        }
        for job, result in zip(work, found, strict=True)
        for budget, returns in result["tests"].items()
    ]  # fmt: skip
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_results(arguments.out / "results.csv", rows)
    lines = ["| budget | host, median (range) | device, median (range) | Mann-Whitney p | KS p |"]
    lines.append("|---|---|---|---|---|")
    for budget in (0, 10):
        here = {
            home: [r["value"] for r in rows if (r["loop"], r["budget"]) == (home, budget)]
            for home in HOMES
        }
        cells = [f"{np.median(v):.3f} ({min(v):.3f} to {max(v):.3f})" for v in here.values()]
        ranks = mannwhitneyu(here["host"], here["device"]).pvalue
        shape = ks_2samp(here["host"], here["device"]).pvalue
        lines.append(f"| {budget} | {cells[0]} | {cells[1]} | {ranks:.2f} | {shape:.2f} |")
    (arguments.out / "table.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
