"""Shared by the adapters of suites: imports, refusals, options, and the test for chance."""

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from save_rl.errors import InputError, MissingExtra, unknown_name

LONGEST = 10_000
"""Longest test episode where a suite has no time limit."""
MINATAR_ACTIONS = ("nothing", "left", "up", "right", "down", "fire")
"""All actions of MinAtar; most games use some of them."""
_NOT_FROM_HERE = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def load_suite(name: str) -> Any:
    """Import a suite; raise MissingExtra, with the pip command, if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        lacks = "" if error.name in (None, name) else f" (there is no '{error.name}')"
        raise MissingExtra(
            f"the environments of {name} need the package {name}{lacks}; install it with: "
            f"pip install 'save-rl[{name}]'."
        ) from error


def find(suite: str, id: str, known: Iterable[str]) -> str:
    """Return an id if the suite has it; raise InputError with the nearest one otherwise."""
    known = set(known)
    if id not in known:
        raise unknown_name(f"environment of {suite}", id, known, "ENV")
    return id


def refuse(suite: str, id: str, why: str) -> InputError:
    """Return the error for an environment that can't be played; `why` continues its name."""
    return InputError(f"ENV: '{suite}/{id}' {why}.")


def make_with_data(suite: str, id: str, downloads: str, maker: Callable[[], Any]) -> Any:
    """Call a maker that may download data; say in one sentence that it did, if it fails.

    downloads: of `NEEDS_DOWNLOAD`; '' for other environments, whose errors pass through.
    """
    try:
        return maker()
    except Exception as error:
        if not downloads:
            raise
        why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise refuse(suite, id, f"{downloads}, and that failed ({why})") from error


def simple_options(maker: Callable[..., Any]) -> set[str]:
    """Return the parameters of a class that can be set to a number, a truth value or a text."""
    return {
        name
        for name, parameter in inspect.signature(maker).parameters.items()
        if parameter.kind not in _NOT_FROM_HERE
        and isinstance(parameter.default, bool | int | float | str | None)
        and not _is_object(parameter.annotation)
    }


def _is_object(annotation: Any) -> bool:
    """Test whether a parameter takes an object, such as a generator of levels."""
    text = annotation if isinstance(annotation, str) else str(annotation)
    return any(word in text for word in ("Generator", "RewardFn", "Reward", "Viewer", "Callable"))


def check_options(options: dict[str, Any], known: Iterable[str]) -> None:
    """Refuse options that an environment does not have."""
    known = set(known)
    for name in options:
        if name not in known:
            raise unknown_name("option", name, known, "--env-options")


def fields_of(record: Any) -> set[str]:
    """Return the names of a dataclass's fields."""
    return {field.name for field in dataclasses.fields(record)}


def as_arrays(tree: Any) -> Any:
    """Return a pytree with every Python number replaced by an array."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), tree)


def key_shape() -> Any:
    """Return shape and dtype of a JAX key."""
    return jax.eval_shape(lambda: jax.random.PRNGKey(0))


def next_luck(state_key: Any, given: Any) -> tuple[Any, Any]:
    """Return the key for the state after a step, and the key that draws the step's outcome.

    state_key: of the state before; None without chance, where any key will do. given: to `step`.
    """
    later, luck = (
        (None, jax.random.PRNGKey(0)) if state_key is None else jax.random.split(state_key)
    )
    return later, luck if given is None else given


def has_chance(step: Callable[..., Any], *arguments: Any) -> bool:
    """Test whether the results of `step(*arguments, key)` can depend on the key.

    Follows the key through the traced program: false means that no result is computed from it.
    """
    traced = jax.make_jaxpr(step)(*arguments, key_shape())
    inputs = [False] * len(jax.tree.leaves(arguments)) + [True]
    return any(_reached(traced.jaxpr, inputs))


def _reached(jaxpr: Any, inputs: Sequence[bool]) -> list[bool]:
    """Return which outputs of a traced program are computed from these of its inputs."""
    reached = {var for var, is_reached in zip(jaxpr.invars, inputs, strict=True) if is_reached}

    def known(var: Any) -> bool:
        return not isinstance(var, Literal) and var in reached

    for equation in jaxpr.eqns:
        inside = [known(var) for var in equation.invars]
        if any(inside):
            results = _reached_by(equation, inside)
            reached.update(v for v, is_reached in zip(equation.outvars, results, strict=True)
                           if is_reached)  # fmt: skip
    return [known(var) for var in jaxpr.outvars]


def _reached_by(equation: Any, inputs: Sequence[bool]) -> list[bool]:
    """Return the same for one operation; one that is not looked into passes everything on."""
    branches = equation.params.get("branches")
    if branches is not None and not inputs[0]:  # of a condition that is known
        found = [_reached(branch.jaxpr, inputs[1:]) for branch in branches]
        return [any(column) for column in zip(*found, strict=True)]
    if equation.primitive.name in ("jit", "pjit", "closed_call"):
        return _reached(equation.params["jaxpr"].jaxpr, inputs)
    return [True] * len(equation.outvars)
