"""Networks that map observations to one output per action, and optionally a state value."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from save_rl.errors import InputError, require
from save_rl.networks import graph
from save_rl.networks.graph import GraphNetwork
from save_rl.networks.mlp import MLPNetwork
from save_rl.networks.table import TableNetwork
from save_rl.types import Simulator

NETWORKS = ("mlp", "graph", "graph-sum", "graph-plain", "table")
# Whether a graph network normalises, and whether it averages.
_FORMS = {"graph": (True, True), "graph-sum": (True, False), "graph-plain": (False, False)}
_GRAPH = {"nodes", "node_mask"}


def network_maker(
    name: str, observation: Any, env: Simulator, value_head: bool = False, mixed: bool = False
) -> Callable[[Any], Any]:
    """Return a function that maps a JAX key to a new network for an environment.

    name: of the network, or 'auto'. observation: an example, or its shape and dtype. mixed: see
    `GraphNetwork`, the only network that supports it.
    """
    known = ("auto", *NETWORKS)
    allowed = f"{', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
    require(name in known, "--network", repr(name), allowed)
    graphs = is_graph(observation)
    if name == "auto":
        name = "graph" if graphs else "mlp"
    if name in _FORMS:
        return _graph_maker(name, observation if graphs else None, env, value_head, mixed)
    require(not mixed, "--mixed-precision", "true", "false without a graph network")
    if not hasattr(observation, "shape"):
        hint = " 'graph' fits it." if graphs else ""
        raise InputError(
            f"--network: '{name}' needs an observation that is a single array, and this "
            f"environment shows a dictionary: {', '.join(observation)}.{hint}"
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


def is_graph(observation: Any) -> bool:
    """Test whether observations are graphs, see `networks.graph`."""
    return isinstance(observation, dict) and set(observation) == _GRAPH


def _graph_maker(
    name: str, observation: dict[str, Any] | None, env: Simulator, value_head: bool, mixed: bool
) -> Callable[[Any], Any]:
    if observation is None:
        raise InputError(
            f"--network: '{name}' needs observations that are dictionaries of 'nodes' and "
            "'node_mask'; 'mlp' takes any array."
        )
    nodes, features = observation["nodes"].shape
    per_edge: Any = getattr(env, "actions_per_edge", 1)
    senders, rest = divmod(env.num_actions, max((nodes - 1) * per_edge, 1))
    if rest or nodes < 2 or not 1 <= senders <= nodes:
        raise InputError(
            f"--network: '{name}' needs actions that are edges of {nodes} nodes times "
            f"actions_per_edge ({per_edge}), sender by sender; {env.num_actions} actions are not."
        )
    return lambda key: GraphNetwork(
        features, nodes, senders, per_edge, key, value_head, mixed, *_FORMS[name]
    )


def trim(*observations: Any, gpu: bool = False) -> list[Any]:
    """Return batches of NumPy observations `[..., shape]`, with unneeded padding removed.

    gpu: use fewer distinct sizes, because compiling for a GPU is slow and padding is cheap there.
    """
    if is_graph(observations[0]):
        return graph.trim(*observations, gpu=gpu)
    return list(observations)


def cut(observation: Any, size: int) -> Any:
    """Return observations `[..., shape]`; graphs without the padding after `size` nodes."""
    return graph.cut(observation, size) if is_graph(observation) else observation


def padded_sizes(observation: Any, gpu: bool = False) -> list[int]:
    """Return the sizes to which `trim` cuts observations like this one; [0] if it cuts none."""
    if not is_graph(observation):
        return [0]
    return graph.buckets(observation["node_mask"].shape[-1], gpu)
