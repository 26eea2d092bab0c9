"""Agents that learn nothing on the five Construction tasks; see results/construction-baselines."""

import argparse
import json
import multiprocessing
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np

from save_rl.envs.construction import TASKS, Construction
from save_rl.players import make_player, play
from save_rl.report.results import write_results

CHUNK = 4  # episodes per job


def run(job):
    """Play a chunk of episodes; `(job, [(seed, return, ending)])`."""
    task, levels, agent, budget, first = job
    sim = Construction(task, curriculum_sample=levels == "all")
    player = make_player(agent, sim, budget)
    rows = []
    for seed in range(first, first + CHUNK):
        episode = play(sim, player, seed)
        rows.append((seed, episode.total, episode.states[-1].ending))
    return job, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--random", type=int, default=1000, help="episodes of the random agent")
    parser.add_argument("--scripted", type=int, default=10_000, help="episodes of the heuristics")
    parser.add_argument("--uct", nargs="*", default=["10:160", "100:160", "1000:160"],
                        metavar="BUDGET:EPISODES")  # fmt: skip
    arguments = parser.parse_args()
    jobs = []
    for task in TASKS:
        for levels in ("all", "hardest"):
            plans = [("random", 0, arguments.random)]
            if task in ("silhouette", "covering"):
                plans.append(("scripted", 0, arguments.scripted))
            plans += [("uct", *map(int, plan.split(":"))) for plan in arguments.uct]
            for agent, budget, episodes in plans:
                jobs += [(task, levels, agent, budget, i) for i in range(0, episodes, CHUNK)]
    jobs.sort(key=lambda job: -job[3])  # the long ones first
    started, found, done = time.time(), {}, 0
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for job, episodes in pool.imap_unordered(run, jobs):
            found.setdefault(job[:4], []).extend(episodes)
            done += 1
            if done % 1000 == 0:
                print(f"{done} of {len(jobs)} jobs, {time.time() - started:.0f} s", flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_results(arguments.out / "results.csv", rows(found))
    took = {"seconds": round(time.time() - started), "processes": arguments.processes}
    (arguments.out / "took.json").write_text(json.dumps(took) + "\n")
    print("\n".join(table(found)), took, sep="\n")


def rows(found):
    """Long form: mean, standard deviation, episodes and the share of each ending."""
    for (task, levels, agent, budget), episodes in sorted(found.items()):
        totals = np.array([total for _, total, _ in episodes])
        endings = Counter(ending for _, _, ending in episodes)
        metrics = {
            "return_mean": totals.mean(),
            "return_std": totals.std(),
            "episodes": len(totals),
        }
        metrics |= {f"ended_{name}": n / len(totals) for name, n in sorted(endings.items())}
        for metric, value in metrics.items():
            yield {
                "experiment": "construction-baselines", "agent": agent, "seed": 0, "task": task,
                "levels": levels, "budget": budget, "metric": metric,
                "value": round(float(value), 4),
            }  # fmt: skip


def table(found):
    yield "| task | levels | agent | budget | episodes | mean return (95 % interval) |"
    yield "|---|---|---|---|---|---|"
    for (task, levels, agent, budget), episodes in sorted(found.items()):
        totals = [total for _, total, _ in episodes]
        error = 1.96 * np.std(totals) / np.sqrt(len(totals))
        yield (
            f"| {task} | {levels} | {agent} | {budget or '–'} | {len(totals):,} | "
            f"{np.mean(totals):.2f} ± {error:.2f} |"
        )


if __name__ == "__main__":
    main()
