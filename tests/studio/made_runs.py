"""Run folders without training: settings, and checkpoints with parameters drawn at random."""

from typing import Any, NamedTuple

import jax

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
    """Return parameters of all seeds, `[seeds, ...]`."""
    sim = make_simulator(settings.env, settings.seeds[0], **settings.env_options)
    learning = make_learning(settings, sim)
    keys = jax.random.split(jax.random.PRNGKey(luck), len(settings.seeds))
    return jax.vmap(lambda key: learning.initial(key).params)(keys)


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
