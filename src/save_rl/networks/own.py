"""Networks of other people, by `package.module:factory`, checked before anything is trained."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from save_rl.envs import find_factory
from save_rl.envs.check.messages import cause, kind, shown
from save_rl.errors import InputError
from save_rl.networks.heads import Batched
from save_rl.types import Simulator

TAKES = ("observation", "num_actions", "value_head", "key")


def own_maker(
    address: str, observation: Any, env: Simulator, value_head: bool, nodes: int = 0
) -> Callable[[Any], Batched]:
    """Return a function that maps a JAX key to a network of the factory at `address`.

    observation: an example, or its shapes and dtypes. nodes: see `Batched`. Raises InputError if
    the factory or its networks can't be used.
    """
    factory = find_factory(address, "--network", TAKES)
    seen = _first_observation(env, observation)

    def make(key: Any) -> Any:
        return factory(seen, int(env.num_actions), value_head, key)

    _check(address, make, seen, int(env.num_actions), value_head)
    return lambda key: Batched(make(key), nodes)


def is_learned(x: Any) -> bool:
    """Test for floating-point arrays, of JAX or NumPy: the parts of a network that are learned."""
    return isinstance(x, jax.Array | np.ndarray) and jnp.issubdtype(x.dtype, jnp.inexact)


def parameters(network: Any) -> Any:
    """Return a network with nothing but what is learned, as JAX arrays."""
    return jax.tree.map(jnp.asarray, eqx.filter(network, is_learned))


def _first_observation(env: Any, observation: Any) -> Any:
    """Return the first observation of an episode, as NumPy arrays of the types that are sent."""
    in_jax = any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(observation))
    first = env.observe(env.reset(jax.random.PRNGKey(0) if in_jax else 0))
    return jax.tree.map(lambda x, like: np.asarray(x).astype(like.dtype), first, observation)


def _check(address: str, make: Callable[[Any], Any], seen: Any, actions: int, value: bool) -> None:
    """Refuse a factory or its networks, in one sentence."""

    def wrong(what: str) -> InputError:
        return InputError(f"--network: '{address}' {what}.")

    key = jax.random.PRNGKey(0)
    try:
        network, again = make(key), make(key)
    except (Exception, SystemExit) as error:
        raise wrong(f"can't make a network: {cause(error)}") from error
    if not callable(network):
        raise wrong(f"returned {shown(network)}, which is not a network; it must be callable")
    learned, same = parameters(network), parameters(again)
    if not jax.tree.leaves(learned):
        raise wrong(
            f"returned {shown(network)}, which holds no floating-point arrays to learn; return "
            "an equinox.Module"
        )
    if any(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in jax.tree.leaves(learned)):
        raise wrong("returned a network with complex numbers to learn; they must be real")
    if jax.tree.structure(learned) != jax.tree.structure(same):
        raise wrong(
            "returned two networks of different structure for one key; functions in static fields "
            "must be defined outside of the factory"
        )
    if not jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), learned, same)):
        raise wrong("returned two different networks for one key; draw numbers only from the key")
    try:
        traced = jax.eval_shape(lambda key: parameters(make(key)), key)
    except (Exception, SystemExit) as error:
        raise wrong(f"can't be compiled for several seeds: {cause(error)}") from error
    if jax.tree.map(kind, traced) != jax.tree.map(kind, learned):
        raise wrong("makes a network with other arrays when it is compiled")

    def apply(observation: Any) -> Any:  # JAX hashes functions, and modules may hold lists
        return network(observation)

    try:
        out = jax.eval_shape(apply, seen)
    except (Exception, SystemExit) as error:
        raise wrong(f"made a network that fails on an observation: {cause(error)}") from error
    _check_shapes(wrong, out, actions, value)
    try:
        values = jax.jit(apply)(seen)
        jax.eval_shape(jax.vmap(apply), jax.tree.map(lambda x: x[None], seen))
    except (Exception, SystemExit) as error:
        raise wrong(f"made a network that fails on an observation: {cause(error)}") from error
    if not all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(values)):
        raise wrong("made a network whose output on the first observation is not finite")


def _check_shapes(wrong: Callable[[str], InputError], out: Any, actions: int, value: bool) -> None:
    """Refuse outputs for one observation that are not those of the agent."""
    is_pair = isinstance(out, tuple) and len(out) == 2
    parts: list[Any] = list(out) if is_pair and value else [out]
    shapes = [(actions,), ()][: 2 if value else 1]
    fits = len(parts) == len(shapes) and all(
        getattr(x, "shape", None) == shape and jnp.issubdtype(x.dtype, jnp.floating)
        for x, shape in zip(parts, shapes, strict=True)
    )
    if fits:
        return
    needed = f"one number per action, float32 [{actions}]"
    if value:
        needed = f"(logits, value), float32 [{actions}] and float32 [], as value_head asks"
    raise wrong(f"made a network that maps one observation to {_described(out)}, not to {needed}")


def _described(out: Any) -> str:
    if isinstance(out, tuple) and all(hasattr(x, "shape") for x in out):
        return f"({', '.join(kind(x) for x in out)})"
    return kind(out) if hasattr(out, "shape") else shown(out)
