"""King and rook against king on a 6 x 6 board: mate Black, who runs to the centre.

    cd examples/simulators && save-rl check rook_endgame:Endgame

Actions: 8 moves of the king, then 5 distances of the rook in 4 directions; illegal ones are masked.
Mate pays 1; stalemate, a lost rook and 30 moves pay nothing. Black's answer is the legal move that
takes the rook, or else ends nearest to the centre.
"""

from typing import NamedTuple

import numpy as np

SIZE, LIMIT = 6, 30
KING = [(r, c) for r in (-1, 0, 1) for c in (-1, 0, 1) if (r, c) != (0, 0)]
ROOK = [(r * n, c * n) for r, c in ((-1, 0), (1, 0), (0, -1), (0, 1)) for n in range(1, SIZE)]
Square = tuple[int, int]


class State(NamedTuple):
    """White to move."""

    king: Square
    rook: Square
    black: Square
    steps: int = 0


def near(a: Square, b: Square) -> bool:
    """Test whether two squares are the same or touch."""
    return max(abs(a[0] - b[0]), abs(a[1] - b[1])) <= 1


def on_board(square: Square) -> bool:
    return 0 <= square[0] < SIZE and 0 <= square[1] < SIZE


def rook_sees(rook: Square, square: Square, blocker: Square) -> bool:
    """Test whether a rook attacks a square, with one other piece on the board."""
    for axis in (0, 1):
        if rook[axis] == square[axis] and rook != square:
            low, high = sorted((rook[1 - axis], square[1 - axis]))
            return not (blocker[axis] == rook[axis] and low < blocker[1 - axis] < high)
    return False


def black_moves(state: State) -> list[Square]:
    """Return the squares that the black king can go to."""
    king, rook, black = state.king, state.rook, state.black
    squares = [(black[0] + r, black[1] + c) for r, c in KING]
    return [s for s in squares if on_board(s) and not near(s, king)
            and (s == rook or not rook_sees(rook, s, king))]  # fmt: skip


class Endgame:
    """The simulator; the seed draws the position."""

    num_actions = len(KING) + len(ROOK)
    max_steps = LIMIT

    def reset(self, seed: int) -> State:
        rng = np.random.default_rng(seed)
        while True:
            king, rook, black = (tuple(x) for x in rng.integers(SIZE, size=(3, 2)).tolist())
            state = State(king, rook, black)
            safe = not near(king, black) and not near(rook, black) and rook != king
            if safe and not rook_sees(rook, black, king) and self.action_mask(state).any():
                return state

    def step(self, state: State, action: int) -> tuple[State, float, bool, bool]:
        moved = self._moved(state, action)
        moved, options = moved._replace(steps=state.steps + 1), black_moves(moved)
        if not options:  # mate or stalemate
            return moved, float(rook_sees(moved.rook, moved.black, moved.king)), True, False
        middle = (SIZE - 1) / 2
        to = min(options, key=lambda s: (s != moved.rook, abs(s[0] - middle) + abs(s[1] - middle)))
        lost = to == moved.rook
        return moved._replace(black=to), 0.0, lost, not lost and moved.steps >= LIMIT

    def observe(self, state: State) -> np.ndarray:
        """`[6, 6, 3]`: white king, rook, black king."""
        seen = np.zeros((SIZE, SIZE, 3), np.float32)
        for plane, square in enumerate(state[:3]):
            seen[(*square, plane)] = 1
        return seen

    def action_mask(self, state: State) -> np.ndarray:
        return np.array([self._legal(state, action) for action in range(self.num_actions)])

    def _moved(self, state: State, action: int) -> State:
        piece, moves = ("king", KING) if action < len(KING) else ("rook", ROOK)
        (row, column), by = getattr(state, piece), moves[action - (piece == "rook") * len(KING)]
        return state._replace(**{piece: (row + by[0], column + by[1])})

    def _legal(self, state: State, action: int) -> bool:
        after = self._moved(state, action)
        if not on_board(after.king) or not on_board(after.rook) or after.king == after.rook:
            return False
        if action < len(KING):
            return not near(after.king, state.black)
        return after.rook != state.black and rook_sees(state.rook, after.rook, state.king) and (
            rook_sees(state.rook, after.rook, state.black))  # fmt: skip
