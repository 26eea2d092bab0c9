"""Train SAVE on a Gymnasium environment, by its id.

Shows that `gym/ID` names any Gymnasium environment that has discrete actions and can be copied,
that `env_options` are the arguments of `gymnasium.make`, and that `from_gymnasium` returns the
simulator itself: states are values, and you can step from the same state twice.

FrozenLake, not slippery: 4 x 4 cells, 4 of them holes; only the far corner pays. Random play
reaches it in about one of a hundred episodes.
"""

import argparse
import tempfile
from pathlib import Path

import gymnasium

import save_rl
from save_rl.envs.gym import from_gymnasium

ENV, OPTIONS = "FrozenLake-v1", {"is_slippery": False}
DOWN, RIGHT = 1, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6_000, help="real steps of training")
    parser.add_argument("--tests", type=int, default=50, help="test episodes per budget")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    out = Path(tempfile.mkdtemp(prefix="save_rl-")) / "frozen-lake"

    lake = from_gymnasium(lambda: gymnasium.make(ENV, **OPTIONS))
    start = lake.reset(seed=0)
    for name, action in (("right", RIGHT), ("down", DOWN)):  # both from the same state
        after, *_ = lake.step(start, action)
        cell, there = (lake.observe(state).argmax() for state in (start, after))
        print(f"{name} leads from cell {cell} to cell {there}")
    report = save_rl.check(lake)
    print("nothing is wrong with it" if report.ok else "save-rl check has objections")

    run = save_rl.train(
        f"gym/{ENV}",
        agent="save",
        budget=10,
        steps=options.steps,
        seed=options.seed,
        env_options=OPTIONS,
        lanes=16,
        learning_rate=1e-3,
        discount=0.9,  # the only reward is a few steps away
        epsilon_episodes=300,  # of about a thousand
        out=out,
    )
    last = run.metrics[-1]
    print(f"{last['episodes']:,.0f} episodes, training reward {last['return_mean']:.2f} at last")
    for result in save_rl.evaluate(out, budgets=(0, 10), episodes=options.tests):
        reward, steps = result.returns.mean(), result.steps.mean()
        print(
            f"budget {result.budget:2}: mean test reward {reward:.2f}, {steps:.1f} steps an episode"
        )


if __name__ == "__main__":
    main()
