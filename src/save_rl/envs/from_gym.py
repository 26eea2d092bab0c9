"""Turns Gymnasium environments with `Discrete` actions into pure simulators.

    simulator = from_gymnasium(lambda: gymnasium.make("CartPole-v1"))
    state = simulator.reset(seed=0)
    state, reward, terminated, truncated = simulator.step(state, 1)

An environment that can save and restore itself (`clone_state` and `restore_state`, or `get_state`
and `set_state`) and has no wrappers but those of `gymnasium.make` exists once, and a state holds
what it saved. For any other environment, a state holds a copy of it, and each step makes another
copy: the larger the environment, the slower. For an environment with large tables, the two methods
are worth writing.
"""

import copyreg
import difflib
import functools
import inspect
import itertools
import math
from collections.abc import Callable
from copy import deepcopy
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import EzPickle
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from save_rl.errors import InputError, require

_PAIRS = (("clone_state", "restore_state"), ("get_state", "set_state"))
# Constant tables of Gymnasium's tabular environments: the slowest part to copy.
_TABLES = ("P", "desc", "initial_state_distrib")
_NUMBERS = (spaces.Box, spaces.MultiBinary)
_ONE_HOT = (spaces.Discrete, spaces.MultiDiscrete)
_NESTED = (spaces.Dict, spaces.Tuple)
# Random steps to find out whether an environment has chance.
_TRIED_EPISODES, _TRIED_STEPS, _TRIED_SEEDS = 3, 30, 8
_SPACE_NAMES = ("observation_space", "action_space")
# Types of values that can't change; `deepcopy` copies none of them.
_UNCHANGING = {
    type(None), bool, int, float, complex, str, bytes, type, FunctionType, BuiltinFunctionType,
    np.bool_, np.int32, np.int64, np.float32, np.float64,
}  # fmt: skip


class GymState(NamedTuple):
    """A moment of an episode.

    core: the environment at that moment, or its saved state.
    elapsed: steps since the episode began.
    observation: `[size]` float32, read only.
    """

    core: Any
    elapsed: int
    observation: np.ndarray


class GymSimulator:
    """A Gymnasium environment as a simulator; made by `from_gymnasium`.

    It has `render(state)` if the environment renders arrays (`render_mode="rgb_array"`). If it is
    `stochastic`, `step` takes a seed.
    """

    def __init__(self, env: gymnasium.Env, stochastic: bool | None, flatten: bool = True):
        actions = getattr(env, "action_space", None)
        if not isinstance(actions, spaces.Discrete):
            raise InputError(
                f"ENV: the action space {actions} is not possible; it must be Discrete."
            )
        self.num_actions = int(actions.n)
        self._first_action = int(actions.start)
        self._parts, self._size = _layout(getattr(env, "observation_space", None))
        self._flat = flatten
        bare, self._limit = _peel(env)
        pair = _own_pair(bare)
        self._keeper = _Shared(bare, *pair) if pair else _Copied(bare)
        if env.render_mode == "rgb_array":
            self.render = self._render
        self.stochastic = self._is_stochastic() if stochastic is None else stochastic

    def reset(self, seed: int) -> GymState:
        core, observation = self._keeper.reset(int(seed))
        return GymState(core, 0, self._flatten(observation))

    def observe(self, state: GymState) -> Any:
        """Return `[size]` float32, ordered as by `spaces.flatten`; bytes scaled to 0-1.

        Not flattened, the parts have their own shapes: an array, or a dictionary of the arrays in a
        `Dict` or `Tuple`, named by their keys with '/' between.
        """
        if self._flat:
            return state.observation
        seen = {
            "/".join(map(str, part.path)): state.observation[part.place].reshape(part.shape)
            for part in self._parts
        }
        return seen[""] if list(seen) == [""] else seen

    def step(
        self, state: GymState, action: int, seed: int | None = None
    ) -> tuple[GymState, float, bool, bool]:
        """Step with a new random generator from `seed`, which the new state keeps.

        It replaces `np_random`; other random sources of the environment stay as they are. Without
        a seed, step with the environment's own next random numbers.
        """
        core, result = self._keeper.step(state.core, self._first_action + int(action), seed)
        observation, reward, terminated, truncated, _ = result
        elapsed = state.elapsed + 1
        after = GymState(core, elapsed, self._flatten(observation))
        return after, float(reward), bool(terminated), bool(truncated or elapsed >= self._limit)

    def _render(self, state: GymState) -> np.ndarray:
        return np.asarray(self._keeper.render(state.core))

    def _is_stochastic(self) -> bool:
        """Play a few random steps; return true if one of them depends on the generator."""
        rng = np.random.default_rng(0)
        for seed in range(_TRIED_EPISODES):
            state = self.reset(seed)
            for _ in range(_TRIED_STEPS):
                action = int(rng.integers(self.num_actions))
                try:
                    after, *result = self.step(state, action)
                    if self._drew(state, after) and self._differs(state, action, after, result):
                        return True
                except Exception:  # not possible here; `check` is for faults
                    continue
                state = after
                if result[1] or result[2]:
                    break
        return False

    def _drew(self, state: GymState, after: GymState) -> bool:
        """Test whether a step used the generator: most environments with chance do so always."""
        before, now = (self._keeper.random_state(x.core) for x in (state, after))
        return before != now

    def _differs(self, state: GymState, action: int, after: GymState, result: list[Any]) -> bool:
        for seed in range(_TRIED_SEEDS):
            other, *other_result = self.step(state, action, seed)
            if other_result != result or np.any(other.observation != after.observation):
                return True
        return False

    def _flatten(self, observation: Any) -> np.ndarray:
        flat = np.zeros(self._size, np.float32)
        for part in self._parts:
            value = observation
            for key in part.path:
                value = value[key]
            if part.hot is not None:
                flat[part.hot + np.ravel(value)] = 1
            else:
                flat[part.place] = np.ravel(value)
                if part.scale != 1:
                    flat[part.place] /= part.scale
        flat.setflags(write=False)
        return flat


