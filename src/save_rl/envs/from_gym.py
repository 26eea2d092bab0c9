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

import difflib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from save_rl.envs.gym_generators import seeded
from save_rl.envs.gym_spaces import observation_parts
from save_rl.envs.gym_states import CopiedEnv, SharedEnv, first_line, own_pair
from save_rl.errors import InputError

# Random steps to find out whether an environment has chance.
_TRIED_EPISODES, _TRIED_STEPS, _TRIED_SEEDS = 3, 30, 8


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
        self._parts, self._size = observation_parts(getattr(env, "observation_space", None))
        self._flat = flatten
        bare, self._limit = _peel(env)
        pair = own_pair(bare)
        self._keeper = SharedEnv(bare, *pair) if pair else CopiedEnv(bare)
        if env.render_mode == "rgb_array":
            self.render = self._render
        self.stochastic = self._is_stochastic() if stochastic is None else stochastic

    def compile_ahead(self) -> None:
        """Compile, or load, what steps with a seed need."""
        if self.stochastic:
            seeded(0)

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
                flat[part.hot + value if type(value) is int else part.hot + np.ravel(value)] = 1
            else:
                flat[part.place] = np.ravel(value)
                if part.scale != 1:
                    flat[part.place] /= part.scale
        flat.setflags(write=False)
        return flat


def _peel(env: gymnasium.Env) -> tuple[gymnasium.Env, float]:
    """Remove the wrappers of `gymnasium.make`; return their limit of steps too."""
    limit = math.inf
    while type(env) in (TimeLimit, OrderEnforcing, PassiveEnvChecker):
        if isinstance(env, TimeLimit):
            limit = min(limit, env._max_episode_steps)
        env = env.env  # pyright: ignore[reportAttributeAccessIssue]
    return env, limit


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
            f"ENV: '{id}' can't be made{options_given} ({first_line(error)})."
        ) from error
    return from_gymnasium(lambda: env, stochastic=stochastic, flatten=flatten)
