"""gymnax (github.com/RobertTLange/gymnax): MinAtar, bsuite, classic control and more.

Options are the fields of an environment's parameters (`max_steps_in_episode`) and the arguments of
its class (`use_minimal_action_set`, `size`).
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from save_rl.envs.suites.common import (
    MINATAR_ACTIONS,
    as_arrays,
    check_options,
    fields_of,
    find,
    has_chance,
    key_shape,
    load_suite,
    make_with_data,
    next_luck,
    refuse,
    simple_options,
)
from save_rl.types import Array

SUITE = "gymnax"
# The observation of a step is not a function of the state after it, so states keep it.
_KEEP_OBSERVATION = ("MemoryChain-bsuite", "UmbrellaChain-bsuite", "MNISTBandit-bsuite")
# Their programs draw random numbers, but with default options no result of a step inside an
# episode depends on them: noise of size zero, new starts after an end. Tested in the sweep.
_NO_CHANCE = ("Acrobot-v1", "Catch-bsuite", "DeepSea-bsuite", "MetaMaze-misc")
NEEDS_DOWNLOAD = {"MNISTBandit-bsuite": "downloads MNIST when it is made"}


def known_ids() -> list[str]:
    """Return all ids, also those that can't be played."""
    return list(load_suite(SUITE).registered_envs)


class State(NamedTuple):
    """A state of one episode.

    inner: gymnax's. key: draws the next outcomes; None without chance. seen: the observation where
    it does not follow from `inner`; None elsewhere.
    """

    inner: Any
    key: Any
    seen: Any


class Gymnax:
    """An environment of gymnax with discrete actions, by its id."""

    def __init__(self, id: str, **options: Any):
        gymnax = load_suite(SUITE)
        find(SUITE, id, gymnax.registered_envs)
        self.id = id
        self._env, self._params = _make(gymnax, id, options)
        space = self._env.action_space(self._params)
        if not isinstance(space, gymnax.environments.spaces.Discrete):
            raise refuse(SUITE, id, "has continuous actions, and a search needs a few to choose "
                         "from")  # fmt: skip
        self.num_actions = int(space.n)
        self.time_limit = self.max_steps = int(self._params.max_steps_in_episode)
        self._is_minatar = id.endswith("-MinAtar")  # a number of MinAtar's is 0 or 1
        if self._is_minatar:
            self.action_names = [MINATAR_ACTIONS[int(i)] for i in self._env.action_set]
        self._keeps = id in _KEEP_OBSERVATION
        self._seen = jax.jit(self.observe)  # for pictures
        seen, inner = jax.eval_shape(self._env.reset_env, key_shape(), self._params)
        if seen.shape == () and np.issubdtype(seen.dtype, np.integer):
            self.num_states = int(self._env.observation_space(self._params).n)
        action = jax.ShapeDtypeStruct((), np.int32)
        certain = id in _NO_CHANCE and not options
        self.stochastic = not certain and has_chance(self._outcome, inner, action)

    def reset(self, key: Any) -> State:
        start, luck = jax.random.split(key)
        seen, inner = self._env.reset_env(start, self._params)
        return self._state(as_arrays(inner), luck, seen)

    def step(self, state: State, action: Any, key: Any = None) -> tuple[State, Any, Any, Any]:
        later, luck = next_luck(state.key, key)
        seen, inner, reward, terminated = self._outcome(state.inner, action, luck)
        limit = self._env.is_truncated(inner, self._params)
        after = self._state(as_arrays(inner), later, seen)
        return after, reward, terminated, limit & ~terminated

    def observe(self, state: State) -> Array:
        if self._keeps:
            return state.seen
        seen = self._env.observe(jax.random.PRNGKey(0), state.inner, None, self._params)
        return seen.astype(bool) if self._is_minatar else seen

    def render(self, state: State) -> np.ndarray:
        """Draw a state, `[height, width, 3]`."""
        from save_rl.envs.suites.classic import draw_classic
        from save_rl.envs.suites.pictures import draw_maze, draw_observation

        picture = draw_classic(self.id, state.inner)
        if picture is not None:
            return picture
        maze = _maze(self._env, state.inner)
        if maze is not None:
            return draw_maze(*maze)
        return draw_observation(np.asarray(self._seen(state)))

    def _state(self, inner: Any, key: Any, seen: Any) -> State:
        return State(inner, key if self.stochastic else None, seen if self._keeps else None)

    def _outcome(self, inner: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any]:
        """Return observation, state, reward and `terminated` after a step with this luck."""
        seen, inner, reward, terminated, _ = self._env.step_env(key, inner, action, self._params)
        return seen, inner, reward, jax.numpy.asarray(terminated, bool)


def _make(gymnax: Any, id: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return an environment and its parameters."""
    downloads = NEEDS_DOWNLOAD.get(id, "")
    env, params = make_with_data(SUITE, id, downloads, lambda: gymnax.make(id))
    arguments, fields = simple_options(type(env)), fields_of(params)
    check_options(options, arguments | fields)
    given = {name: value for name, value in options.items() if name in arguments}
    if given:
        env, params = gymnax.make(id, **given)
    return env, params.replace(**{k: v for k, v in options.items() if k not in arguments})


def _maze(env: Any, inner: Any) -> tuple[Any, Any, Any] | None:
    """Return the walls or holes `[height, width]`, the place and the goal, if it is a maze."""
    if hasattr(env, "occupied_map"):
        return np.asarray(env.occupied_map) > 0, inner.pos, inner.goal
    if hasattr(env, "desc"):  # Frozen Lake
        from gymnax.environments.misc.frozen_lake import GOAL, HOLE

        tiles = np.asarray(env.desc)
        place = np.unravel_index(int(inner.position), tiles.shape)
        return tiles == HOLE, place, np.argwhere(tiles == GOAL)[0]
    return None
