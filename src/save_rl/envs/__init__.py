"""Environments by name, or your own by `package.module:factory`."""

import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from save_rl.envs.chance import OPTION, claim_problem, lucky_step, with_chance
from save_rl.errors import InputError, MissingExtra, require, unknown_name
from save_rl.types import Simulator


class Entry(NamedTuple):
    """A named environment.

    factory: its `package.module:factory`.
    summary: a line for lists.
    simulator: for a JAX environment, the factory of the same environment as a Python simulator.
    curriculum: the default curriculum; '' for an environment without levels.
    """

    factory: str
    summary: str
    simulator: str | None = None
    curriculum: str = ""


SEED_IS_NO_OPTION = "--env-options: seed is not possible here; --seed draws the environment."
# Families of environments: the name after the prefix is the factory's first argument.
GYM, ATARI = "gym/", "atari/"
HERE = "__main__"
"""Module in the names of factories that only the process which defines them can find."""
_FAMILIES = {
    GYM: "save_rl.envs.from_gym:gym_simulator",  # and a Gymnasium id
    ATARI: "save_rl.envs.atari:Atari",  # and a game
    "gymnax/": "save_rl.envs.suites.gymnax:Gymnax",
    "jumanji/": "save_rl.envs.suites.jumanji:Jumanji",
    "pgx/": "save_rl.envs.suites.pgx:Pgx",
}
SUITES = ("gymnax", "jumanji", "pgx")
"""Families of JAX environments."""
_SUITE_PREFIXES = tuple(f"{suite}/" for suite in SUITES)
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
    "gymnax/ID": "a JAX environment of gymnax: MinAtar, bsuite, classic control; see envs gymnax",
    "jumanji/ID": "a JAX environment of Jumanji: puzzles, packing, routing; see envs jumanji",
    "pgx/ID": "a JAX game of Pgx for one player; see envs pgx",
}


_made: set[str] = set()  # environments and factories that the user of this process asked for
_given: dict[str, Any] = {}  # factories that the user of this process gave, by name


def give_factory(name: str, factory: Any) -> None:
    """Have this process make the environment `name` with this factory, without an import."""
    _given[name] = factory


def imports(env: str) -> str:
    """Return the module that a name imports: of an environment, a network or an optimizer; '' for
    built-in ones."""
    if env in ENVIRONMENTS or env.startswith((ATARI, *_SUITE_PREFIXES)):
        return ""
    name = env.removeprefix(GYM)
    # Gymnasium's two adapters for OpenAI Gym import a module that is named in an option.
    through = env.startswith(GYM) and name.startswith(("GymV21", "GymV26"))
    return name.partition(":")[0] if ":" in name or through else ""


def require_trust(
    name: str, folder: object, trust: bool, option: str, what: str = "environment"
) -> None:
    """Refuse to run code that a run folder names, unless the user named it too or trusts it."""
    module = imports(name)
    if module and not trust and name not in _made:
        raise InputError(
            f"{option}: the run in '{folder}' would import and run code of '{module}' (its "
            f"{what} is '{name}'); add --trust (trust=True in Python) if you know it."
        )


def require_trust_in(
    settings: Any, folder: object, trust: bool, option: str, *, env: bool = True
) -> None:
    """Refuse to run code that the settings of a run folder name; see `require_trust`.

    env: the environment will be made by its name, too.
    """
    named = {"network": settings.network, "optimizer": settings.optimizer}
    for what, name in {**({"environment": settings.env} if env else {}), **named}.items():
        require_trust(name, folder, trust, option, what)


def _look_here_too() -> None:
    """Search the current folder for modules, after all other folders."""
    try:
        here = os.getcwd()
    except FileNotFoundError:  # deleted
        return
    if here not in sys.path:
        sys.path.append(here)


def _factory(address: str, option: str = "ENV") -> Any:
    """Import `package.module:factory`."""
    if address in _given:
        return _given[address]
    module_name, _, name = address.partition(":")
    if module_name == HERE and not hasattr(sys.modules[HERE], name):
        raise InputError(
            f"{option}: '{address}' was defined in a notebook, a prompt or a function of another "
            f"process; define it again, and give {name} itself to save_rl.train, or "
            f"simulator={name}() to save_rl.load."
        )
    try:
        module = importlib.import_module(module_name)
    except MissingExtra:
        raise
    except ImportError as error:
        raise InputError(f"{option}: '{module_name}' can't be imported ({error}).") from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise InputError(f"{option}: module '{module_name}' has no '{name}'.") from None


