"""The interface of a simulator; JAX environments are wrapped to have the same."""

import sys
from contextlib import suppress
from typing import Any

import numpy as np

from save_rl.envs.chance import claim_problem, is_stochastic
from save_rl.envs.check.messages import cause, kind, shown
from save_rl.envs.check.probe import Probe, Wrong
from save_rl.envs.layout import MOST_ACTIONS
from save_rl.envs.watchdog import WATCHDOG

_REQUIRED = ("reset", "step", "observe")
_OPTIONAL = ("action_mask", "render", "save_state", "load_state")


def look_at_names(probe: Probe, seed: int) -> None:
    """Check attributes and methods; wrap a JAX environment of the probe as a simulator."""
    simulator = probe.simulator
    if isinstance(simulator, type):
        name = simulator.__name__
        raise Wrong("interface", f"This is the class {name}; check one that is made: {name}().")
    try:
        missing = [name for name in ("num_actions", *_REQUIRED) if not hasattr(simulator, name)]
    except Exception as error:
        raise Wrong("interface", f"Looking at its attributes raised {cause(error)}.") from error
    if missing:
        hint = " It is a function: check what it returns." if callable(simulator) else ""
        text = f"There is no {' and no '.join(missing)} in this {type(simulator).__name__}.{hint}"
        raise Wrong("interface", text)
    present = [name for name in _OPTIONAL if probe.has(name)]
    for name in (*_REQUIRED, *present):
        if not callable(value := getattr(simulator, name)):
            raise Wrong("interface", f"{name} must be a method, not {shown(value)}.")
    for name, other in (("save_state", "load_state"), ("load_state", "save_state")):
        if name in present and other not in present:
            raise Wrong("interface", f"There is {name} but no {other}: have both, or neither.")
    number = simulator.num_actions
    if not isinstance(number, int | np.integer) or isinstance(number, bool) or number < 1:
        hint = " Make it an attribute or a @property." if callable(number) else ""
        text = f"num_actions must be a whole number, at least 1, not {shown(number)}.{hint}"
        raise Wrong("interface", text)
    if number > MOST_ACTIONS:
        raise Wrong("interface", f"num_actions must be at most {MOST_ACTIONS}, not {number}.")
    if problem := claim_problem(simulator):
        raise Wrong("interface", problem)
    probe.simulator = _for_python(probe, simulator, seed)
    what = "simulator" if probe.simulator is simulator else "JAX environment"
    text = f"a {what} of {number} actions, with {', '.join([*_REQUIRED, *present])}"
    absent = [name for name in _OPTIONAL if name not in present]
    without = f", without {', '.join(absent)} (optional)" if absent else ""
    probe.found("interface", "ok", text + without)


def _for_python(probe: Probe, simulator: Any, seed: int) -> Any:
    """Return the simulator itself, or a JAX environment wrapped in `FromJax`.

    An environment that can be traced is one of JAX, unless a plain seed gives a state without JAX
    arrays.
    """
    state, takes_seeds = None, False
    with suppress(Exception, SystemExit), WATCHDOG:
        state, takes_seeds = simulator.reset(seed), True
    if "jax" not in sys.modules:
        return simulator
    import jax

    if takes_seeds and not any(isinstance(x, jax.Array) for x in jax.tree.leaves(state)):
        return simulator
    name, shapes = "reset", {}
    try:
        state = jax.eval_shape(simulator.reset, jax.random.PRNGKey(seed))
        action = jax.ShapeDtypeStruct((), np.int32)
        luck = (jax.random.PRNGKey(seed),) if is_stochastic(simulator) else ()
        for name, *more in (("step", action, *luck), ("observe",), ("action_mask",)):
            if probe.has(name):
                shapes[name] = jax.eval_shape(getattr(simulator, name), state, *more)
    except (Exception, SystemExit) as error:
        if takes_seeds or name == "reset":
            return simulator
        text = f"reset takes a JAX key, but jax.jit can't compile {name}: {cause(error)}."
        hint = f"Write {name} in jax.numpy, or let reset take a whole number."
        raise Wrong("interface", f"{text} {hint}") from error
    result, before = shapes["step"], jax.tree.map(kind, state)
    after = jax.tree.map(kind, result[0]) if isinstance(result, tuple) else before
    if after != before:
        text = "step must keep the structure, shapes and types of the state, or JAX can't loop"
        probe.found("step", "wrong", text, f": it makes {after} of {before}.")
    from save_rl.envs.from_jax import FromJax

    return FromJax(simulator)
