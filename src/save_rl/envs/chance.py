"""Simulators with chance: `stochastic` is true, and `step(state, action, seed)` takes its luck.

The seed is a whole number from 0 to 2**31 - 1, in a JAX environment a key. The same seed gives the
same outcome, so a step is still a pure function, and whoever calls it decides about luck.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

from save_rl.errors import InputError
from save_rl.types import Simulator

MOST_LUCK = 2**31  # seeds of steps are below
OPTION = "stochastic"


def is_stochastic(simulator: Any) -> bool:
    """Test whether a simulator says that its steps take a seed."""
    return bool(getattr(simulator, OPTION, False))


def lucky_step(simulator: Any) -> Callable[[Any, Any, Any], tuple[Any, Any, Any, Any]]:
    """Return `step(state, action, luck)` of any simulator; without chance, luck makes no
    difference."""
    if is_stochastic(simulator):
        return simulator.step
    return lambda state, action, luck: simulator.step(state, action)


def step_arguments(simulator: Any) -> tuple[int, float]:
    """Return the least and the most arguments that `step` takes; unknown is anything."""
    try:
        parameters = inspect.signature(simulator.step).parameters.values()
    except (TypeError, ValueError):
        return 0, float("inf")
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    anything = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    least = sum(p.default is p.empty for p in places)
    return least, float("inf") if anything else len(places)


def claim_problem(simulator: Any) -> str:
    """Return what is wrong with what a simulator says about chance, in a sentence; '' if nothing.

    `stochastic` must be true or false, and `step` take a seed if it is true, none if it is not.
    """
    said = getattr(simulator, OPTION, False)
    if type(said).__name__ not in ("bool", "bool_"):
        return f"stochastic is {str(said)[:40]!r}; it must be True or False."
    least, most = step_arguments(simulator)
    if said and most < 3:
        return (
            f"stochastic is True, but step takes {most:.0f} arguments; with chance it must be "
            "step(state, action, seed)."
        )
    if not said and least > 2:
        return (
            f"step needs {least} arguments; if the third is a seed, for chance, say "
            "stochastic = True in the simulator, or --stochastic true."
        )
    return ""


class WithChance:
    """A simulator that does not say itself that its `step` takes a seed; see `with_chance`."""

    stochastic = True

    def __init__(self, simulator: Any):
        self.simulator = simulator

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "simulator":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.simulator, name)


def with_chance(simulator: Simulator, said: bool) -> Simulator:
    """Return a simulator for which the user has said `--stochastic`."""
    if is_stochastic(simulator) and not said:
        raise InputError(
            "--stochastic: false is not possible here: the simulator says that its step takes a "
            "seed; leave it out."
        )
    if is_stochastic(simulator) or not said:
        return simulator
    if step_arguments(simulator)[1] < 3:
        raise InputError(
            "--stochastic: true is not possible here: with chance, step must take a seed, "
            "step(state, action, seed)."
        )
    _register()
    return WithChance(simulator)  # pyright: ignore[reportReturnType]


def _register() -> None:
    """Make `WithChance` a pytree, for JAX environments; workers have no JAX."""
    jax = sys.modules.get("jax")
    if jax is None or getattr(WithChance, "_is_pytree", False):
        return
    WithChance._is_pytree = True  # pyright: ignore[reportAttributeAccessIssue]
    jax.tree_util.register_pytree_node(
        WithChance, lambda one: ((one.simulator,), None), lambda _, inside: WithChance(*inside)
    )
