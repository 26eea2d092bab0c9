r"""Train a network and an optimizer of your own, on a JAX environment or a Python simulator.

A network is what a factory returns: an Equinox module that maps one observation to one number per
action. `with_heads` adds the output layers to a torso.

    python examples/07_own_network.py
    python examples/07_own_network.py --env gym/CartPole-v1

The same from the command line, where the module can be imported:

    PYTHONPATH=examples save-rl train tightrope --network 07_own_network:residual \
        --optimizer 07_own_network:clipped_adam
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import save_rl
from save_rl.networks import with_heads

WIDTH, BLOCKS = 64, 2


class ResidualTorso(eqx.Module):
    """A layer, then blocks that each add to what they are given; normalised."""

    first: eqx.nn.Linear
    blocks: list[eqx.nn.Linear]
    norm: eqx.nn.LayerNorm

    def __init__(self, features: int, key: jax.Array):
        first, *keys = jax.random.split(key, BLOCKS + 1)
        self.first = eqx.nn.Linear(features, WIDTH, key=first)
        self.blocks = [eqx.nn.Linear(WIDTH, WIDTH, key=one) for one in keys]
        self.norm = eqx.nn.LayerNorm(WIDTH)

    def __call__(self, observation: Any) -> jax.Array:
        """Map one observation, as the environment shows it, to `[WIDTH]`."""
        x = self.first(jnp.ravel(observation))
        for block in self.blocks:
            x = x + jax.nn.relu(block(x))
        return jax.nn.relu(self.norm(x))


def residual(observation: Any, num_actions: int, value_head: bool, key: jax.Array) -> eqx.Module:
    """Return a network for observations like this one."""
    torso_key, head_key = jax.random.split(key)
    torso = ResidualTorso(observation.size, torso_key)
    return with_heads(torso, WIDTH, num_actions, value_head, head_key)


def clipped_adam(learning_rate: float) -> optax.GradientTransformation:
    """Return Adam with gradients clipped to norm 1."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(learning_rate))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="tightrope", help="environment")
    parser.add_argument("--steps", type=int, default=20_000, help="real steps per seed")
    parser.add_argument("--tests", type=int, default=100, help="test episodes per budget")
    options = parser.parse_args()
    out = Path(tempfile.mkdtemp(prefix="save_rl-")) / "own-network"

    run = save_rl.train(
        options.env, agent="save", budget=5, steps=options.steps, learning_rate=1e-3,
        epsilon_episodes=500, network=residual, optimizer=clipped_adam, seed=(0, 1), workers=0,
        out=out,
    )  # fmt: skip
    size = sum(x[0].size for x in jax.tree.leaves(run.trainer.params(run.state)))
    print(f"a network of {size:,} numbers")
    for result in save_rl.evaluate(out, budgets=(0, 5), episodes=options.tests, workers=0):
        print(f"budget {result.budget}: mean test reward {result.returns.mean():.2f}")


if __name__ == "__main__":
    main()