def find_factory(address: str, option: str, takes: Sequence[str]) -> Any:
    """Return the function or class at `package.module:factory`, for something that is not an
    environment; refuse one that can't be called with these arguments."""
    from save_rl.envs.check.messages import cause

    _look_here_too()
    try:
        factory = _factory(address, option)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # of the module's own code
        raise InputError(f"{option}: '{address}' can't be imported: {cause(error)}.") from error
    if callable(factory) is False:  # a form that keeps the type checker's Any
        raise InputError(f"{option}: '{address}' is not a function or class.")
    try:
        inspect.signature(factory).bind(*takes)
    except TypeError as error:
        raise InputError(
            f"{option}: '{address}' must take ({', '.join(takes)}): {error}."
        ) from None
    except ValueError:  # Python can't inspect it
        pass
    _made.add(address)
    return factory


def make_all(env: str, seeds: Sequence[int], **options: Any) -> list[Simulator]:
    """Build an environment for every seed.

    A factory that takes `seed` is called once per seed; from any other factory all seeds share one
    environment. The option `stochastic` says whether `step` takes a seed, for chance, unless it is
    an option of the factory's own; see `envs.chance`.
    """
    if imports(env):
        _look_here_too()
    try:
        made = _make_all(env, seeds, **options)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        from save_rl.envs.check.messages import cause

        raise InputError(f"ENV: '{env}' can't be made: {cause(error)}.") from error
    _made.add(env)
    return made


def _make_all(env: str, seeds: Sequence[int], **options: Any) -> list[Simulator]:
    family = next((prefix for prefix in _FAMILIES if env.startswith(prefix)), None)
    if family is not None:
        factory: Any = partial(_factory(_FAMILIES[family]), env.removeprefix(family))
    elif env not in ENVIRONMENTS and ":" not in env:
        raise unknown_name("environment", env, [*ENVIRONMENTS, *FAMILIES], "ENV")
    else:
        factory = _factory(ENVIRONMENTS[env].factory if env in ENVIRONMENTS else env)
    if callable(factory) is False:  # a form that keeps the type checker's Any
        raise InputError(f"ENV: '{env}' is not a function or class that makes an environment.")
    if "seed" in options:
        raise InputError(SEED_IS_NO_OPTION)
    parameters = _parameters(factory)
    said = options.pop(OPTION, None) if OPTION not in parameters else None
    require(said in (None, True, False), "--stochastic", said, "true or false")
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for name in options:
        if name not in parameters and not anything:
            raise unknown_name("option", name, set(parameters) - {"seed"}, "--env-options")
    if "seed" in parameters:
        made = [factory(seed=seed, **options) for seed in seeds]
    else:
        made = [factory(**options)] * len(seeds)
    if said is None:
        return made
    by_id = {id(one): with_chance(one, bool(said)) for one in made}
    return [by_id[id(one)] for one in made]


def _parameters(factory: Any) -> Any:
    """Return the parameters of a factory; none if Python can't inspect it."""
    try:
        return inspect.signature(factory).parameters
    except ValueError:
        return {}


def make(env: str, seed: int = 0, **options: Any) -> Simulator:
    """Build an environment by name or `package.module:factory`."""
    return make_all(env, (seed,), **options)[0]


def simulator_name(env: str) -> str:
    """Return the name of an environment's Python simulator: its own unless it is written in JAX."""
    entry = ENVIRONMENTS.get(env)
    return entry.simulator if entry and entry.simulator else env


def make_simulator(env: str, seed: int = 0, **options: Any) -> Simulator:
    """Build an environment as a Python simulator: NumPy in, NumPy out.

    A JAX environment without a simulator of its own is wrapped in `FromJax`.
    """
    made = make(simulator_name(env), seed, **options)
    if env in ENVIRONMENTS or env.startswith((GYM, ATARI)) or runs_on_host(made, env):
        return made
    from save_rl.envs.from_jax import FromJax

    return FromJax(made)


