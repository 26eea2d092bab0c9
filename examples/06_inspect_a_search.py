"""Inspect one search: how it changed its prior, and the tree it built.

Shows that a search takes the states of a Python simulator as a list, that `draw.root_table`
prints prior, Q_MCTS and visits side by side, and that `draw.save_tree` draws the whole tree as an
SVG.

The simulator is Gymnasium's FrozenLake: 4 x 4 cells; holes end the episode with 0, the far corner
pays 1. The hand-written prior knows the way to the corner but not the holes. The search starts in
a cell with a hole to its right, where the prior rates right and down the same.
"""

import argparse
from pathlib import Path

import gymnasium
import numpy as np

import save_rl
from save_rl.envs.gym import from_gymnasium
from save_rl.search import draw

SIZE, DISCOUNT = 4, 0.9
NAMES = ("left", "down", "right", "up")  # actions of FrozenLake, by number
MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))


def guess(cell: int, action: int) -> float:
    """Return the value of an action on a lake without holes."""
    down, right = MOVES[action]
    row = min(max(cell // SIZE + down, 0), SIZE - 1)
    column = min(max(cell % SIZE + right, 0), SIZE - 1)
    return DISCOUNT ** (2 * (SIZE - 1) - row - column)


TABLE = np.array([[guess(cell, a) for a in range(len(MOVES))] for cell in range(SIZE**2)])


def q_function(observations: np.ndarray) -> np.ndarray:
    """Return Qθ `[B, 4]` for observations `[B, 16]`, the cell as one-hot."""
    return TABLE[observations.argmax(-1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=int, default=16, help="simulations")
    parser.add_argument("--seed", type=int, default=0, help="breaks ties")
    parser.add_argument("--out", type=Path, default=Path("search-tree.svg"), help="the picture")
    options = parser.parse_args()
    if options.budget < 1:
        parser.error("--budget must be at least 1")

    lake = from_gymnasium(lambda: gymnasium.make("FrozenLake-v1", is_slippery=False))
    state, *_ = lake.step(lake.reset(seed=0), NAMES.index("down"))
    result = save_rl.search.save(
        lake,
        [state],  # one lane
        q_function,
        budget=options.budget,
        c=0.2,
        discount=DISCOUNT,
        seed=options.seed,
        return_tree=True,
    )
    prior = q_function(lake.observe(state)[None])
    print(draw.root_table(prior, result, action_names=NAMES))
    best = int(np.where(result.explored, result.q_values, -np.inf)[0].argmax())
    print(f"best explored action: {NAMES[best]}")

    title = f"FrozenLake, {options.budget} simulations from the cell left of a hole"
    draw.save_tree(options.out, result.tree, action_names=NAMES, title=title)
    print(f"the tree is in {options.out}")


if __name__ == "__main__":
    main()
