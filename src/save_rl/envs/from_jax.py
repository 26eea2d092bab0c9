"""A JAX environment as a Python simulator: compiled for the CPU, seeds for keys, NumPy out.

    simulator = FromJax(environment)
    state = simulator.reset(seed=0)
    state, reward, terminated, truncated = simulator.step(state, 1)

Players, `check`, `watch`, the host's search and the studio use it. Training does not: it traces the
environment itself.
"""

from typing import Any

import jax
import numpy as np

from save_rl.types import Simulator

_PASSED_ON = ("max_steps", "num_states", "action_names")  # optional attributes, as they are


class State:
    """A state of the environment, with the observation and mask that were computed with it."""

    __slots__ = ("inner", "mask", "observation")

    def __init__(self, inner: Any, observation: Any, mask: Any):
        self.inner, self.observation, self.mask = inner, observation, mask


class FromJax:
    """A JAX environment with the methods of a Python simulator; one compiled call per step.

    `action_mask`, `render` and other optional members are there if the environment
    has them. If it is `stochastic`, a seed as the third argument of `step` draws the outcome;
    without one the state's own key does.
    """

    def __init__(self, environment: Simulator):
        env: Any = environment
        self.environment = environment
        self.num_actions = int(env.num_actions)
        self.stochastic = bool(getattr(env, "stochastic", False))
        self._cpu = jax.devices("cpu")[0]
        self._reset = jax.jit(lambda seed: self._look(env.reset(jax.random.PRNGKey(seed))))
        self._step = jax.jit(lambda state, action: self._after(env.step(state, action)))
        self._lucky_step = jax.jit(
            lambda state, action, seed: self._after(
                env.step(state, action, jax.random.PRNGKey(seed))
            )
        )
        for name in _PASSED_ON:
            if hasattr(env, name):
                setattr(self, name, getattr(env, name))
        if getattr(env, "action_mask", None):
            self.action_mask = lambda state: state.mask
        if getattr(env, "render", None):
            self.render = lambda state: env.render(jax.device_get(state.inner))

    def reset(self, seed: int) -> State:
        """Start an episode."""
        state, seen, mask = self._reset(jax.device_put(_seed(seed), self._cpu))
        return State(state, *jax.device_get((seen, mask)))

    def step(
        self, state: State, action: int, seed: int | None = None
    ) -> tuple[State, Any, Any, Any]:
        """Return `(state, reward, terminated, truncated)`, the last three as NumPy scalars."""
        if seed is None or not self.stochastic:
            return self._taken(self._step(state.inner, np.int32(action)))
        return self._taken(self._lucky_step(state.inner, np.int32(action), _seed(seed)))

    def observe(self, state: State) -> Any:
        """Return an array or a dictionary of arrays."""
        return state.observation

    def _look(self, state: Any) -> tuple[Any, Any, Any]:
        """Return a state, its observation and its mask; traced."""
        env: Any = self.environment
        mask = env.action_mask(state) if getattr(env, "action_mask", None) else ()
        return state, env.observe(state), mask

    def _after(self, result: Any) -> Any:
        state, *outcome = result
        return self._look(state), outcome

    def _taken(self, result: Any) -> Any:
        (inner, *shown), outcome = result
        (seen, mask), outcome = jax.device_get((shown, outcome))
        return State(inner, seen, mask), *outcome


def _seed(seed: int) -> np.uint32:
    return np.uint32(int(seed) % 2**32)
