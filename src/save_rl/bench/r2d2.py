"""Acting and learning speed of SAVE on R2D2 on an Atari game, at the paper's sizes.

Learning starts early, so that a minute of measuring is enough. A second case samples more often
than the paper, to measure the learner's throughput while actors run.
"""

import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from save_rl.bench import median_seconds
from save_rl.bench.clocks import Clocks
from save_rl.learning.r2d2_settings import NetworkSettings, R2D2Settings, ReplaySettings
from save_rl.processes import usable_cores
from save_rl.training.r2d2.network import to_batch
from save_rl.training.r2d2.trainer import R2D2Trainer
from save_rl.training.run.trainers import make_trainer
from save_rl.training.settings import TrainSettings

OFTEN = 8.0  # samples per insert of the second case; the paper has about 2
_WARM_UP = 3  # updates


def bench_r2d2(
    env: str, device: Any, lanes: int, workers: int, seconds: float, small: bool = False
) -> dict[str, Any]:
    """Train for at least this many seconds per case, after everything is compiled.

    small: the small network and short sequences, for CPUs.
    """
    settings = R2D2Settings(replay=ReplaySettings(4096, minimum=128))
    if small:
        replay = ReplaySettings(256, minimum=16, batch=8)
        cut = replace(settings.sequences, burn_in=10, train=20, period=10)
        settings = R2D2Settings(NetworkSettings(profile="small"), cut, replay)
    cases, learner = [], {}
    for agent, samples in (("r2d2-save", 2.0), ("r2d2-save", OFTEN), ("r2d2-controlled", 2.0)):
        told = replace(settings, replay=replace(settings.replay, samples_per_insert=samples))
        chosen = TrainSettings(env=env, agent=agent, lanes=lanes, chunk=1, r2d2=told)
        chosen.check()
        with closing(make_trainer(chosen, device, workers=workers)) as trainer:
            assert isinstance(trainer, R2D2Trainer)
            case, state = _case(trainer, seconds)
            cases.append({"agent": agent, "samples_per_insert": samples, **case})
            learner = learner or _learner(trainer, state)
    return {
        "device": device.device_kind,
        "env": env,
        "cores": usable_cores(),
        "cases": cases,
        "learner": learner,
    }


def _case(trainer: R2D2Trainer, seconds: float) -> tuple[dict[str, Any], Any]:
    clocks = Clocks()
    clocks.watch("simulators", trainer.pool, "receive")
    state, step, running = trainer.begin(), 0, np.ones(1, np.bool_)
    while trainer.counters(state).updates[0] < _WARM_UP:
        state = trainer.advance(state, step, running)
        step += 1
    before, made, first = dict(clocks.seconds), trainer.counters(state), step
    started = time.perf_counter()
    # Lanes start together, so their sequences end together: measure whole periods.
    period = trainer.settings.r2d2.sequences.period
    while time.perf_counter() - started < seconds or (step - first) % period:
        state = trainer.advance(state, step, running)
        step += 1
    jax.block_until_ready(jax.tree.leaves(trainer.params(state)))
    total, done = time.perf_counter() - started, trainer.counters(state)

    def rate(name: str) -> float:
        return round(float((getattr(done, name) - getattr(made, name))[0]) / total, 2)

    simulators = "main", "simulators"
    waited = (clocks.seconds[simulators] - before[simulators]) / total
    case = {
        "lanes": trainer.settings.lanes,
        "workers": trainer.pool.workers,
        "agent_steps_per_second": rate("env_steps"),
        "simulations_per_second": rate("simulator_steps"),
        "updates_per_second": rate("updates"),
        "milliseconds_per_lock_step": round(total / (step - first) * 1e3, 1),
        "share": {"simulators": round(waited, 3), "rest": round(1 - waited, 3)},
    }
    return case, state


def _learner(trainer: R2D2Trainer, state: Any) -> dict[str, Any]:
    """Measure the learner alone: decompressing a batch, and an update on it."""
    replay, networks, r = trainer.learner.replay, trainer.setup.networks, trainer.settings.r2d2
    drawn = replay.draw(np.random.default_rng(0))
    batch = to_batch(replay.unpack(drawn), r.sequences.gamma)
    leaves = jax.tree.leaves((state.learner.params, state.learner.optimiser))
    target = jax.tree.leaves(state.learner.target)
    seconds = median_seconds(
        {
            "unpack": lambda: replay.unpack(drawn),
            "update": lambda: jax.block_until_ready(networks.update(leaves, target, batch)),
        },
        5,
    )
    return {
        "batch": r.replay.batch,
        "steps": r.sequences.steps,
        "milliseconds": {name: round(value * 1e3, 2) for name, value in seconds.items()},
        "updates_per_second": round(1 / (seconds["unpack"] + seconds["update"]), 2),
    }
