"""Spot checks of purity while training: now and then an episode in progress is replayed.

A simulator that changes its states, or keeps something outside them, trains silently on wrong data.
A checkpoint keeps an episode as its reset seed and its actions, and so can be checked with them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from save_rl.envs.layout import Layout, named
from save_rl.envs.watchdog import WATCHDOG
from save_rl.envs.worker import ANY_LEVEL
from save_rl.types import Simulator

_LONGEST = 200  # steps to replay
_FIRST = 4  # spot checks are due after this many chunks, then twice as many, …


class SpotChecks:
    """Replays the episode of a lane with a simulator of this process.

    made, different: episodes replayed, and those that differed. warn: is called for the first one.
    """

    def __init__(
        self, simulators: Sequence[Simulator], layout: Layout, env: str,
        warn: Callable[[str], None] | None,
    ):  # fmt: skip
        self._simulators, self._layout, self._env, self._warn = simulators, layout, env, warn
        self._due, self._chunks = _FIRST, 0
        self.made = self.different = 0

    @property
    def possible(self) -> bool:
        """False where luck is an argument of a step, which is not kept."""
        return not any(getattr(simulator, "stochastic", False) for simulator in self._simulators)

    def after_chunk(self, state: Any, actor: Any) -> None:
        """Replay the episode of one lane, if it is due; state: see `host.TrainState`."""
        self._chunks += 1
        if self._chunks < self._due or not self.possible:
            return
        steps = np.where(state.episode_wanted == ANY_LEVEL, state.episode_step, 0)
        steps = np.where(actor.pool.lost[actor.places.lanes] | (steps > _LONGEST), 0, steps)
        if not steps.any():
            return  # try again after the next chunk
        self._due = 2 * self._chunks
        index, lane = np.unravel_index(int(steps.argmax()), steps.shape)
        length = int(steps[index, lane])
        actions = actor.history[index, lane, :length].tolist()
        seen = actor.pool.observation(actor.places.lanes[index, lane : lane + 1])
        shown = {name: array[0] for name, array in named(seen).items()}
        what = self._replay(int(index), int(state.episode_seed[index, lane]), actions, shown)
        self.made += 1
        if what:
            self._report(int(state.episode_seed[index, lane]), length, what)

    def _replay(
        self, index: int, seed: int, actions: list[int], shown: dict[str, np.ndarray]
    ) -> str:
        """Return how the end of an episode differs from what was shown; '' if it does not."""
        simulator = self._simulators[index]
        try:
            with WATCHDOG:
                state = simulator.reset(seed)
                for action in actions:
                    state, _, _, _ = simulator.step(state, action)
                again = named(simulator.observe(state))
        except Exception as error:
            return f"{type(error).__name__}: {error}".rstrip(".")
        for name, before in shown.items():
            with np.errstate(over="ignore"):
                now = np.asarray(again[name]).astype(before.dtype)
            if now.shape != before.shape or not np.array_equal(now, before):
                return f"{name or 'the observation'} is another one"
        return ""

    def _report(self, seed: int, length: int, what: str) -> None:
        self.different += 1
        if self.different > 1 or self._warn is None:
            return
        self._warn(
            f"ENV: replaying {length} steps of the episode of seed {seed} gave another result "
            f"({what}): '{self._env}' changes states that were given to it, or keeps something "
            f"outside them, and what is learned can't be trusted. save-rl check {self._env} says "
            "more."
        )

    def summary(self) -> str:
        """Return a sentence about all spot checks; '' if none differed."""
        if not self.different:
            return ""
        return f"{self.different} of {self.made} replayed episodes differed."
