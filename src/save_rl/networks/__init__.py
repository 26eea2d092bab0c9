"""Networks: observations in, one number per action out (and a value where an agent needs it)."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from save_rl.errors import InputError, require
from save_rl.networks.mlp import MLPNetwork
from save_rl.networks.table import TableNetwork
from save_rl.types import Simulator

NETWORKS = ("mlp", "table")


def network_maker(
    name: str, observation: Any, env: Simulator, value_head: bool = False
) -> Callable[[Any], Any]:
    """What makes a fresh network for an environment from a JAX key.

    observation: an example, or its shape and type.
    """
    require(name in NETWORKS, "--network", repr(name), " or ".join(map(repr, NETWORKS)))
    if not hasattr(observation, "shape"):
        raise InputError(
            f"--network: '{name}' needs an observation that is a single array, and this "
            f"environment shows a dictionary: {', '.join(observation)}."
        )
    if name == "mlp":
        features = int(np.prod(observation.shape))
        return lambda key: MLPNetwork(features, env.num_actions, key, value_head)
    states: Any = getattr(env, "num_states", None)
    if states is None or observation.shape or not jnp.issubdtype(observation.dtype, jnp.integer):
        raise InputError(
            "--network: 'table' needs an environment with num_states and integer observations."
        )
    return lambda key: TableNetwork(states, env.num_actions, value_head)