def runs_on_host(env: Simulator, name: str) -> bool:
    """Test whether an environment is a Python simulator; false for a JAX environment.

    Raises InputError for anything else, before any work.
    """
    from save_rl.envs.layout import Layout, number_of_actions

    for method in ("num_actions", "reset", "step", "observe"):
        if _attribute(env, method, name) is None:
            raise InputError(f"ENV: '{name}' has no '{method}'; an environment needs it.")
        if method != "num_actions" and not callable(getattr(env, method)):
            raise InputError(f"ENV: '{method}' of '{name}' is not a method.")
    number_of_actions(env)
    if problem := claim_problem(env):
        raise InputError(f"ENV: '{name}': {problem}")
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name].simulator is None
    if name.startswith(ATARI):
        return True
    not_jax = None if name.startswith(GYM) else _jax_problem(env, name)
    if not_jax is None and not name.startswith(GYM):
        return False
    try:
        shown = (state := env.reset(0), env.observe(state))
        if not _has_jax_arrays(shown):
            Layout.of(env)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        wrong = "is not"
        if not_jax is not None:
            wrong = f"is neither a JAX environment ({_first_line(not_jax)}) nor"
        raise InputError(
            f"ENV: '{name}' {wrong} a Python simulator ({_first_line(error)}); see save-rl "
            f"check {name}."
        ) from error
    if not_jax is not None and _has_jax_arrays(shown):
        raise InputError(f"ENV: '{name}' is not a JAX environment ({_first_line(not_jax)}).")
    return True


def _attribute(env: Any, name: str, env_name: str) -> Any:
    try:
        return getattr(env, name, None)
    except Exception as error:
        raise InputError(f"ENV: '{name}' of '{env_name}' raised {_first_line(error)}.") from error


def _has_jax_arrays(tree: Any) -> bool:
    import jax

    return any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(tree))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _is_number(dtype: Any) -> bool:
    """Test whether an array has real numbers or truth values; JAX keys and complex ones don't."""
    import jax.numpy as jnp

    return any(jnp.issubdtype(dtype, one) for one in (jnp.floating, jnp.integer, jnp.bool_))


def _jax_problem(env: Any, name: str) -> BaseException | None:
    """Return the error from tracing an environment with JAX; None if it can be traced.

    Raises InputError if its shapes or types do not fit together.
    """
    import jax
    import jax.numpy as jnp

    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    try:
        state = jax.eval_shape(env.reset, key)
        action = jax.ShapeDtypeStruct((), jnp.int32)
        result = jax.eval_shape(lucky_step(env), state, action, key)
        after, reward, terminated, truncated = result
        observation = jax.eval_shape(env.observe, state)
        has_mask = hasattr(env, "action_mask")
        mask = jax.eval_shape(env.action_mask, state) if has_mask else None
    except (Exception, SystemExit) as error:
        return error

    def kinds(tree: Any) -> Any:
        return jax.tree.map(lambda x: (x.shape, x.dtype), tree)

    if kinds(after) != kinds(state):
        raise InputError(f"ENV: '{name}'.step changes the structure, shapes or types of the state.")
    for what, value in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
        if not hasattr(value, "shape"):
            raise InputError(f"ENV: '{name}'.step must return a single number as the {what}.")
        if value.shape != ():
            raise InputError(
                f"ENV: '{name}'.step returns a {what} of shape {value.shape}, not a single number."
            )
        if what != "reward" and value.dtype != jnp.bool_:
            raise InputError(
                f"ENV: '{name}'.step returns a {what} of type {value.dtype}, not a truth value."
            )
    parts = jax.tree.leaves(observation)
    if not parts:
        raise InputError(f"ENV: '{name}'.observe returns no array.")
    for part in parts:
        if part.size == 0 or not _is_number(part.dtype):
            kind = f"{part.dtype} {list(part.shape)}"
            raise InputError(f"ENV: '{name}'.observe returns {kind}, which has no real numbers.")
    if mask is not None and (mask.shape, mask.dtype) != ((env.num_actions,), jnp.bool_):
        kind = f"{mask.dtype} {list(mask.shape)}"
        raise InputError(f"ENV: '{name}'.action_mask returns {kind}, not bool [{env.num_actions}].")
    return None
