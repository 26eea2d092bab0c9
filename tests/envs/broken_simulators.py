"""Simulators that crash, hang or count in secret, and one that does nothing wrong."""

import ctypes
import time
from pathlib import Path

import numpy as np


class Ladder:
    """Pays 1 for action 1 and ends after 6 steps."""

    num_actions = 2
    max_steps = 6

    def reset(self, seed):
        return 0

    def step(self, state, action):
        return state + 1, float(action), state == 5, False

    def observe(self, state):
        return np.eye(8, dtype=np.float32)[state]


class Counting(Ladder):
    """Its observation depends on the calls that were made."""

    def __init__(self):
        self.calls = 0

    def step(self, state, action):
        self.calls += 1
        return super().step(state, action)

    def observe(self, state):
        return super().observe(state) + self.calls


class Crashing(Ladder):
    """Native code that reads at address 0."""

    def reset(self, seed):
        ctypes.string_at(0)


class Hanging(Ladder):
    """Never returns from `reset`, once the file `trap` exists; writes that it is there."""

    def __init__(self, trap):
        self.trap = Path(trap)

    def reset(self, seed):
        while self.trap.exists():
            time.sleep(0.01)
        return super().reset(seed)