class _Part(NamedTuple):
    """A part of an observation: numbers go to `place`, a category sets index `hot + value`.

    path: its keys in nested dictionaries and tuples. shape: as it is not flattened.
    """

    path: tuple[Any, ...]
    place: slice
    shape: tuple[int, ...]
    scale: int = 1
    hot: Any = None


def _layout(space: Any, path: tuple[Any, ...] = (), begin: int = 0) -> tuple[list[_Part], int]:
    """Return the parts of an observation and the index after the last."""
    if isinstance(space, _NESTED):
        parts: list[_Part] = []
        for key, inner in _inside(space):
            more, begin = _layout(inner, (*path, key), begin)
            parts += more
        return parts, begin
    require(
        isinstance(space, _NUMBERS + _ONE_HOT),
        "ENV",
        f"an observation space of {type(space).__name__}",
        "Box, Discrete, MultiBinary, MultiDiscrete, or a Dict or Tuple of these",
    )
    end = begin + spaces.flatdim(space)
    place = slice(begin, end)
    if isinstance(space, _NUMBERS):
        image = isinstance(space, spaces.Box) and space.dtype == np.uint8
        return [_Part(path, place, space.shape, scale=255 if image else 1)], end
    sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
    hot = begin + np.cumsum(sizes) - sizes - np.ravel(space.start)
    return [_Part(path, place, (-1,), hot=hot.astype(np.int64))], end


def _inside(space: Any) -> list[tuple[Any, Any]]:
    """Return the keys and spaces directly inside a dictionary or tuple of spaces."""
    inner = space.spaces if isinstance(space, _NESTED) else ()
    return list(inner.items() if isinstance(inner, dict) else enumerate(inner))


def _peel(env: gymnasium.Env) -> tuple[gymnasium.Env, float]:
    """Remove the wrappers of `gymnasium.make`; return their limit of steps too."""
    limit = math.inf
    while type(env) in (TimeLimit, OrderEnforcing, PassiveEnvChecker):
        if isinstance(env, TimeLimit):
            limit = min(limit, env._max_episode_steps)
        env = env.env  # pyright: ignore[reportAttributeAccessIssue]
    return env, limit


def _own_pair(env: gymnasium.Env) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """Return the environment's own methods to save and restore itself, if it has both."""
    if env is not env.unwrapped:
        return None
    for names in _PAIRS:
        save, restore = (getattr(env, name, None) for name in names)
        if callable(save) and callable(restore) and (_needs(save), _needs(restore)) == (0, 1):
            # The Arcade Learning Environment saves its random state only on request.
            if "include_rng" in inspect.signature(save).parameters:
                save = functools.partial(save, include_rng=True)
            return save, restore
    return None


