"""How strongly each loss of SAVE pulls on a trained network: the norms of their gradients.

Lanes play with search at all levels, as at the end of training, without learning; the gradients are
those of the mean losses over all their transitions. The network is its own target network here.
"""

import argparse
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from save_rl.agents import get_agent
from save_rl.learning.host_replay import unpack
from save_rl.learning.replay import Transition
from save_rl.report.results import write_results
from save_rl.training.host.trainer import HostTrainer
from save_rl.training.learner import Learning
from save_rl.training.run import checkpoint
from save_rl.training.run.progress import warn
from save_rl.training.run.run_directory import BEST, read_settings
from save_rl.training.run.trainers import make_trainer

LOSSES = {
    "q-learning": ("save-no-amortization", (1.0, 0.0), 1.0),
    "cross-entropy": ("save", (0.0, 1.0), 1.0),
    "cross-entropy, temperature 0.3": ("save", (0.0, 1.0), 0.3),
    "cross-entropy, temperature 0.1": ("save", (0.0, 1.0), 0.1),
    "l2": ("save-l2", (0.0, 1.0), 1.0),
}
"""Losses: an agent that has this one, (β_Q, β_A) that leave it alone, and the temperature."""
BATCH = 32  # transitions whose gradients are made at a time


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    rows = []
    for run in arguments.runs:
        settings = read_settings(run, "RUN")
        found = measure(run, settings, arguments.lanes, arguments.steps)
        same = {
            "experiment": "loss-pull", "agent": settings.agent, "seed": settings.seeds[0],
            "task": settings.env, "episodes": settings.episodes,
        }  # fmt: skip
        rows += [{**same, "metric": name, "value": value} for name, value in found.items()]
        print(run, {name: float(f"{value:.4g}") for name, value in found.items()}, flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_results(arguments.out / "results.csv", rows)


def measure(run, settings, lanes, steps):
    """What the losses look like where one run plays."""
    program, params, batch = experience(run, settings, lanes, steps)
    network = jax.jit(lambda observation: program.learning.network(params)(observation)[0])
    q = np.concatenate([np.asarray(network(part)) for part in parts(batch.observation)])
    valid, q_mcts = np.asarray(batch.mask), batch.target
    searched = valid & (np.abs(q - q_mcts) > 1e-4)
    logits = np.where(valid, q_mcts, -np.inf)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    found = {
        "valid_actions": valid.sum(-1).mean(),
        "changed_actions": searched.sum(-1).mean(),
        "change_by_search": np.abs(q - q_mcts)[searched].mean(),
        "entropy_of_target": -(p * np.log(np.where(p > 0, p, 1))).sum(-1).mean(),
        "entropy_if_uniform": np.log(valid.sum(-1)).mean(),
    }
    for name, (agent, betas, temperature) in LOSSES.items():
        warm = replace(program.settings, temperature=temperature)
        learning = Learning(get_agent(agent), warm, program.learning._make)
        found[f"gradient of {name}"] = norm_of_gradient(learning, params, batch, betas)
    return {name: float(value) for name, value in found.items()}


def experience(run, settings, lanes, steps):
    """The program of a run, its parameters, and transitions of its last curriculum."""
    size = lanes * steps
    settings = replace(  # too little is played to learn
        settings, agent="save", lanes=lanes, chunk=1, replay=size, min_replay=10 * size
    )
    program = make_trainer(settings, jax.devices("cpu")[0])
    assert isinstance(program, HostTrainer)
    with closing(program):
        best = checkpoint.load_newest(run / BEST, program.params(program.template()), warn, "RUN")
        params = jax.tree.map(jnp.asarray, best.state)
        state = program.begin()
        learner = state.learner._replace(params=params, target=params)
        # As at the end of training: levels up to the hardest, and hardly any exploration.
        late = {"env_steps": np.array([settings.curriculum_steps]),
                "episodes": np.array([settings.episodes - 1])}  # fmt: skip
        state = state._replace(learner=learner, **late)
        for step in range(2 * steps):  # the first half begins at the easiest level
            state = program.advance(state, step, np.ones(1, np.bool_))._replace(**late)
        data, params = jax.tree.map(lambda x: np.asarray(x)[0], (state.replay.data, params))
        actions = program.pool.layout.num_actions
        batch = data._replace(
            mask=np.asarray(unpack(data.mask, actions)),
            next_mask=np.asarray(unpack(data.next_mask, actions)),
        )
    return program, params, batch


def parts(batch):
    """`BATCH` transitions at a time."""
    for first in range(0, len(jax.tree.leaves(batch)[0]), BATCH):
        yield jax.tree.map(lambda x, low=first: x[low : low + BATCH], batch)


def norm_of_gradient(learning, params, batch, betas):
    """The norm of the gradient of the mean loss."""
    size = len(batch.action)

    @jax.jit
    def of_part(batch: Transition):
        none = np.zeros(batch.action.shape)
        stacked = jax.tree.map(lambda x: x[None], batch)
        targets = learning.targets(params, stacked, none[None])
        weights = np.full(batch.action.shape, 1 / size)
        return learning.gradient(params, batch, targets[0], weights, betas)[0]

    total = jax.tree.map(lambda *found: sum(found), *map(of_part, parts(batch)))
    return optax.tree.norm(total)


if __name__ == "__main__":
    main()
