"""Train SAVE on your own JAX environment.

Shows what a JAX environment has to provide (see `custom_environment.py` in this folder: a state,
reset, step, observe, an action mask, a time limit) and how to train on it by its address,
'module:factory'. The module must be importable; modules in the script's own folder are.
"""

import argparse
import tempfile
from pathlib import Path

import save_rl

ADDRESS = "custom_environment:thin_ice"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=12_000, help="training episodes")
    parser.add_argument("--tests", type=int, default=100, help="test episodes per budget")
    parser.add_argument("--seed", type=int, default=0, help="draws the pond")
    options = parser.parse_args()
    out = Path(tempfile.mkdtemp(prefix="save_rl-")) / "thin-ice"

    env = save_rl.make(ADDRESS, seed=options.seed)
    print("the pond (o hole, . ice):")
    for row in env.holes:
        print("  " + " ".join("o" if hole else "." for hole in row))

    run = save_rl.train(
        ADDRESS, agent="save", budget=5, episodes=options.episodes, seed=options.seed, out=out
    )
    first, last = run.metrics[0], run.metrics[-1]
    before, after = first["return_mean"], last["return_mean"]
    print(f"training reward: {before:.2f} at first, {after:.2f} at last")
    for result in save_rl.evaluate(out, budgets=(0, 5), episodes=options.tests):
        steps = result.steps.mean()
        print(
            f"budget {result.budget}: mean test reward {result.returns.mean():.2f}, "
            f"{steps:.1f} steps an episode"
        )


if __name__ == "__main__":
    main()
