"""UCT without learning, beside a run: the same environments, budgets, c and γ, but no network."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Protocol

import numpy as np

from save_rl.agents import get_agent
from save_rl.envs.layout import Layout
from save_rl.envs.pool import Source
from save_rl.processes import usable_cores
from save_rl.training.device.trainer import DeviceTrainer
from save_rl.training.host.actor import Actor, slots_of
from save_rl.training.run.progress import warn
from save_rl.training.run.trainers import environments
from save_rl.training.settings import TrainSettings

PATIENCE = 60.0
"""Seconds for UCT at one budget, or three times those of the run, unless it was asked for."""
_NUMBER = 2**20  # of the test, part of its random seeds; as for the run itself


class TooSlow(Exception):
    """UCT was given up; the message says how far it came."""


def patient(report: Callable[[int], None], seconds: float) -> Callable[[int], None]:
    """Return a report of progress that raises TooSlow after this time."""
    end = time.monotonic() + seconds

    def reported(done: int) -> None:
        report(done)
        if time.monotonic() > end:
            raise TooSlow(f"{done} episodes in {seconds:.0f} s")

    return reported


class Uct(Protocol):
    """Plays test episodes; returns their returns and lengths `[seeds, episodes]`.

    report: called with the number of episodes finished so far.
    """

    def __call__(
        self, episodes: int, budget: int, level: int | None, report: Callable[[int], None]
    ) -> tuple[np.ndarray, np.ndarray]: ...


@contextmanager
def untrained_uct(
    settings: TrainSettings, lanes: int, workers: int, step_timeout: float = 0.0
) -> Iterator[Uct]:
    """Return UCT with random rollouts in the environments of a run; its processes end with it."""
    envs, on_host = environments(settings)
    agent = get_agent("uct")
    if not on_host:
        trainer = DeviceTrainer(replace(settings, agent=agent.name), envs)
        nothing = trainer.params(trainer.begin())

        def compiled(
            episodes: int, budget: int, level: int | None, report: Callable[[int], None]
        ) -> tuple[np.ndarray, np.ndarray]:
            return trainer.play(nothing, episodes, budget, _NUMBER, level)

        yield compiled
        return
    count = usable_cores() if workers < 0 else workers
    sources = [Source(settings.env, seed, settings.all_env_options) for seed in settings.seeds]
    actor = Actor(
        settings, envs, sources, plays=agent, lanes=0, test_lanes=lanes, groups=1,
        slots=slots_of(agent, 0, Layout.of(envs[0])), timeout=step_timeout, warn=warn,
        workers=0 if count == 1 and workers < 0 else min(count, lanes),
    )  # fmt: skip

    def play(
        episodes: int, budget: int, level: int | None, report: Callable[[int], None]
    ) -> tuple[np.ndarray, np.ndarray]:
        actor.on_episodes = report
        return actor.play(None, episodes, budget, _NUMBER, level)

    with closing(actor):
        yield play