def _needs(function: Callable[..., Any]) -> int | None:
    """Return the number of required arguments of a function; None if it is unknown."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return None
    needed = [p.kind for p in parameters if p.default is p.empty and "VAR" not in p.kind.name]
    return None if inspect.Parameter.KEYWORD_ONLY in needed else len(needed)


class _Shared:
    """One environment for all states; a core is its saved state and its random state.

    Saved states are copied on save and on restore, so they may share arrays with the environment.
    """

    def __init__(self, env: gymnasium.Env, save: Callable[[], Any], restore: Callable[[Any], Any]):
        self._env, self._own_save, self._own_restore = env, save, restore
        try:
            self._new = self._save()
            self._restore(self._new)
        except Exception:  # some can be saved only after a reset
            env.reset(seed=0)
            self._new = self._save()

    def reset(self, seed: int) -> tuple[Any, Any]:
        self._restore(self._new)
        observation, _ = self._env.reset(seed=seed)
        return self._save(), observation

    def step(self, core: Any, action: int, seed: int | None) -> tuple[Any, Any]:
        self._restore(core)
        if seed is not None:
            self._set_random(np.random.PCG64(seed).state)
        result = self._env.step(action)
        return self._save(), result

    def render(self, core: Any) -> Any:
        self._restore(core)
        return self._env.render()

    def random_state(self, core: Any) -> Any:
        return core[1]

    def _save(self) -> tuple[Any, Any]:
        generator = self._env._np_random
        known = isinstance(generator, np.random.Generator)
        random = generator.bit_generator.state if known else None
        return _copy_saved(self._own_save()), random

    def _restore(self, core: tuple[Any, Any]) -> None:
        saved, random = core
        self._own_restore(_copy_saved(saved))
        self._set_random(random)

    def _set_random(self, random: Any) -> None:
        """Change the generator in place: other parts of the environment may refer to it."""
        generator = self._env._np_random
        if random is None:
            if isinstance(generator, np.random.Generator):
                self._env._np_random = None
            return
        kind = getattr(np.random, random["bit_generator"])
        if generator is None or type(generator.bit_generator) is not kind:
            generator = np.random.Generator(kind())
            self._env.np_random = generator
        generator.bit_generator.state = random


def _copy_saved(saved: Any) -> Any:
    """Return a copy of a saved state; one that can't be copied is assumed never to change."""
    try:
        return deepcopy(saved)
    except Exception:
        return saved


class _Copied:
    """One environment per state; only copies of it are stepped.

    Copies share constants: tables, and spaces that were never sampled from.
    """

    def __init__(self, env: gymnasium.Env):
        self._name = type(env.unwrapped).__name__
        self._constants: dict[int, Any] = {}
        self._spaces: list[tuple[Any, list[Any]]] = []  # each with all that are inside it
        self._usual = env is env.unwrapped and _is_usual(type(env))
        self._spawns = not type(env).__module__.startswith("gymnasium.envs.")
        layers = _layers(env)
        known = all(type(layer).__module__.startswith("gymnasium.") for layer in layers)
        for layer in layers:
            # EzPickle silently copies an environment in its first state.
            kind = type(layer)
            if kind.__getstate__ is EzPickle.__getstate__ and not hasattr(kind, "__deepcopy__"):
                raise self._refusal("EzPickle rebuilds it")
            names = ("spec", "_cached_spec", "metadata", "_metadata")
            if known and kind.__module__.startswith("gymnasium.envs.toy_text."):
                names += _TABLES
            found = [vars(layer)[name] for name in names if name in vars(layer)]
            self._constants |= {id(item): item for item in found}
            all_spaces = [getattr(layer, name, None) for name in _SPACE_NAMES]
            self._spaces += [(space, inside) for space in all_spaces if (inside := _known(space))]
        self._new = self._copy(env)
        for layer in _layers(self._new):  # else it checks again after every reset
            while isinstance(layer, gymnasium.Wrapper) and type(layer.env) is PassiveEnvChecker:
                layer.env = layer.env.env
        self._copy(self.reset(0)[0])  # refuses now what can't be copied after a reset

    def reset(self, seed: int) -> tuple[Any, Any]:
        env = self._copy(self._new)
        observation, _ = env.reset(seed=seed)
        return env, observation

    def step(self, core: gymnasium.Env, action: int, seed: int | None) -> tuple[Any, Any]:
        env = self._copy(core, seed)
        return env, env.step(action)

    def render(self, core: gymnasium.Env) -> Any:
        return self._copy(core).render()

    def random_state(self, core: gymnasium.Env) -> Any:
        generator = getattr(core.unwrapped, "_np_random", None)
        return generator.bit_generator.state if isinstance(generator, np.random.Generator) else None

    def _copy(self, env: gymnasium.Env, seed: int | None = None) -> gymnasium.Env:
        memo = self._constants.copy()
        for space, inside in self._spaces:
            if all(one._np_random is None for one in inside):
                memo[id(space)] = space
        old = getattr(env.unwrapped, "_np_random", None)
        if seed is None:
            new = _copy_generator(old, self._spawns)
        else:
            new = np.random.Generator(np.random.PCG64(seed))
        if isinstance(old, np.random.Generator):
            memo[id(old)] = new  # for every reference to it
        try:
            copy = _copy_attributes(env, memo) if self._usual else deepcopy(env, memo)
        except Exception as error:
            raise self._refusal(_first_line(error)) from error
        if seed is not None:
            copy.unwrapped.np_random = new
        return copy

    def _refusal(self, cause: str) -> InputError:
        return InputError(
            f"ENV: {self._name} can't be copied ({cause}); it needs clone_state and restore_state, "
            "and no wrappers but those of gymnasium.make."
        )


