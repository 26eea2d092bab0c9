"""Jumanji (github.com/instadeepai/jumanji): puzzles, packing and routing, for one agent.

Actions with several parts (a row, a column, a digit) become one number, row by row. Observations
become a dictionary of arrays by name, without the mask, or one array if only one is left. Options
are the plain arguments of an environment's class (`time_limit`, `num_rows`).
"""

import copy
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.envs.layout import MOST_ACTIONS
from save_rl.envs.suites.common import (
    LONGEST,
    as_arrays,
    check_options,
    find,
    has_chance,
    key_shape,
    load_suite,
    make_with_data,
    refuse,
    simple_options,
)
from save_rl.errors import require

SUITE = "jumanji"
NEEDS_DOWNLOAD = {
    "Sokoban-v0": "downloads its levels when it is made; generator=toy and simple do not",
}
_MASK = "action_mask"
_NEVER = np.iinfo(np.int32).max
_AGENTS = ("num_agents", "_num_vehicles")  # attributes of environments with several agents
_DRAWN_FROM_JAX = ("Maze-v0", "PacMan-v1")  # the others are drawn from NumPy, many times faster
_WIDTH = 400  # pixels of a picture
_SOKOBAN = {"toy": "ToyGenerator", "simple": "SimpleSolveGenerator"}


def known_ids() -> list[str]:
    """Return all ids, also those that can't be played."""
    return sorted(load_suite(SUITE).registered_environments())


class State(NamedTuple):
    """A state of one episode: Jumanji's, which holds the key, and what was seen of it.

    seen: the observation. mask: of the actions, `[num_actions]`; None without masks.
    """

    inner: Any
    seen: Any
    mask: Any


class Jumanji:
    """An environment of Jumanji for one agent with discrete actions, by its id."""

    def __init__(self, id: str, **options: Any):
        jumanji = load_suite(SUITE)
        self.id = find(SUITE, id, jumanji.registered_environments())
        made = _make(jumanji, id, options)
        agents = max(int(getattr(made, name, 1)) for name in _AGENTS)
        if agents > 1:
            raise refuse(SUITE, id, f"has {agents} agents that act at once, and save_rl plays one")
        self._parts = _parts(id, made.action_spec)
        self.num_actions = int(np.prod(self._parts))
        # Jumanji ends an episode at its time limit as if the task were over. Without a limit it
        # ends only where the task does, and the limit is counted here.
        self.time_limit = getattr(made, "time_limit", None)
        self.max_steps = LONGEST if self.time_limit is None else int(self.time_limit)
        self._env = copy.copy(made)
        if self.time_limit is not None:
            self._env.time_limit = _NEVER
        inner, first = jax.eval_shape(self._env.reset, key_shape())
        if hasattr(first.observation, _MASK):
            self.action_mask = lambda state: state.mask
        action = jax.ShapeDtypeStruct((), np.int32)
        self.stochastic = has_chance(self._outcome, inner, action)

    def reset(self, key: Any) -> State:
        inner, first = self._env.reset(key)
        return self._state(as_arrays(inner), first.observation)

    def step(self, state: State, action: Any, key: Any = None) -> tuple[State, Any, Any, Any]:
        inner = state.inner if key is None else _with_key(state.inner, key)
        after, first = self._env.step(inner, self._unravel(action))
        terminated, limit = first.step_type == 2, False
        if self.time_limit is not None:
            limit = after.step_count >= self.time_limit
        after = self._state(as_arrays(after), first.observation)
        return after, first.reward, terminated, limit & ~terminated

    def observe(self, state: State) -> Any:
        return state.seen

    def render(self, state: State) -> np.ndarray:
        """Draw a state with Jumanji's own renderer, `[height, width, 3]`."""
        inner = state.inner
        if self.id in _DRAWN_FROM_JAX:
            inner = jax.tree.map(jnp.asarray, inner)
        return _draw(self._env, inner)

    def _unravel(self, action: Any) -> Any:
        """Return an action as Jumanji wants it: a number, or one for each part."""
        if len(self._parts) == 1:
            return action
        return jnp.stack(jnp.unravel_index(action, self._parts)).astype(jnp.int32)

    def _state(self, inner: Any, observation: Any) -> State:
        mask = getattr(observation, _MASK, None)
        if mask is not None:
            # After the end nothing is allowed, and a network's maximum needs something.
            mask = jnp.reshape(mask, -1)
            mask = mask | ~jnp.any(mask)
        return State(inner, as_arrays(named_arrays(observation)), mask)

    def _outcome(self, inner: Any, action: Any, key: Any) -> Any:
        """Return all results of a step with this luck but the next key."""
        after, first = self._env.step(_with_key(inner, key), self._unravel(action))
        return _with_key(after, None), first.observation, first.reward, first.step_type


def named_arrays(observation: Any) -> Any:
    """Return the arrays of an observation by name, without the mask; the array if it is one."""
    arrays = {
        ".".join(str(getattr(part, "name", part)) for part in path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(observation)
    }
    arrays.pop(_MASK, None)
    return next(iter(arrays.values())) if len(arrays) == 1 else arrays


def _with_key(inner: Any, key: Any) -> Any:
    """Return a state of Jumanji with another key."""
    return inner._replace(key=key) if hasattr(inner, "_replace") else inner.replace(key=key)


def _make(jumanji: Any, id: str, options: dict[str, Any]) -> Any:
    entry = jumanji.registration._REGISTRY[id].entry_point
    known = simple_options(jumanji.registration.load(entry))
    if id.startswith("Sokoban"):
        from jumanji.environments.routing.sokoban import generator

        known.add("generator")
        check_options(options, known)
        if name := options.get("generator"):
            text = f"generator={name}"
            require(name in _SOKOBAN, "--env-options", text, "generator=toy or generator=simple")
            options = {**options, "generator": getattr(generator, _SOKOBAN[name])()}
    check_options(options, known)
    downloads = "" if "generator" in options else NEEDS_DOWNLOAD.get(id, "")
    return make_with_data(SUITE, id, downloads, lambda: jumanji.make(id, **options))


def _parts(id: str, spec: Any) -> tuple[int, ...]:
    """Return the number of values of each part of an action."""
    values = getattr(spec, "num_values", None)
    if values is None:
        raise refuse(SUITE, id, "has continuous actions, and a search needs a few to choose from")
    parts = tuple(int(n) for n in np.ravel(values))
    actions = 1
    for part in parts:
        actions *= part
    if actions > MOST_ACTIONS:
        raise refuse(SUITE, id, f"has {actions:.0e} joint actions ({len(parts)} parts at once), "
                     f"and save_rl takes {MOST_ACTIONS:,} at most")  # fmt: skip
    return parts


def _draw(env: Any, inner: Any) -> np.ndarray:
    """Return the figure that an environment's renderer draws."""
    import warnings

    import matplotlib
    import matplotlib.pyplot as plt
    from PIL import Image

    backend = matplotlib.get_backend()
    plt.switch_backend("agg")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # agg can't show windows, and need not
            env.render(inner)
            figure = plt.gcf()
            canvas: Any = figure.canvas
            canvas.draw()
            picture = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
        plt.close(figure)
    finally:
        plt.switch_backend(backend)
    height = round(picture.height * _WIDTH / picture.width)
    return np.array(picture.resize((_WIDTH, height), Image.Resampling.LANCZOS))
