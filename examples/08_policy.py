"""Load a trained run and act with it: from its folder, from one small file, and without training.

Shows `save_rl.load`, decisions with and without a search budget, `Policy.save`, and
`save_rl.search` with a function of your own in place of a network.

The simulator is Tightrope: eleven states in a row, 100 actions in each, most of which end the
episode. The hand-written function knows nothing at all, so its search has to try actions blindly.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

import save_rl
from save_rl.players import play


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=4000, help="of training")
    parser.add_argument("--budget", type=int, default=10, help="simulations per decision")
    options = parser.parse_args()
    if options.budget < 1:
        parser.error("--budget must be at least 1")

    folder = Path(tempfile.mkdtemp())
    run = save_rl.train(
        "tightrope",
        episodes=options.episodes,
        lanes=16,
        env_options={"reward": "dense", "terminal": 75},
        out=folder / "run",
    )
    print(run)

    policy = save_rl.load(run.path)
    sim = policy.simulator
    state = sim.reset(0)
    reflex = policy.act(sim.observe(state), budget=0)
    searched = policy.act(state, budget=options.budget)
    for name, decision in (("without search", reflex), ("with search", searched)):
        value = decision.q_values[decision.action]
        print(f"{name}: action {decision.action}, value {value:.2f}")

    path = policy.save(folder / "policy.npz")
    again = save_rl.load(path).act(state, budget=options.budget)
    print(f"from the file: action {again.action}, {path.stat().st_size / 1000:.0f} kB")

    for budget in (0, options.budget):
        totals = [play(sim, policy.player(budget), seed).total for seed in range(20)]
        print(f"budget {budget:>2}: mean test reward {np.mean(totals):.2f}")

    blind = save_rl.search(
        sim, state, lambda seen: np.zeros((len(seen), sim.num_actions)), budget=options.budget
    )
    print(f"without training: action {blind.action}, value {blind.q_values[blind.action]:.2f}")
    blind.tree.save(folder / "tree.png")
    print(f"its tree is in {folder / 'tree.png'}")


if __name__ == "__main__":
    main()
