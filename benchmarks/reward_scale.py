"""A scale of rewards that is given, against one that is measured while training (`--reward-scale`).

FrozenLake pays once, at the goal, which random play hardly ever finds; here it pays 0.01, 1 or 100.
In the others random play shows the size of returns, and the given scale is what a run chooses.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

import save_rl
from save_rl.envs.gym import from_gymnasium

SIMULATORS = Path(__file__).parents[1] / "examples" / "simulators"
MEASURED = 0.0


class Lake:
    """FrozenLake, not slippery, with other rewards."""

    def __init__(self, factor: float):
        import gymnasium

        self._sim = from_gymnasium(lambda: gymnasium.make("FrozenLake-v1", is_slippery=False))
        self.num_actions, self.max_steps = self._sim.num_actions, 100
        self.reset, self.observe = self._sim.reset, self._sim.observe
        self._factor = factor

    def step(self, state, action):
        after, reward, terminated, truncated = self._sim.step(state, action)
        return after, self._factor * reward, terminated, truncated


# Environment, options, given scale, real steps.
ENVIRONMENTS = {
    "FrozenLake x 0.01": (Lake, {"factor": 0.01}, 1.0, 6_000),
    "FrozenLake x 1": (Lake, {"factor": 1.0}, 1.0, 6_000),
    "FrozenLake x 100": (Lake, {"factor": 100.0}, 1.0, 6_000),
    "Sokoban, one map": ("sokoban:fixed", {}, 0.25, 10_000),
    "CliffWalking": ("gym/CliffWalking-v1", {"max_episode_steps": 200}, 256.0, 25_000),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=10, help="test episodes per seed")
    parser.add_argument("--only", nargs="*", default=list(ENVIRONMENTS), choices=ENVIRONMENTS)
    chosen = parser.parse_args()
    sys.path.append(str(SIMULATORS))
    for title in chosen.only:
        env, options, given, steps = ENVIRONMENTS[title]
        for scale in (given, MEASURED):
            out = chosen.work / f"{title.replace(' ', '-')}-{scale:g}"
            save_rl.train(
                env, env_options=options, seed=tuple(range(chosen.seeds)), steps=steps, out=out,
                reward_scale=scale, workers=0, check=False, progress=False,
            )  # fmt: skip
            results = save_rl.evaluate(
                out, (0, 10), chosen.episodes, workers=0, baseline="none", trust=True,
                progress=False,
            )  # fmt: skip
            means = [np.round(x.returns.mean(1), 3).tolist() for x in results]
            name = f"{scale:g}" if scale else "measured"
            print(f"{title}, scale {name}: budget 0 {means[0]}, budget 10 {means[1]}", flush=True)


if __name__ == "__main__":
    main()
