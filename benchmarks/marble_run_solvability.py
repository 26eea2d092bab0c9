"""Which scenes of Marble Run the scripted builder solves; see results/marble-run-solvability."""

import argparse
import json
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np

from save_rl.envs.construction import TASKS, Construction
from save_rl.envs.construction.marble_builder import build, build_with_actions
from save_rl.report.results import write_results


def run(job):
    """Build one scene and replay the result; `(job, blocks or 0, seconds)`."""
    preset, level, method, seed = job
    sim = Construction("marble-run", difficulty=level, curriculum_sample=False, preset=preset)
    start = sim.reset(seed)
    began = time.process_time()
    found = (build if method == "placements" else build_with_actions)(sim, start)
    seconds = time.process_time() - began
    if found is None:
        return job, 0, seconds
    state = start
    for choice in found:
        state = (sim.drop if method == "placements" else sim.step)(state, choice)[0]
    assert state.ending == "complete", (job, state.ending)
    return job, state.steps, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--scenes", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=1000)
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.scenes)
    jobs = [
        (preset, level, method, seed)
        for preset, hardest in TASKS["marble-run"].max_difficulty.items()
        for level in reversed(range(hardest + 1))
        for method in ("placements", "actions")
        for seed in seeds
    ]
    started, rows, found = time.time(), [], {}
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for (preset, level, method, seed), blocks, seconds in pool.imap_unordered(run, jobs):
            found.setdefault((preset, level, method), []).append((blocks, seconds))
            conditions = {"preset": preset, "level": level, "method": method}
            for metric, value in (("solved", int(blocks > 0)), ("blocks", blocks)):
                rows.append({
                    "experiment": "marble-run-solvability", "agent": "builder", "seed": seed,
                    **conditions, "metric": metric, "value": value,
                })  # fmt: skip
    key = ("preset", "level", "method", "seed", "metric")
    rows.sort(key=lambda row: tuple(row[k] for k in key))
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_results(arguments.out / "results.csv", rows)
    lines = ["| preset | level | method | scenes | solved | blocks (median) | seconds per scene |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for (preset, level, method), values in sorted(found.items()):
        blocks, seconds = (np.array(column) for column in zip(*values, strict=True))
        solved = blocks > 0
        median = f"{np.median(blocks[solved]):.0f}" if solved.any() else "–"
        lines.append(f"| {preset} | {level} | {method} | {len(values)} | {solved.mean():.0%} | "
                     f"{median} | {seconds.mean():.2f} |")  # fmt: skip
    (arguments.out / "table.md").write_text("\n".join(lines) + "\n")
    took = {"seconds": round(time.time() - started), "processes": arguments.processes}
    (arguments.out / "took.json").write_text(json.dumps(took) + "\n")
    print("\n".join(lines), took, sep="\n")


if __name__ == "__main__":
    main()
