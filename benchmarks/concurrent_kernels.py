"""Whether kernels that run side by side on a GPU compute what they compute one after the other.

    python benchmarks/concurrent_kernels.py

Makes the same 320 updates of the graph network of `covering` in both ways, twice in the first, and
prints how far the parameters are apart.
"""

from contextlib import closing

import jax
import numpy as np

from save_rl.training.devices import compiler_options, concurrent, select_device
from save_rl.training.host import Program
from save_rl.training.host_network import Updates
from save_rl.training.programs import make_program
from save_rl.training.settings import TrainSettings

LOCK_STEPS = 20
TRANSITIONS = 512
NODES = 20  # of each graph


def updated(options: dict[str, str]) -> list[np.ndarray]:
    """The parameters after all updates, on transitions made up at random."""
    settings = TrainSettings(env="covering", agent="save", lanes=64, chunk=1)
    with closing(make_program(settings, select_device("auto"), workers=0)) as program:
        assert isinstance(program, Program)
        seed, rng = program._blank(0), np.random.default_rng(0)
        data = seed.replay.data
        for seen in (data.observation, data.next_observation):
            seen["nodes"][:TRANSITIONS] = rng.normal(size=seen["nodes"][:TRANSITIONS].shape)
            seen["node_mask"][:TRANSITIONS, :NODES] = True
        data.target[:TRANSITIONS] = rng.normal(size=data.target[:TRANSITIONS].shape)
        data.reward[:TRANSITIONS] = rng.normal(size=TRANSITIONS)
        data.mask[:TRANSITIONS] = data.next_mask[:TRANSITIONS] = 255
        seed.replay.added[...] = TRANSITIONS
        actions = program.pool.layout.num_actions
        learner, updates = seed.learner, Updates(program.learning, actions, 8, options)
        with closing(updates):
            for step in range(LOCK_STEPS):
                slots = program._draw(0, seed, step)
                updates.begin(learner, seed.replay, slots, 1e4)
                learner = updates.finish(step)
        return [np.asarray(x) for x in jax.tree.leaves(learner.params)]


def distance(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    serial = compiler_options(select_device("auto"))
    first, again, beside = (updated(options) for options in (serial, serial, concurrent(serial)))
    print(f"one after the other, twice: {distance(first, again)} apart")
    print(f"one after the other, side by side: {distance(first, beside)} apart")
    print(f"largest parameter: {max(float(np.abs(x).max()) for x in first)}")
