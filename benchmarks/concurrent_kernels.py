"""Whether kernels that run side by side on a GPU compute what they compute one after the other.

    python benchmarks/concurrent_kernels.py

Makes the same 320 updates of the graph network of `covering` in both ways, twice in the first, and
prints how far the parameters are apart.
"""

from contextlib import closing

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.learning.host_replay import pack_target
from save_rl.training.devices import compiler_options, host_options, select_device
from save_rl.training.host.actor import LEARN
from save_rl.training.host.trainer import HostTrainer
from save_rl.training.host.updates import UpdatePrograms
from save_rl.training.run.trainers import make_trainer
from save_rl.training.settings import TrainSettings

LOCK_STEPS = 20
TRANSITIONS = 512
NODES = 20  # of each graph


def updated(options: dict[str, str]) -> list[np.ndarray]:
    """The parameters after all updates, on transitions made up at random."""
    settings = TrainSettings(env="covering", agent="save", lanes=64, chunk=1)
    with closing(make_trainer(settings, select_device("auto"), workers=0)) as trainer:
        assert isinstance(trainer, HostTrainer)
        state, rng = trainer.blank(), np.random.default_rng(0)
        data = jax.tree.map(np.array, state.replay.data)
        for seen in (data.observation, data.next_observation):
            seen["nodes"][0, :TRANSITIONS] = rng.normal(size=seen["nodes"][0, :TRANSITIONS].shape)
            seen["node_mask"][0, :TRANSITIONS, :NODES] = True
        actions = trainer.pool.layout.num_actions
        target = pack_target(rng.normal(size=(TRANSITIONS, actions)))
        for ring, part in zip(data.target, target, strict=True):
            ring[0, :TRANSITIONS] = part
        data.reward[0, :TRANSITIONS] = rng.normal(size=TRANSITIONS)
        data.mask[0, :TRANSITIONS] = data.next_mask[0, :TRANSITIONS] = 255
        state.replay.added[...], state.replay.size[...] = TRANSITIONS, NODES
        state = state._replace(
            replay=state.replay._replace(data=jax.tree.map(jnp.asarray, data)),
            episodes=np.array([10_000]),
        )
        programs = UpdatePrograms(trainer.learning, actions, options)
        with closing(programs):
            trainer.learner.programs = programs
            for step in range(LOCK_STEPS):
                random = trainer.actor.each(LEARN, step)
                learner, _ = trainer.learner.updates(state, random, np.ones(1, bool)).finish(step)
                state = state._replace(learner=learner)
        return [np.asarray(x) for x in jax.tree.leaves(state.learner.params)]


def distance(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    side_by_side = host_options(compiler_options(select_device("auto")))
    serial = {name: x for name, x in side_by_side.items() if "scheduling_mode" not in name}
    first, again, beside = (updated(options) for options in (serial, serial, side_by_side))
    print(f"one after the other, twice: {distance(first, again)} apart")
    print(f"one after the other, side by side: {distance(first, beside)} apart")
    print(f"largest parameter: {max(float(np.abs(x).max()) for x in first)}")
