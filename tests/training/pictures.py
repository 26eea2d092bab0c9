"""Simulators that show frames, for recurrent agents; nothing here imports JAX."""

import contextlib
import os
import signal
from pathlib import Path
from typing import NamedTuple

import numpy as np

ACTIONS = 4


class Shown(NamedTuple):
    """A moment: a number that all its pictures are drawn from, and what led here."""

    number: int
    stack: np.ndarray
    action: int = 0
    reward: float = 0.0


class Pictures:
    """Shows noise that depends on all actions so far; ends after some of them."""

    num_actions = ACTIONS

    def reset(self, seed):
        return Shown(seed + 1, self._push(np.zeros((84, 84, 4), np.uint8), seed + 1))

    def _push(self, stack, number):
        new = np.random.default_rng(number).integers(256, size=(84, 84, 1), dtype=np.uint8)
        return np.concatenate([stack[..., 1:], new], -1)

    def step(self, state, action):
        number = (state.number * 31 + action * 7 + 1) % 1_000_003
        reward = float(number % 13 - 6)
        after = Shown(number, self._push(state.stack, number), int(action), reward)
        return after, reward, number % 11 == 0, False

    def observe(self, state):
        return {
            "frames": state.stack, "action": np.int32(state.action),
            "reward": np.float32(state.reward),
        }  # fmt: skip


class Masked(Pictures):
    """Forbids an action."""

    def action_mask(self, state):
        return np.arange(ACTIONS) != state.number % ACTIONS


class DiesOnce(Pictures):
    """Ends its process, as an emulator can, in the step number `after` of all; but once only.

    grave: a file that is there from then on.
    """

    def __init__(self, grave: str, after: int):
        self._grave, self._left = Path(grave), after

    def step(self, state, action):
        self._left -= 1
        if self._left <= 0:
            with contextlib.suppress(FileExistsError):  # another worker was first
                self._grave.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGSEGV)
        return super().step(state, action)
