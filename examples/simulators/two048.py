"""2048 on 3 x 3 cells: slide equal tiles together; a new tile appears at random.

    cd examples/simulators
    save-rl check two048:Game
    save-rl train two048:Game --steps 50000

Actions are left, up, right, down; those that move nothing are masked. Merging two tiles of value v
pays log2(2v) / 10. `step` draws the new tile from the seed that it is given, so it is a pure
function, and searches average over its outcomes.
"""

from typing import NamedTuple

import numpy as np

SIZE, LIMIT, KINDS = 3, 500, 11


class State(NamedTuple):
    """Exponents of the tiles, row by row; 0 is an empty cell."""

    cells: tuple[int, ...]
    steps: int = 0


def slide(row: list[int]) -> tuple[list[int], float]:
    """Return a row after a move to the left, and its reward."""
    tiles, merged, reward = [x for x in row if x], [], 0.0
    while tiles:
        tile = tiles.pop(0)
        if tiles and tiles[0] == tile:
            tiles.pop(0)
            tile += 1
            reward += tile / 10
        merged.append(tile)
    return merged + [0] * (len(row) - len(merged)), reward


def move(cells: tuple[int, ...], action: int) -> tuple[tuple[int, ...], float]:
    """Return the cells after a move without a new tile, and the reward."""
    board = np.rot90(np.reshape(cells, (SIZE, SIZE)), action)
    slid = [slide(row) for row in board.tolist()]
    after = np.rot90([row for row, _ in slid], -action)
    return tuple(after.ravel().tolist()), sum(reward for _, reward in slid)


def add_tile(cells: tuple[int, ...], rng: np.random.Generator) -> tuple[int, ...]:
    """Return the cells with a 2, or rarely a 4, in an empty one."""
    after = list(cells)
    after[int(rng.choice([i for i, x in enumerate(cells) if x == 0]))] = 1 + (rng.random() < 0.1)
    return tuple(after)


class Game:
    """The simulator."""

    num_actions = 4
    max_steps = LIMIT
    stochastic = True

    def reset(self, seed: int) -> State:
        rng = np.random.default_rng(seed)
        return State(add_tile(add_tile((0,) * SIZE**2, rng), rng))

    def step(self, state: State, action: int, seed: int) -> tuple[State, float, bool, bool]:
        cells, reward = move(state.cells, action)
        after = State(add_tile(cells, np.random.default_rng(seed)), state.steps + 1)
        over = not self.action_mask(after).any()
        return after, reward, over, not over and after.steps >= LIMIT

    def observe(self, state: State) -> np.ndarray:
        """`[9, 11]`: for each cell, the exponent of its tile, one-hot."""
        return np.eye(KINDS, dtype=np.float32)[np.minimum(state.cells, KINDS - 1)]

    def action_mask(self, state: State) -> np.ndarray:
        return np.array([move(state.cells, a)[0] != state.cells for a in range(4)])
