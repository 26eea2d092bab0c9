"""A grid world as in MiniGrid's DoorKey: fetch the key, open the door, reach the goal.

    cd examples/simulators && save-rl check door_key:DoorKey

A room of `size` x `size` cells inside the outer wall; MiniGrid's 6x6 is `--env-options size=4`.
Actions: turn left, turn right, go forward, pick up, open. Only the goal pays, 1 less what the
episode's steps took of 0.9. The seed draws the wall, the door, the key and the start.
"""

from typing import NamedTuple

import numpy as np

LIMIT = 100
AHEAD = ((0, 1), (1, 0), (0, -1), (-1, 0))
LEFT, RIGHT, FORWARD, PICK_UP, OPEN = range(5)
Cell = tuple[int, int]


class State(NamedTuple):
    """`key` is None once it was picked up."""

    wall: int
    door: Cell
    key: Cell | None
    player: Cell
    facing: int
    open: bool = False
    steps: int = 0


class DoorKey:
    """The simulator: a wall with a door parts the room; the goal is in the far corner."""

    num_actions = 5
    max_steps = LIMIT

    def __init__(self, size: int = 5):
        self.size = size

    def reset(self, seed: int) -> State:
        rng, size = np.random.default_rng(seed), self.size
        wall = int(rng.integers(2, size - 1))
        left = [(r, c) for r in range(size) for c in range(wall)]
        key, player = (left[i] for i in rng.choice(len(left), 2, replace=False))
        return State(wall, (int(rng.integers(size)), wall), key, player, int(rng.integers(4)))

    def step(self, state: State, action: int) -> tuple[State, float, bool, bool]:
        row, column = (a + b for a, b in zip(state.player, AHEAD[state.facing], strict=True))
        after, ahead = state._replace(steps=state.steps + 1), (row, column)
        if action in (LEFT, RIGHT):
            after = after._replace(facing=(state.facing + (1 if action == RIGHT else -1)) % 4)
        elif action == FORWARD and self._free(state, ahead):
            after = after._replace(player=ahead)
        elif action == PICK_UP and ahead == state.key:
            after = after._replace(key=None)
        elif action == OPEN and ahead == state.door and state.key is None:
            after = after._replace(open=True)
        solved = after.player == (self.size - 1, self.size - 1)
        reward = 1 - 0.9 * after.steps / LIMIT if solved else 0.0
        return after, reward, solved, not solved and after.steps >= LIMIT

    def _free(self, state: State, cell: Cell) -> bool:
        inside = all(0 <= at < self.size for at in cell)
        shut = cell[1] == state.wall and not (cell == state.door and state.open)
        return inside and not shut and cell != state.key

    def observe(self, state: State) -> np.ndarray:
        """Planes for wall, door, key and player, the direction, and whether it is open."""
        seen = np.zeros((4, self.size, self.size), np.float32)
        seen[0, :, state.wall], seen[(1, *state.door)] = 1, 1
        if state.key is not None:
            seen[(2, *state.key)] = 1
        seen[(3, *state.player)] = 1
        return np.concatenate([seen.ravel(), np.eye(4)[state.facing], [state.open]]).astype("f4")
