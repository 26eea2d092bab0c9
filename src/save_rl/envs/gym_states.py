"""States of Gymnasium environments: what an environment saved of itself, or a copy of it.

`SharedEnv` and `CopiedEnv` have the same methods. A *core* is what a state holds: `reset` and
`step` return one, `step`, `render` and `random_state` take one.
"""

import copyreg
import functools
import inspect
import itertools
from collections.abc import Callable
from copy import deepcopy
from types import BuiltinFunctionType, FunctionType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle
from gymnasium.wrappers import PassiveEnvChecker

from save_rl.envs.gym_generators import copied, seeded
from save_rl.envs.gym_spaces import NESTED, NUMBERS, ONE_HOT, spaces_inside
from save_rl.errors import InputError

_PAIRS = (("clone_state", "restore_state"), ("get_state", "set_state"))
# Constant tables of Gymnasium's tabular environments: the slowest part to copy.
_TABLES = ("P", "desc", "initial_state_distrib", "locs", "locs_colors")
_SPACE_NAMES = ("observation_space", "action_space")
# Types of values that can't change; `deepcopy` copies none of them.
_UNCHANGING = {
    type(None), bool, int, float, complex, str, bytes, type, FunctionType, BuiltinFunctionType,
    np.bool_, np.int32, np.int64, np.float32, np.float64,
}  # fmt: skip


def own_pair(env: gymnasium.Env) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
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


class SharedEnv:
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
            self._set_random(seeded(seed).state)
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


class CopiedEnv:
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
            for one in inside:
                if one._np_random is not None:
                    break
            else:
                memo[id(space)] = space
        old = getattr(env.unwrapped, "_np_random", None)
        if seed is None:
            new = copied(old, self._spawns)
        else:
            bits = np.random.PCG64(seed) if self._spawns else seeded(seed)
            new = np.random.Generator(bits)
        if isinstance(old, np.random.Generator):
            memo[id(old)] = new  # for every reference to it
        try:
            copy = _copy_attributes(env, memo) if self._usual else deepcopy(env, memo)
        except Exception as error:
            raise self._refusal(first_line(error)) from error
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
    if type(space) not in NUMBERS + ONE_HOT + NESTED:
        return []
    inside = [_known(inner) for _, inner in spaces_inside(space)]
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


def _copy_attributes(thing: Any, memo: dict[int, Any]) -> Any:
    """Return what `deepcopy` returns for an object of a usual class, many times as fast."""
    copy = object.__new__(type(thing))
    memo[id(thing)] = copy
    old, new = vars(thing), vars(copy)
    new.update(old)
    for name in _may_change(tuple(old), tuple(map(type, old.values()))):
        value = old[name]
        new[name] = memo[id(value)] if id(value) in memo else _copy_value(value, memo)
    return copy


@functools.lru_cache(maxsize=256)
def _may_change(names: tuple[str, ...], kinds: tuple[type, ...]) -> list[str]:
    """Return the names of attributes whose types are not those of values that can't change."""
    return [name for name, kind in zip(names, kinds, strict=True) if kind not in _UNCHANGING]


def _copy_value(value: Any, memo: dict[int, Any]) -> Any:
    """Return what `deepcopy` returns for a value that is not in `memo`; faster for some types."""
    kind = type(value)
    if kind is tuple and _UNCHANGING.issuperset(map(type, value)):
        return value
    if kind is np.ndarray and not value.dtype.hasobject:
        copy = memo[id(value)] = value.copy(order="K")
        return copy
    return deepcopy(value, memo)


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
