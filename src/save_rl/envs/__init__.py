"""Environments by name, or anybody's own by `package.module:factory`."""

import importlib
import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from save_rl.errors import InputError, MissingExtra, unknown_name
from save_rl.types import Simulator


class Entry(NamedTuple):
    """A named environment.

    factory: where it is made.
    summary: a line for lists.
    simulator: where its twin for Python programs is made, if it is written in JAX.
    curriculum: how its levels rise while an agent trains; '' where there are none.
    """

    factory: str
    summary: str
    simulator: str | None = None
    curriculum: str = ""


SEED_IS_NO_OPTION = "--env-options: seed is not possible here; --seed draws the environment."
# Families of environments: what follows the prefix is the first argument of the factory.
GYM, ATARI = "gym/", "atari/"
_FAMILIES = {
    GYM: "save_rl.envs.from_gym:gym_simulator",  # and a Gymnasium id
    ATARI: "save_rl.envs.atari:Atari",  # and a game
}
_CONSTRUCTION = "save_rl.envs.construction:"
_OPTIONS = "options: difficulty, curriculum_sample, preset, sticky_penalty, masked"

ENVIRONMENTS = {
    "tightrope": Entry(
        "save_rl.envs.tightrope:tightrope",
        "a chain of 11 states where most of 100 actions are fatal; options: reward, terminal",
        "save_rl.envs.tightrope:tightrope_simulator",
    ),
    "silhouette": Entry(
        _CONSTRUCTION + "silhouette", f"build a shape, block by block; {_OPTIONS}",
        curriculum="linear",
    ),
    "connecting": Entry(
        _CONSTRUCTION + "connecting", f"build up to three targets in the air; {_OPTIONS}",
        curriculum="linear",
    ),
    "covering": Entry(
        _CONSTRUCTION + "covering", f"build a roof over obstacles without touching; {_OPTIONS}",
        curriculum="linear",
    ),
    "covering-hard": Entry(
        _CONSTRUCTION + "covering_hard", f"the same with seven blocks in all; {_OPTIONS}",
        curriculum="linear",
    ),
    "marble-run": Entry(
        _CONSTRUCTION + "marble_run", f"build so that a marble reaches the goal; {_OPTIONS}",
        curriculum="adaptive",
    ),
}  # fmt: skip


FAMILIES = {
    "gym/ID": "an environment of Gymnasium that can be copied",
    "atari/GAME": "an Atari game, for agents that learn from frames; option: max_frames",
}


def _factory(env: str) -> Any:
    """Import `package.module:factory`."""
    module_name, _, name = env.partition(":")
    try:
        module = importlib.import_module(module_name)
    except MissingExtra:
        raise
    except ImportError as error:
        raise InputError(f"ENV: '{module_name}' can't be imported ({error}).") from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise InputError(f"ENV: module '{module_name}' has no '{name}'.") from None


def make_all(env: str, seeds: Sequence[int], **options: Any) -> list[Simulator]:
    """Build an environment for every seed.

    A factory that takes `seed` draws from it, so that every seed has an environment of its own;
    from any other factory they all share one.
    """
    family = next((prefix for prefix in _FAMILIES if env.startswith(prefix)), None)
    if family is not None:
        factory: Any = partial(_factory(_FAMILIES[family]), env.removeprefix(family))
    elif env not in ENVIRONMENTS and ":" not in env:
        raise unknown_name("environment", env, [*ENVIRONMENTS, *FAMILIES], "ENV")
    else:
        factory = _factory(ENVIRONMENTS[env].factory if env in ENVIRONMENTS else env)
    parameters = inspect.signature(factory).parameters
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if "seed" in options:
        raise InputError(SEED_IS_NO_OPTION)
    for name in options:
        if name not in parameters and not anything:
            raise unknown_name("option", name, set(parameters) - {"seed"}, "--env-options")
    if "seed" in parameters:
        return [factory(seed=seed, **options) for seed in seeds]
    return [factory(**options)] * len(seeds)


def make(env: str, seed: int = 0, **options: Any) -> Simulator:
    """Build an environment by name or `package.module:factory`."""
    return make_all(env, (seed,), **options)[0]


def simulator_name(env: str) -> str:
    """The name of an environment's twin for Python programs, if it is in JAX and has one."""
    entry = ENVIRONMENTS.get(env)
    return entry.simulator if entry and entry.simulator else env


def make_simulator(env: str, seed: int = 0, **options: Any) -> Simulator:
    """Build an environment as a simulator for Python programs: NumPy in, NumPy out."""
    return make(simulator_name(env), seed, **options)


def runs_on_host(env: Simulator, name: str) -> bool:
    """Whether an environment is a simulator for Python; false for one that is written in JAX.

    Refuses what is neither, in one sentence, before any work.
    """
    for method in ("num_actions", "reset", "step", "observe"):
        if not hasattr(env, method):
            raise InputError(f"ENV: '{name}' has no '{method}'; an environment needs it.")
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name].simulator is None
    if name.startswith(tuple(_FAMILIES)):
        return True
    not_jax = _jax_problem(env, name)
    if not_jax is None:
        return False
    try:
        shown = (state := env.reset(0), env.observe(state))
    except Exception as error:
        raise InputError(
            f"ENV: '{name}' is neither a JAX environment ({_first_line(not_jax)}) nor a simulator "
            f"for Python ({_first_line(error)}); see save-rl check {name}."
        ) from error
    import jax

    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(shown)):
        raise InputError(f"ENV: '{name}' is not a JAX environment ({_first_line(not_jax)}).")
    return True


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _jax_problem(env: Simulator, name: str) -> Exception | None:
    """Why an environment can't be traced by JAX; None if it can.

    What can be traced, but does not fit together, is refused.
    """
    import jax
    import jax.numpy as jnp

    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    try:
        state = jax.eval_shape(env.reset, key)
        action = jax.ShapeDtypeStruct((), jnp.int32)
        after, reward, terminated, truncated = jax.eval_shape(env.step, state, action)
        observation = jax.eval_shape(env.observe, state)
    except Exception as error:
        return error

    def kinds(tree: Any) -> Any:
        return jax.tree.map(lambda x: (x.shape, x.dtype), tree)

    if kinds(after) != kinds(state):
        raise InputError(f"ENV: '{name}'.step changes the structure, shapes or types of the state.")
    for what, value in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
        if value.shape != ():
            raise InputError(
                f"ENV: '{name}'.step returns a {what} of shape {value.shape}, not a single number."
            )
        if what != "reward" and value.dtype != jnp.bool_:
            raise InputError(
                f"ENV: '{name}'.step returns a {what} of type {value.dtype}, not a truth value."
            )
    if not hasattr(observation, "shape"):
        raise InputError(f"ENV: '{name}'.observe must return a single array.")
    return None
