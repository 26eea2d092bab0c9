"""The protocol of all trainers, which the loop and tests use: on a device or a cluster."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from save_rl.agents import Agent
from save_rl.training.counters import Counters
from save_rl.training.settings import TrainSettings

MAX_TEST_STEPS = 1000  # of a test episode, in environments without `max_steps`


class Trainer(Protocol):
    """Trains and tests all seeds of one set of settings.

    A state and parameters are those of all seeds; what they look like is up to the trainer.
    """

    settings: TrainSettings
    """The settings of the run."""

    agent: Agent
    """The agent that learns."""

    curriculum: str
    """The kind of curriculum: 'none', 'linear' or 'adaptive'."""

    refills_replay: bool
    """True if it can go on with an empty replay, from a light checkpoint."""

    test_batch: int | None
    """Most episodes for one call of `play`; None for any number."""

    def begin(self) -> Any:
        """Return the state before the first lock-step."""
        ...

    def advance(self, state: Any, step: int, running: np.ndarray) -> Any:
        """Run a chunk of lock-steps after the first `step`; `state` must not be used again.

        running: `[seeds]`; the others stay as they are.
        """
        ...

    def counters(self, state: Any) -> Counters:
        """Return the counters so far."""
        ...

    def forget_stats(self, state: Any) -> Any:
        """Return the state with empty sums for the next line of metrics; use only this one."""
        ...

    def params(self, state: Any) -> Any:
        """Return the parameters of the networks, `[seeds, ...]`; `state` may be a template."""
        ...

    def template(self) -> Any:
        """Return names, shapes and dtypes of the arrays of a checkpoint."""
        ...

    def snapshot(self, state: Any) -> Any:
        """Return the arrays to write to a checkpoint."""
        ...

    def restore(self, state: Any) -> Any:
        """Return the state of a checkpoint, ready to continue."""
        ...

    def play(
        self, params: Any, episodes: int, budget: int, number: int, level: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Play test episodes; return their returns and lengths `[seeds, episodes]`.

        number: of this test, part of the random seed. level: of the episodes, in environments with
        levels; with a curriculum, the default is the hardest.
        """
        ...

    def watch_tests(self, report: Callable[[int], None]) -> None:
        """Have `play` call `report` with the number of episodes finished so far, of all seeds.

        A compiled test has nothing to report before it is over.
        """
        ...

    def close(self) -> None:
        """End processes and threads."""
        ...
