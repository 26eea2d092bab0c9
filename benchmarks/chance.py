"""Search in simulators with chance: variants of the tree over runs that were trained before.

    PYTHONPATH=benchmarks save-rl train chance:Tiny2048 … --out runs/2048
    PYTHONPATH=benchmarks python benchmarks/chance.py runs/2048 --budgets 0 5 10 --tree one-outcome

`results/chance/README.md` has all commands. The trees: `widening` (as it is), `one-outcome` (an
action keeps its first outcome, as before there was chance in the search), `resampling` (every visit
draws another outcome).
"""

import argparse
import math
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from save_rl.search import rules

TREES = {
    "widening": rules.widens,
    "one-outcome": lambda outcomes, visits: outcomes < 1,
    "resampling": lambda outcomes, visits: outcomes <= visits,
}


class Board(NamedTuple):
    tiles: tuple[int, ...]  # of 3 x 3 fields, exponents of 2; 0 is empty
    steps: int = 0


def slide(row: list[int]) -> tuple[list[int], int]:
    """Return a row moved to the left, and the sum of the tiles that it merged."""
    tiles, after, paid = [x for x in row if x], [], 0
    while tiles:
        tile = tiles.pop(0)
        if tiles and tiles[0] == tile:
            tiles.pop(0)
            tile += 1
            paid += 2**tile
        after.append(tile)
    return after + [0] * (len(row) - len(after)), paid


class Tiny2048:
    """2048 on 3 x 3 fields; it pays the merged tiles, divided by 64."""

    num_actions, stochastic, max_steps = 4, True, 300

    def reset(self, seed):
        rng = np.random.default_rng(seed)
        return Board(self._spawn(self._spawn((0,) * 9, rng), rng))

    def step(self, state, action, seed):
        tiles, paid = self._move(state.tiles, action)
        after = Board(self._spawn(tiles, np.random.default_rng(seed)), state.steps + 1)
        return after, paid / 64, not self.action_mask(after).any(), after.steps >= self.max_steps

    def observe(self, state):
        return np.eye(10, dtype=np.float32)[list(state.tiles)].ravel()

    def action_mask(self, state):
        return np.array([self._move(state.tiles, a)[0] != state.tiles for a in range(4)])

    def _spawn(self, tiles, rng):
        empty = [i for i, tile in enumerate(tiles) if not tile]
        after, where = list(tiles), empty[rng.integers(len(empty))]
        after[where] = 2 if rng.random() < 0.1 else 1
        return tuple(after)

    def _move(self, tiles, action):
        rows = [slide(row) for row in np.rot90(np.reshape(tiles, (3, 3)), action).tolist()]
        after = np.rot90([row for row, _ in rows], -action).ravel()
        return tuple(after.tolist()), sum(paid for _, paid in rows)


class Pole(NamedTuple):
    at: tuple[float, ...]  # position, speed, angle, speed of the angle
    steps: int = 0


class WindyPole:
    """CartPole of 200 steps; the force of a push has noise as large as itself."""

    num_actions, stochastic, max_steps = 2, True, 200

    def reset(self, seed):
        return Pole(tuple(np.random.default_rng(seed).uniform(-0.05, 0.05, 4).tolist()))

    def step(self, state, action, seed):
        x, v, angle, spin = state.at
        force = (10 if action else -10) + 10 * np.random.default_rng(seed).standard_normal()
        cos, sin = math.cos(angle), math.sin(angle)
        push = (force + 0.05 * spin * spin * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
        speed_up = push - 0.05 * turn * cos / 1.1
        at = (x + 0.02 * v, v + 0.02 * speed_up, angle + 0.02 * spin, spin + 0.02 * turn)
        over = abs(at[0]) > 2.4 or abs(at[2]) > math.radians(12)
        return Pole(at, state.steps + 1), 1.0, over, state.steps + 1 >= self.max_steps

    def observe(self, state):
        return np.array(state.at, np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--budgets", type=int, nargs="+", default=[0, 5, 10, 20, 50])
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--tree", choices=TREES, default="widening")
    parser.add_argument("--widening", type=int, default=rules._WIDENING)
    parser.add_argument("--prior-visits", type=int, default=rules._PRIOR_VISITS)
    chosen = parser.parse_args()
    # Before the kernels are compiled, which read these.
    rules._WIDENING, rules._PRIOR_VISITS = chosen.widening, chosen.prior_visits
    rules.widens = TREES[chosen.tree]
    from save_rl import evaluation
    from save_rl.training.devices import select_device

    trainer, params, _ = evaluation._load_run(
        chosen.run, select_device("cpu"), chosen.episodes, 0, trust=True, budgets=chosen.budgets
    )
    with closing(trainer):
        for budget in chosen.budgets:
            returns = np.asarray(trainer.play(params, chosen.episodes, budget, 7)[0])
            error = returns.std() / returns.size**0.5
            print(f"budget {budget}: {returns.mean():.3f} ± {error:.3f}", flush=True)


if __name__ == "__main__":
    main()
