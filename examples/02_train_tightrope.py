"""Train SAVE on Tightrope, then test it with more and with less search than it trained with.

Shows that `save_rl.train` writes a run directory and that `save_rl.evaluate` tests its newest
checkpoint at any budget. Budget 0 acts greedily on the network, without search: its score shows
how much of the search has been amortized.
"""

import argparse
import tempfile
from pathlib import Path

import save_rl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=10_000, help="training episodes")
    parser.add_argument("--tests", type=int, default=200, help="test episodes per budget")
    parser.add_argument("--out", type=Path, default=None, help="run directory, new or empty")
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="save_rl-")) / "tightrope"

    # Sparse reward, 95 of 100 actions fatal: only the goal pays, and random play rarely finds it.
    run = save_rl.train(
        "tightrope",
        agent="save",
        episodes=options.episodes,
        budget=10,
        env_options={"reward": "sparse", "terminal": 95},
        out=out,
    )
    first, last = run.metrics[0], run.metrics[-1]
    before, after = first["return_mean"], last["return_mean"]
    print(f"training reward: {before:.2f} at first, {after:.2f} at last")
    print(f"real steps: {last['env_steps']:,.0f}, searched steps: {last['simulator_steps']:,.0f}")

    for result in save_rl.evaluate(out, budgets=(0, 5, 10), episodes=options.tests):
        print(f"budget {result.budget:2}: mean test reward {result.returns.mean():.2f}")
    print(f"the run is in {out}")


if __name__ == "__main__":
    main()