def _layers(env: gymnasium.Env) -> list[gymnasium.Env]:
    """Return the environment and those that it wraps, outermost first."""
    return [env, *_layers(env.env)] if isinstance(env, gymnasium.Wrapper) else [env]


def _known(space: Any) -> list[Any]:
    """Return a space and all inside it; nothing unless all are Gymnasium's own."""
    if type(space) not in _NUMBERS + _ONE_HOT + _NESTED:
        return []
    inside = [_known(inner) for _, inner in _inside(space)]
    return [space, *itertools.chain(*inside)] if all(inside) else []


def _is_usual(kind: type) -> bool:
    """Test whether `deepcopy` copies objects of a class attribute by attribute."""
    own = ("__deepcopy__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")
    usual = ("__new__", "__reduce__", "__reduce_ex__", "__getstate__")
    return (
        not any(hasattr(kind, name) for name in own)
        and all(getattr(kind, name) is getattr(object, name) for name in usual)
        and not any(vars(base).get("__slots__") for base in kind.__mro__)
        and kind not in copyreg.dispatch_table
    )


def _never_changes(value: Any) -> bool:
    kind = type(value)
    return kind in _UNCHANGING or (kind is tuple and _UNCHANGING.issuperset(map(type, value)))


def _copy_attributes(thing: Any, memo: dict[int, Any]) -> Any:
    """Return what `deepcopy` returns for an object of a usual class, several times as fast."""
    copy = object.__new__(type(thing))
    memo[id(thing)] = copy
    vars(copy).update(
        {
            name: value if _never_changes(value) else deepcopy(value, memo)
            for name, value in vars(thing).items()
        }
    )
    return copy


def _copy_generator(generator: Any, spawns: bool) -> Any:
    """Return a deep copy, in a third of the time for Gymnasium's own generators.

    spawns: false if nobody makes generators from this one; copies then share how it was seeded.
    """
    if type(generator) is np.random.Generator:
        old = generator.bit_generator
        seeded: Any = old.seed_seq
        if type(old) is np.random.PCG64 and type(seeded) is np.random.SeedSequence:
            new = np.random.PCG64(np.random.SeedSequence(**seeded.state) if spawns else seeded)
            new.state = old.state
            return np.random.Generator(new)
    return deepcopy(generator)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def from_gymnasium(
    factory: Callable[[], gymnasium.Env], *, stochastic: bool | None = None, flatten: bool = True
) -> GymSimulator:
    """Turn the environment that `factory` makes into a simulator.

    Actions must be `Discrete`. Observations become one vector, as in `gymnasium.spaces.flatten`:
    numbers as they are, categories one-hot, dictionaries and tuples concatenated; boxes of bytes
    (images), nested ones too, are divided by 255. Without `flatten`, images keep their shape and
    dictionaries stay dictionaries, for networks that fit them; see `GymSimulator.observe`.

    stochastic: `step` takes a seed, from which it makes a new generator. False: a state includes
    its random generator, and the same step from it has the same outcome, in a search and in the
    episode. By default a few random steps decide: true if one of them has another outcome with
    another generator (`np_random`). Other random sources, and rare chance, are not noticed.

    Gymnasium's passive checker is removed. A simulator is not thread-safe.
    """
    env = factory()
    if not isinstance(env, gymnasium.Env):
        raise InputError(
            f"ENV: the factory returned a {type(env).__name__}; it must return a gymnasium.Env."
        )
    return GymSimulator(env, stochastic, flatten)


def gym_simulator(
    id: str, *, stochastic: bool | None = None, flatten: bool = True, **options: Any
) -> GymSimulator:
    """Turn `gymnasium.make(id, **options)` into a simulator; see `from_gymnasium`."""
    if "reseed" in options:
        raise InputError(
            "--env-options: reseed is not possible; chance is found by itself, or give "
            "stochastic=true."
        )
    try:
        env = gymnasium.make(id, **{"disable_env_checker": True, **options})
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv):
        near = difflib.get_close_matches(id, gymnasium.registry, n=1, cutoff=0.4)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise InputError(f"ENV: Gymnasium has no environment '{id}'.{hint}") from None
    except InputError:
        raise
    except Exception as error:
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        options_given = f" with {given}" if given else ""
        raise InputError(
            f"ENV: '{id}' can't be made{options_given} ({_first_line(error)})."
        ) from error
    return from_gymnasium(lambda: env, stochastic=stochastic, flatten=flatten)
