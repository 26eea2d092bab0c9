"""Networks: observations in, one number per action out (and a value where an agent needs it)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.errors import InputError, require
from save_rl.networks.mlp import MLPNetwork
from save_rl.networks.table import TableNetwork
from save_rl.types import Simulator

NETWORKS = ("mlp", "table")


def make_network(name: str, env: Simulator, key: Any, value_head: bool = False) -> Any:
    """A fresh network for a JAX environment's observations and actions."""
    require(name in NETWORKS, "--network", repr(name), " or ".join(map(repr, NETWORKS)))
    observation = jax.eval_shape(lambda k: env.observe(env.reset(k)), key)
    if not hasattr(observation, "shape"):
        raise InputError("--network: the environment's observe() must return a single array.")
    if name == "mlp":
        features = int(np.prod(observation.shape))
        return MLPNetwork(features, env.num_actions, key, value_head)
    states = getattr(env, "num_states", None)
    if states is None or observation.shape or not jnp.issubdtype(observation.dtype, jnp.integer):
        raise InputError(
            "--network: 'table' needs an environment with num_states and integer observations."
        )
    return TableNetwork(states, env.num_actions, value_head)
