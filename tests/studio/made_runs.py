"""Run folders without training: settings, and checkpoints with parameters drawn at random."""

from typing import Any, NamedTuple

import jax
import numpy as np

from save_rl.envs import make_simulator
from save_rl.training.host.learner import make_learning
from save_rl.training.run import checkpoint
from save_rl.training.run.run_directory import BEST, RunDirectory
from save_rl.training.settings import TrainSettings


class _Learner(NamedTuple):
    params: Any


class _State(NamedTuple):
    learner: _Learner


def params_of(settings, luck):
    """Return parameters of all seeds, `[seeds, ...]`; nothing is compiled for it."""
    sim = make_simulator(settings.env, settings.seeds[0], **settings.env_options)
    shapes = jax.eval_shape(make_learning(settings, sim).initial, jax.random.PRNGKey(0)).params
    random, seeds = np.random.default_rng(luck), len(settings.seeds)
    return jax.tree.map(lambda x: random.normal(0, 0.1, (seeds, *x.shape)).astype(x.dtype), shapes)


def write_checkpoint(folder, settings, luck, number=1, best=False):
    """Write a checkpoint with the parameters that this luck draws."""
    params = params_of(settings, luck)
    run_id = RunDirectory.check_old(folder, settings).run_id
    state = params if best else _State(_Learner(params))
    checkpoint.save(folder / (BEST if best else "checkpoints"), number, state, {"run_id": run_id})


def make_run(folder, env="tightrope", luck=1, **options):
    """Write the folder of a run and its last checkpoint; return its settings."""
    settings = TrainSettings(env=env, **{"seeds": (0,), "budget": 6, "c": 0.5, **options})
    RunDirectory.create(folder, settings, "cpu").close()
    write_checkpoint(folder, settings, luck)
    return settings
