"""The network and the optimiser of a run, from its settings."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from save_rl.agents import get_agent
from save_rl.envs import find_factory
from save_rl.envs.check.messages import cause, kind, shown
from save_rl.errors import InputError
from save_rl.learning import sequence_replay
from save_rl.networks import network_maker
from save_rl.training.memory import shown_observation
from save_rl.training.settings import TrainSettings
from save_rl.types import Simulator

_COPIES = 5  # of the parameters: network, target, gradient, two moments of Adam


def maker_of(settings: TrainSettings, observation: Any, env: Simulator) -> Callable[[Any], Any]:
    """Return a function that maps a JAX key to a new network of these settings.

    observation: an example, or its shapes and dtypes.
    """
    policy = get_agent(settings.agent).has_policy
    sizes = settings.network_settings
    return network_maker(
        settings.network, observation, env, policy, settings.mixed_precision,
        sizes.hidden, sizes.filters,
    )  # fmt: skip


def has_own_parts(settings: TrainSettings) -> bool:
    """Test whether the network or the optimiser is somebody's own."""
    return ":" in settings.network or ":" in settings.optimizer


def require_network_memory(settings: TrainSettings, env: Any, on_host: bool) -> None:
    """Refuse a network that needs more memory than this machine has."""
    if get_agent(settings.agent).recurrent or ":" in settings.network:
        return  # layers of a fixed size; or a network that is made to check it
    make = maker_of(settings, shown_observation(env, on_host), env)
    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    arrays = jax.tree.leaves(jax.eval_shape(make, key))
    needed, memory = (
        _COPIES * sum(4 * x.size for x in arrays) * len(settings.seeds),
        sequence_replay.machine_memory(),
    )
    if needed > memory:
        sizes = settings.network_settings
        name, widths = ("hidden", sizes.hidden) if sizes.hidden else ("filters", sizes.filters)
        raise InputError(
            f"--network.{name}: {' '.join(map(str, widths))} needs about {needed / 2**30:,.0f} GiB "
            f"here, and this machine has {memory / 2**30:.1f}; give smaller ones."
        )


def make_optimizer(name: str, learning_rate: float, params: Any) -> Any:
    """Return an optax optimiser: 'adam', or that of the factory at `package.module:factory`.

    params: the parameters to learn. Raises InputError if the factory or its optimiser can't be
    used.
    """
    if name == "adam":
        return optax.adam(learning_rate)  # paper A.1, TensorFlow's defaults
    factory = find_factory(name, "--optimizer", ("learning_rate",))

    def wrong(what: str) -> InputError:
        return InputError(f"--optimizer: '{name}' {what}.")

    try:
        made = factory(learning_rate)
    except (Exception, SystemExit) as error:
        raise wrong(f"can't make an optimizer: {cause(error)}") from error
    if not all(callable(getattr(made, method, None)) for method in ("init", "update")):
        raise wrong(f"returned {shown(made)}, not an optax.GradientTransformation")

    def step(params: Any) -> Any:
        state = made.init(params)
        changes, after = made.update(jax.tree.map(jnp.ones_like, params), state, params)
        return optax.apply_updates(params, changes), state, after

    try:
        moved, state, after = jax.eval_shape(step, params)
        _require_same(wrong, "the parameters", moved, params)
        _require_same(wrong, "its state", after, state)
        moved = jax.jit(step)(params)[0]
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise wrong(f"made an optimizer that fails: {cause(error)}") from error
    if not all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(moved)):
        raise wrong("made an optimizer whose first update is not finite")
    return made


def _require_same(wrong: Callable[[str], InputError], what: str, new: Any, old: Any) -> None:
    """Refuse an update that changes the structure, shapes or types of arrays."""
    structures = jax.tree.structure(new), jax.tree.structure(old)
    same = structures[0] == structures[1] and all(
        kind(a) == kind(b) for a, b in zip(*map(jax.tree.leaves, (new, old)), strict=True)
    )
    if not same:
        raise wrong(f"made an optimizer that changes the structure, shapes or types of {what}")
