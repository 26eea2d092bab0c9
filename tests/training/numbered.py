"""A simulator whose transitions say which they are, and what a replay must look like then."""

from typing import NamedTuple

import numpy as np

_PARTS, _TIMES = 2**16, 2**8  # both exact in single precision


class Moment(NamedTuple):
    """A step of an episode."""

    seed: int
    time: int


class Numbered:
    """Shows the seed of its episode and the number of its step, in `width` numbers.

    Episodes have `length` to twice as many steps. Seeds are drawn by whoever acts, so neither what
    was sent twice nor what was done twice looks new.
    """

    num_actions = 3

    def __init__(self, length: int = 4, width: int = 3):
        self._length, self._width = length, width

    def reset(self, seed: int) -> Moment:
        return Moment(seed, 0)

    def step(self, state: Moment, action: int) -> tuple[Moment, float, bool, bool]:
        over = state.time + 1 >= self._length + state.seed % self._length
        return Moment(state.seed, state.time + 1), float(action == 1), over, False

    def observe(self, state: Moment) -> np.ndarray:
        high, low = divmod(state.seed, _PARTS)
        seen = np.zeros(self._width, np.float32)
        seen[:3] = high / _PARTS, low / _PARTS, state.time / _TIMES
        return seen


def check_numbers(observation: np.ndarray, added: int) -> None:
    """Of each episode, the ring `[capacity, width]` has steps in their order, without a gap, once.

    They begin with the first one, unless the ring has been full and lost it.
    """
    held = min(added, len(observation))
    high, low, time = np.roll(observation[:, :3], -added, 0)[-held:].astype(np.float64).T
    seeds = (high * _PARTS + low) * _PARTS
    times = time * _TIMES
    order = np.lexsort((np.arange(held), seeds))
    first = np.append(True, np.diff(seeds[order]) != 0)
    follows = np.diff(times[order], prepend=-1) == 1
    assert np.all(follows | first), "a step is missing, twice or out of order"
    assert added > held or np.all(times[order][first] == 0), "the first step of an episode is gone"
    assert first.sum() > 1
