"""Train SAVE on your own simulator, a puzzle written in plain Python.

Shows what a simulator has to provide (`SlidingTiles` below), that `save_rl.check` tests whether
it meets the contract, and that `save_rl.train` accepts the class itself. Worker processes import
this file again, hence the `__main__` guard at the end.

Five tiles and a hole on 2 x 3 cells. A move slides a neighbour of the hole into it; moves from
beyond the border are masked. Solving the puzzle pays 1 and ends the episode, which is truncated
after 50 moves.
"""

import argparse
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

import save_rl

ROWS, COLUMNS, LIMIT = 2, 3, 50
SOLVED = (1, 2, 3, 4, 5, 0)  # row by row; 0 is the hole
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # of the hole: up, down, left, right


class State(NamedTuple):
    """A position. Tuples can't be changed, so nothing can happen to a state that is kept."""

    tiles: tuple[int, ...] = SOLVED
    steps: int = 0


def slide(tiles: tuple[int, ...], action: int) -> tuple[int, ...] | None:
    """The tiles after a move of the hole; None beyond the border."""
    hole, (down, right) = tiles.index(0), MOVES[action]
    row, column = hole // COLUMNS + down, hole % COLUMNS + right
    if not (0 <= row < ROWS and 0 <= column < COLUMNS):
        return None
    other, after = row * COLUMNS + column, list(tiles)
    after[hole], after[other] = after[other], after[hole]
    return tuple(after)


class SlidingTiles:
    """The simulator: it holds what never changes, and everything else is in the state."""

    num_actions = len(MOVES)
    max_steps = LIMIT

    def __init__(self, scramble: int = 40):
        self.scramble = scramble

    def reset(self, seed: int) -> State:
        rng, state = np.random.default_rng(seed), State()
        while state.tiles == SOLVED:
            for _ in range(self.scramble):
                action = rng.choice(np.flatnonzero(self.action_mask(state)))
                state = State(slide(state.tiles, action))
        return state

    def step(self, state: State, action: int) -> tuple[State, float, bool, bool]:
        tiles, steps = slide(state.tiles, action), state.steps + 1
        solved = tiles == SOLVED
        return State(tiles, steps), float(solved), solved, not solved and steps >= LIMIT

    def observe(self, state: State) -> np.ndarray:
        """`[36]`: for each cell, which tile lies there, one-hot."""
        return np.eye(ROWS * COLUMNS, dtype=np.float32)[list(state.tiles)].ravel()

    def action_mask(self, state: State) -> np.ndarray:
        return np.array([slide(state.tiles, a) is not None for a in range(self.num_actions)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12_000, help="real steps of training")
    parser.add_argument("--tests", type=int, default=200, help="test episodes per budget")
    parser.add_argument("--workers", type=int, default=2, help="processes; 0 for none")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="save_rl-"))

    report = save_rl.check(SlidingTiles())
    report.print(Console())
    if not report.ok:
        raise SystemExit(1)

    address = f"{Path(__file__).stem}:SlidingTiles"  # its name on the command line
    (random,) = save_rl.evaluate(
        address, agent="random", episodes=options.tests, out=folder / "random.csv"
    )
    print(f"random play: mean test reward {random.returns.mean():.2f}")

    run = save_rl.train(
        SlidingTiles,
        agent="save",
        budget=10,
        steps=options.steps,
        seed=options.seed,
        workers=options.workers,
        out=folder / "tiles",
    )
    last = run.metrics[-1]
    print(f"{last['episodes']:,.0f} episodes, training reward {last['return_mean']:.2f} at last")
    for result in save_rl.evaluate(run.path, budgets=(0, 10, 30), episodes=options.tests):
        reward, steps = result.returns.mean(), result.steps.mean()
        print(
            f"budget {result.budget:2}: mean test reward {reward:.2f}, {steps:.1f} steps an episode"
        )


if __name__ == "__main__":
    main()
