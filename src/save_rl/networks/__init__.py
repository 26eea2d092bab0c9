"""Networks that map observations to one output per action, and optionally a state value.

`with_heads` helps with networks of your own; see docs/networks.md.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from save_rl.errors import InputError, require, unknown_name
from save_rl.networks import conv, graph, mlp
from save_rl.networks.conv import conv_network
from save_rl.networks.dictionary import DictNetwork
from save_rl.networks.graph import GraphNetwork
from save_rl.networks.heads import with_heads as with_heads
from save_rl.networks.mlp import MLPNetwork
from save_rl.networks.own import own_maker
from save_rl.networks.table import TableNetwork
from save_rl.types import Simulator

NETWORKS = ("mlp", "conv", "dict", "graph", "graph-sum", "graph-plain", "table")
# Whether a graph network normalises, and whether it averages.
_FORMS = {"graph": (True, True), "graph-sum": (True, False), "graph-plain": (False, False)}
_GRAPH = {"nodes", "node_mask"}
_TREE = (
    "--network: 'auto' knows no network for observations that are a {kind}; have observe return an "
    "array or a flat dictionary of arrays, or give a network of your own, package.module:factory."
)


def network_maker(
    name: str, observation: Any, env: Simulator, value_head: bool = False, mixed: bool = False,
    hidden: tuple[int, ...] = (), filters: tuple[int, ...] = conv.FILTERS,
) -> Callable[[Any], Any]:  # fmt: skip
    """Return a function that maps a JAX key to a new network for an environment.

    name: of the network, 'auto', or the `package.module:factory` of somebody's own. observation: an
    example, or its shape and dtype. mixed: see `GraphNetwork`, the only network that supports it.
    hidden: widths of hidden layers; by default, the network's own. filters: of each convolution.
    """
    if name == "auto":
        name = _fitting(observation, len(filters))
    if name not in NETWORKS and ":" not in name:
        raise unknown_name(
            "network", name, ("auto", *NETWORKS, "package.module:factory"), "--network"
        )
    _check_effects(name, observation, mixed, hidden, filters)
    if ":" in name:
        nodes = observation["node_mask"].shape[-1] if is_graph(observation) else 0
        return own_maker(name, observation, env, value_head, nodes)
    if name in _FORMS:
        return _graph_maker(name, observation, env, value_head, mixed)
    actions = env.num_actions
    if name == "dict":
        shown = _entries(observation)
        widths = hidden or mlp.HIDDEN
        return lambda key: DictNetwork(shown, actions, key, value_head, filters, widths)
    if not hasattr(observation, "shape"):
        raise InputError(_single_array(name, observation))
    shape = observation.shape
    if name == "mlp":
        features, widths = int(np.prod(shape)), hidden or mlp.HIDDEN
        return lambda key: MLPNetwork(features, actions, key, value_head, widths)
    if name == "conv":
        least = conv.smallest_side(len(filters))
        if not conv.has_pixels(observation, least):
            raise InputError(
                f"--network: 'conv' needs observations [height, width, channels] of at least "
                f"{least} x {least} pixels with these --network.filters, not {list(shape)}; 'mlp' "
                "takes any array."
            )
        widths = hidden or conv.HIDDEN
        return lambda key: conv_network(shape, actions, key, value_head, filters, widths)
    states: Any = getattr(env, "num_states", None)
    if states is None or shape or not jnp.issubdtype(observation.dtype, jnp.integer):
        raise InputError(
            "--network: 'table' needs an environment with num_states and integer observations."
        )
    return lambda key: TableNetwork(states, actions, value_head)


def _fitting(observation: Any, convolutions: int) -> str:
    """Return the network that `auto` takes for observations like this one."""
    if is_graph(observation):
        return "graph"
    if _is_dictionary(observation):
        return "dict"
    if not hasattr(observation, "shape"):
        raise InputError(_TREE.format(kind=type(observation).__name__))
    return "conv" if conv.is_image(observation, convolutions) else "mlp"


def _check_effects(
    name: str, observation: Any, mixed: bool, hidden: tuple[int, ...], filters: tuple[int, ...]
) -> None:
    """Refuse options without effect on a network."""
    entries = observation.values() if _is_dictionary(observation) else ()
    images = name == "dict" and any(conv.is_image(x, len(filters)) for x in entries)
    fits = not mixed or name in _FORMS
    require(fits, "--mixed-precision", "true", "false without a graph network")
    for option, given, usual, effect in (
        ("--network.hidden", hidden, (), name in ("mlp", "conv", "dict")),
        ("--network.filters", filters, conv.FILTERS, name == "conv" or images),
    ):
        if given != usual and not effect:
            widths = " ".join(map(str, given))
            of = f"'{name}'" if name != "dict" else "'dict' without images"
            raise InputError(f"{option}: {widths} has no effect on the network {of}; leave it out.")


def _is_dictionary(observation: Any) -> bool:
    """Test for a dictionary of arrays by name."""
    return isinstance(observation, dict) and all(
        isinstance(name, str) and hasattr(x, "shape") for name, x in observation.items()
    )


def _entries(observation: Any) -> dict[str, Any]:
    """Return the arrays of a dictionary; refuse anything else."""
    if is_graph(observation):
        raise InputError(
            "--network: 'dict' does not take graphs (nodes, node_mask), which 'graph' fits; give "
            "the entries other names, or a network of your own, package.module:factory."
        )
    if not _is_dictionary(observation):
        raise InputError(
            "--network: 'dict' needs observations that are flat dictionaries of arrays; 'mlp' "
            "takes any array."
        )
    return observation


def _single_array(name: str, observation: Any) -> str:
    shows = f"a {type(observation).__name__}"
    hint = ""
    if isinstance(observation, dict):
        shows = f"a dictionary: {', '.join(map(str, observation))}"
        fits = "graph" if is_graph(observation) else "dict" if _is_dictionary(observation) else ""
        hint = f" '{fits}' fits it." if fits else ""
    return (
        f"--network: '{name}' needs an observation that is a single array, and this environment "
        f"shows {shows}.{hint}"
    )


def is_graph(observation: Any) -> bool:
    """Test whether observations are graphs, see `networks.graph`."""
    return isinstance(observation, dict) and set(observation) == _GRAPH


def _graph_maker(
    name: str, observation: Any, env: Simulator, value_head: bool, mixed: bool
) -> Callable[[Any], Any]:
    if not is_graph(observation):
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
