"""SAVE and Q-learning with automatic settings, and UCT, on simulators as a new user has them.

Each environment is trained twice, all seeds side by side in one run, at equal real steps, with what
`save-rl train` chooses. UCT searches without learning at SAVE's budget. What is finished is kept in
`--work` and not made again, so a table can be made in parts, with `--only`.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

import save_rl
from save_rl.report.results import write_results
from save_rl.report.statistics import greater_p

SIMULATORS = Path(__file__).parents[1] / "examples" / "simulators"
# Environment, options, real steps.
ENVIRONMENTS = {
    "Sokoban, one map": ("sokoban:fixed", {}, 10_000),
    "Sokoban, random maps": ("sokoban:random", {}, 100_000),
    "2048": ("two048:Game", {}, 30_000),
    "Rook endgame": ("rook_endgame:Endgame", {}, 20_000),
    "DoorKey": ("door_key:DoorKey", {"size": 4}, 60_000),
    "DoorKey, larger": ("door_key:DoorKey", {"size": 5}, 120_000),
    "CliffWalking": ("gym/CliffWalking-v1", {"max_episode_steps": 200}, 25_000),
    "Taxi": ("gym/Taxi-v4", {}, 60_000),
    "FrozenLake": ("gym/FrozenLake-v1", {"is_slippery": False}, 20_000),
    "CartPole": ("gym/CartPole-v1", {}, 50_000),
}
AGENTS, BUDGET = ("save", "q-learning"), 10


def tested(title, work, scale, seeds, episodes, uct_episodes, workers):
    """Mean test return of every seed, by agent: at its training budget; UCT's at SAVE's."""
    env, options, steps = ENVIRONMENTS[title]
    means, done = {}, work / f"{title}.json"
    if done.exists():
        return json.loads(done.read_text())
    for agent in AGENTS:
        out = work / f"{title.replace(' ', '-').replace(',', '')}-{agent}"
        common = {"env_options": options, "seed": tuple(range(seeds)), "workers": workers}
        begun = (out / "config.json").exists()
        run = {"agent": agent, "steps": int(scale * steps), "out": out, "resume": begun}
        save_rl.train(env, **common, **run)
        save, budget = agent == "save", BUDGET if agent == "save" else 0
        test = {"workers": workers, "trust": True}
        (result,) = save_rl.evaluate(out, (budget,), episodes, **test, baseline="none")
        means[agent] = result.returns.mean(1).tolist()
        if save:  # UCT with the c and γ of SAVE's run; its rollouts take long
            (result,) = save_rl.evaluate(out, (budget,), uct_episodes, **test, baseline="uct")
            means["uct"] = result.baseline.mean(1).tolist()
    done.write_text(json.dumps(means))
    return means


def rows(table, scale):
    """Long form: one line per environment, agent and seed."""
    for title, means in table.items():
        for agent, values in means.items():
            for seed, value in enumerate(values):
                yield {
                    "experiment": "simulators", "agent": agent, "seed": seed, "environment": title,
                    "budget": 0 if agent == "q-learning" else BUDGET,
                    "env_steps": int(scale * ENVIRONMENTS[title][2]), "metric": "test_return",
                    "value": value,
                }  # fmt: skip


def summary(table, scale):
    """A table in Markdown: mean and range over seeds; p that SAVE is below another, one-sided."""
    yield "| simulator | real steps | SAVE, 10 | Q-learning, 0 | UCT, 10 | p below Q | below UCT |"
    yield "|---|---|---|---|---|---|---|"
    for title, means in table.items():
        cells = [f"{np.mean(v):.2f} ({min(v):.2f} to {max(v):.2f})" for v in means.values()]
        own = dict(zip(means, cells, strict=True))
        below = [greater_p(means[other], means["save"]) for other in ("q-learning", "uct")]
        steps = int(scale * ENVIRONMENTS[title][2])
        line = [title, f"{steps:,}", own["save"], own["q-learning"], own["uct"]]
        yield f"| {' | '.join([*line, *(f'{p:.3f}' for p in below)])} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the real steps")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=50, help="test episodes per seed")
    parser.add_argument("--uct-episodes", type=int, default=10, help="the same, of UCT")
    parser.add_argument("--workers", type=int, default=-1)
    parser.add_argument("--only", nargs="*", default=list(ENVIRONMENTS), choices=ENVIRONMENTS)
    options = parser.parse_args()
    sys.path.append(str(SIMULATORS))
    options.out.mkdir(parents=True, exist_ok=True)
    table = {}
    for title in options.only:
        table[title] = tested(
            title, options.work, options.scale, options.seeds, options.episodes,
            options.uct_episodes, options.workers,
        )  # fmt: skip
        write_results(options.out / "results.csv", list(rows(table, options.scale)))
        text = "\n".join(summary(table, options.scale)) + "\n"
        (options.out / "table.md").write_text(text)
        print(text)


if __name__ == "__main__":
    main()
