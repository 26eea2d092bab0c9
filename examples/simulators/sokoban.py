"""Sokoban: push every box onto a goal. One fixed map, or a new map for every seed.

    cd examples/simulators
    save-rl check sokoban:fixed
    save-rl train sokoban:fixed --steps 20000

Actions are up, down, left, right; a move that nothing can follow does nothing. A box on a goal pays
0.5 (and costs 0.5 when it leaves), the last one 1 more and ends the episode; every move costs 0.01.
"""

from typing import NamedTuple

import numpy as np

SIZE, LIMIT, BOXES = 6, 60, 2
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
FIXED = (
    "######",
    "#    #",
    "# $  #",
    "#@ $.#",
    "#  . #",
    "######",
)  # fmt: skip

Cell = tuple[int, int]


class State(NamedTuple):
    """Walls and goals stay; the player and the boxes move."""

    walls: frozenset[Cell]
    goals: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell
    steps: int = 0


def read_map(rows: tuple[str, ...]) -> State:
    """Return the state that a map shows: `#` wall, `$` box, `.` goal, `@` player."""
    at = {mark: frozenset((r, c) for r, row in enumerate(rows) for c, x in enumerate(row)
                          if x == mark) for mark in "#$.@"}  # fmt: skip
    return State(at["#"], at["."], at["$"], *at["@"])


def beside(cell: Cell, move: Cell, times: int = 1) -> Cell:
    return cell[0] + times * move[0], cell[1] + times * move[1]


def random_map(rng: np.random.Generator) -> State:
    """Return a solvable map: boxes start on their goals and are pulled away."""
    while True:
        inside = [(r, c) for r in range(1, SIZE - 1) for c in range(1, SIZE - 1)]
        border = {(r, c) for r in range(SIZE) for c in range(SIZE)} - set(inside)
        cells = [inside[i] for i in rng.permutation(len(inside))]
        walls, goals = frozenset(border | set(cells[:2])), frozenset(cells[2 : 2 + BOXES])
        boxes, player = set(goals), cells[2 + BOXES]
        for _ in range(60):
            move = MOVES[rng.integers(4)]
            to, behind = beside(player, move), beside(player, move, -1)
            if to in walls or to in boxes:
                continue
            if behind in boxes and rng.random() < 0.7:
                boxes.remove(behind)
                boxes.add(player)
            player = to
        if not boxes & goals:
            return State(walls, goals, frozenset(boxes), player)


class Sokoban:
    """The simulator; `random` draws a map from the seed."""

    num_actions = len(MOVES)
    max_steps = LIMIT

    def __init__(self, random: bool):
        self.random = random

    def reset(self, seed: int) -> State:
        return random_map(np.random.default_rng(seed)) if self.random else read_map(FIXED)

    def step(self, state: State, action: int) -> tuple[State, float, bool, bool]:
        move, boxes = MOVES[action], state.boxes
        to, beyond = beside(state.player, move), beside(state.player, move, 2)
        if to in boxes and beyond not in state.walls and beyond not in boxes:
            boxes = boxes - {to} | {beyond}
        player = state.player if to in state.walls or to in boxes else to
        gained = len(boxes & state.goals) - len(state.boxes & state.goals)
        solved, steps = boxes == state.goals, state.steps + 1
        after = state._replace(boxes=boxes, player=player, steps=steps)
        return after, 0.5 * gained + solved - 0.01, solved, not solved and steps >= LIMIT

    def observe(self, state: State) -> np.ndarray:
        """`[SIZE, SIZE, 4]`: walls, goals, boxes and the player."""
        seen = np.zeros((SIZE, SIZE, 4), np.float32)
        for plane, cells in enumerate((state.walls, state.goals, state.boxes, {state.player})):
            seen[(*zip(*cells, strict=True), plane)] = 1
        return seen


def fixed() -> Sokoban:
    return Sokoban(random=False)


def random() -> Sokoban:
    return Sokoban(random=True)
