"""Training inside one jitted program: act, search, replay, learn; vmapped over seeds.

A *lock-step* moves every lane of every seed by one real step, then makes the updates that keep the
replay ratio. A *chunk* of lock-steps is one compiled call. Between chunks the host logs, tests,
saves and stops; everything it needs to continue is in `SeedState`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import Agent, get_agent, target_width
from save_rl.envs.chance import lucky_step
from save_rl.errors import InputError, require
from save_rl.learning import replay
from save_rl.learning.replay import Replay, Transition
from save_rl.learning.reward_scale import next_sums
from save_rl.search.lanes import masks
from save_rl.training.counters import Counters, Stats, count_step, count_updates, no_stats
from save_rl.training.device.acting import (
    choose_action,
    play,
    run_search,
    target_of,
)
from save_rl.training.learner import Learner, Learning, is_array
from save_rl.training.memory import shown_observation
from save_rl.training.networks import maker_of
from save_rl.training.settings import TrainSettings
from save_rl.types import Array, Simulator

# Largest budget whose tests run in one program with those of smaller ones: trees take the memory of
# the largest, and a step up a tree moves all of it.
_LARGEST_SHARED = 64


class SeedState(NamedTuple):
    """Everything one seed carries from lock-step to lock-step."""

    key: Array
    env_states: Any  # [lanes, ...]
    episode_step: Array  # [lanes]
    episode_return: Array  # [lanes]
    length: Array  # [] running estimate of the length of an episode
    episodes: Array  # []
    steps: Array  # [] lock-steps
    updates: Array  # []
    learner: Learner
    replay: Replay
    stats: Stats
    sums: Any = None  # [lanes] of `reward_scale.next_sums`, where the scale is measured


def stack_envs(envs: list[Simulator]) -> tuple[Any, Any]:
    """Split environments into arrays with a leading seed axis and their common static part."""
    parts = [eqx.partition(env, is_array) for env in envs]
    if any(part[1] != parts[0][1] for part in parts):
        raise InputError(
            "ENV: the seeds' environments differ in more than arrays; make the environment a "
            "NamedTuple or another pytree of arrays, or train one seed at a time."
        )
    arrays = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(y) for y in x]), *[p[0] for p in parts])
    return arrays, parts[0][1]


class DeviceTrainer:
    """The compiled functions of one set of settings, over all its seeds at once."""

    curriculum = "none"  # environments in JAX have no levels
    refills_replay = False
    test_batch: int | None = 256

    def __init__(
        self, settings: TrainSettings, envs: list[Simulator], options: dict[str, str] | None = None,
        budgets: Sequence[int] = (),
    ):  # fmt: skip
        """options: for the compiler, see `devices.compiler_options`. budgets: of tests to come."""
        self.settings, self.compiler_options = settings, options
        self.agent: Agent = get_agent(settings.agent)
        self.env_arrays, self._env_static = stack_envs(envs)
        make = maker_of(settings, shown_observation(envs[0], on_host=False), envs[0])
        self.learning = Learning(self.agent, settings, make)
        self.network = self.learning.network
        self.chunk: Callable[..., SeedState] = jax.jit(
            jax.vmap(self._chunk, in_axes=(0, 0, None, 0)),
            donate_argnums=1,
            compiler_options=options,
        )
        self.initial: Callable[..., SeedState] = jax.jit(jax.vmap(self._initial))
        self.forget_stats: Callable[..., SeedState] = jax.jit(
            lambda state: state._replace(stats=jax.vmap(lambda _: no_stats(jnp))(state.steps)),
            donate_argnums=0,
        )
        self._tests = jax.jit(
            self._play, static_argnames=("episodes", "budget"), compiler_options=options
        )
        self._shared_budget = max((k for k in budgets if k <= _LARGEST_SHARED), default=0)

    def env(self, arrays: Any) -> Simulator:
        return eqx.combine(arrays, self._env_static)

    def begin(self) -> SeedState:
        """Return the state of all seeds before their first lock-step."""
        return self.initial(self.env_arrays, np.array(self.settings.seeds))

    def advance(self, state: SeedState, step: int, running: np.ndarray) -> SeedState:
        """Run a chunk of lock-steps after the first `step`; donates `state`.

        running: `[seeds]`; the others stay as they are.
        """
        return self.chunk(self.env_arrays, state, step, running)

    def restore(self, state: SeedState) -> SeedState:
        """Return the state of a checkpoint, ready to continue."""
        return jax.tree.map(jnp.asarray, state)

    def template(self) -> Any:
        """Return names, shapes and dtypes of the arrays of a checkpoint."""
        return jax.eval_shape(self.begin)

    def snapshot(self, state: SeedState) -> SeedState:
        """Return the state to write to a checkpoint."""
        return state

    def counters(self, state: SeedState) -> Counters:
        """Return the counters so far."""
        s = self.settings
        simulations = s.budget if self.agent.search is not None else 0
        env_steps = np.asarray(state.steps, np.int64) * s.lanes
        return Counters(
            episodes=np.asarray(state.episodes),
            env_steps=env_steps,
            simulator_steps=env_steps * simulations,
            updates=np.asarray(state.updates),
            length=np.asarray(state.length),
            restarts=np.zeros_like(env_steps),
            level=np.full_like(env_steps, -1),
            stats=jax.tree.map(np.asarray, state.stats),
        )

    def params(self, state: SeedState) -> Any:
        """Return the parameters of the networks, `[seeds, ...]`."""
        return state.learner.params

    def play(
        self, params: Any, episodes: int, budget: int, number: int, level: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Play test episodes; return their returns and lengths `[seeds, episodes]`.

        Compiled once per number of episodes, for all budgets of tests that the trainer was told,
        but for large ones and Gumbel AlphaZero's. number: of this test, part of the random seed.
        level: None; there are no levels.
        """
        require(level is None, "--level", level, "left out in an environment without levels")
        seeds = self.settings.seeds
        keys = [jax.random.fold_in(jax.random.PRNGKey(seed), number) for seed in seeds]
        shares = self.agent.searches_anywhere and budget <= self._shared_budget
        most, simulations = (self._shared_budget, budget) if shares else (budget, None)
        returns, steps = self._tests(
            self.env_arrays, params, jnp.stack(keys), simulations, episodes=episodes, budget=most
        )
        return np.asarray(returns), np.asarray(steps)

    def watch_tests(self, report: Callable[[int], None]) -> None:
        """Do nothing: tests are compiled."""

    def close(self) -> None:
        """Do nothing; there is nothing to close."""

    def _initial(self, env_arrays: Any, seed: Array) -> SeedState:
        s, env = self.settings, self.env(env_arrays)
        key, network_key, reset_key = jax.random.split(jax.random.PRNGKey(seed), 3)
        states = jax.vmap(env.reset)(jax.random.split(reset_key, s.lanes))
        observation = jax.vmap(env.observe)(states)
        width = target_width(self.agent, env.num_actions)
        lanes = jnp.zeros(s.lanes)
        example = Transition(
            observation=observation,
            action=lanes.astype(jnp.int32),
            reward=lanes,
            discount=lanes,
            next_observation=observation,
            target=jnp.zeros((s.lanes, width)),
            mask=masks(env, states),
            next_mask=masks(env, states),
        )
        return SeedState(
            key=key,
            env_states=states,
            episode_step=lanes.astype(jnp.int32),
            episode_return=lanes,
            length=jnp.ones(()),
            episodes=jnp.zeros((), jnp.int32),
            steps=jnp.zeros((), jnp.int32),
            updates=jnp.zeros((), jnp.int32),
            learner=self.learning.initial(network_key),
            replay=replay.empty(example, s.replay, s.horizon),
            stats=no_stats(jnp),
            sums=lanes if self.learning.measures_scale else None,
        )

    def _chunk(self, env_arrays: Any, state: SeedState, step: Array, running: Array) -> SeedState:
        """Run `settings.chunk` lock-steps of one seed, after the first `step`.

        A seed that is not `running` does not change, so the result of a seed does not depend on
        the other seeds.
        """
        env = self.env(env_arrays)
        steps = step + jnp.arange(self.settings.chunk)
        after = jax.lax.scan(
            lambda s, t: (self._lock_step(env, s, t, running), None), state, steps
        )[0]
        # The replay looks at `running` itself: choosing here would copy all of it.
        kept = jax.tree.map(
            lambda old, new: jnp.where(running, new, old),
            state._replace(replay=None),
            after._replace(replay=None),
        )
        return kept._replace(replay=after.replay)

    def _lock_step(
        self, env: Simulator, state: SeedState, step: Array, running: Array
    ) -> SeedState:
        key, act_key, reset_key, learn_key = jax.random.split(state.key, 4)
        made = state.steps  # not `step`: the seed may have stood still
        state, transitions, over = self._act(env, state._replace(key=key), act_key, reset_key)
        ring = replay.add(
            state.replay, made, transitions, over, self.settings.discount,
            track=self.agent.value_loss == "return", running=running,
        )  # fmt: skip
        return self.learn(state._replace(replay=ring), learn_key, step)

    def _act(
        self, env: Simulator, state: SeedState, key: Array, reset_key: Array
    ) -> tuple[SeedState, Transition, Array]:
        """Take one real step in every lane; lanes whose episode ends start another."""
        s, agent = self.settings, self.agent
        search_key, action_key = jax.random.split(key)
        before = state.env_states
        result = run_search(
            agent, self.network(state.learner.params), env, before, rule=agent.search,
            budget=s.budget, c=s.c, discount=s.discount, key=search_key,
            noise=agent.root_noise, scale=self.learning.scale(state.learner.params),
        )  # fmt: skip
        epsilon = s.lane_epsilon(
            state.episodes, state.steps * jnp.float32(s.lanes), state.episode_step, state.length
        )
        action_keys, luck = jax.random.split(action_key, (2, s.lanes))
        actions = jax.vmap(lambda r, e, k: choose_action(agent, r, e, k, s.c))(
            result, epsilon, action_keys
        )
        after, reward, terminated, truncated = jax.vmap(lucky_step(env))(before, actions, luck)
        reward = jnp.asarray(reward, jnp.float32)
        over = terminated | truncated
        transitions = Transition(
            observation=jax.vmap(env.observe)(before),
            action=actions.astype(jnp.int32),
            reward=reward,
            discount=jnp.where(terminated, 0.0, s.discount),
            next_observation=jax.vmap(env.observe)(after),
            target=target_of(agent, result),
            mask=masks(env, before),
            next_mask=masks(env, after),
        )
        fresh = jax.vmap(env.reset)(jax.random.split(reset_key, s.lanes))

        def restart(new: Array, old: Array) -> Array:
            return jnp.where(over.reshape(-1, *[1] * (old.ndim - 1)), new, old).astype(old.dtype)

        if self.learning.measures_scale:
            sums = next_sums(state.sums, reward, s.discount, state.episode_step == 0, jnp)
            learner = self.learning.measure(state.learner, sums)
            state = state._replace(sums=sums, learner=learner)
        state = count_step(state, reward, over, 1, jnp)
        return state._replace(env_states=jax.tree.map(restart, fresh, after)), transitions, over

    def _play(
        self, env_arrays: Any, params: Any, keys: Array, simulations: Any, *, episodes: int,
        budget: int,
    ) -> tuple[Array, Array]:  # fmt: skip
        s = self.settings

        def one(arrays: Any, params: Any, key: Array) -> tuple[Array, Array]:
            return play(
                self.agent, self.network(params), self.env(arrays), key,
                episodes=episodes, budget=budget, c=s.c, discount=s.discount,
                simulations=simulations, scale=self.learning.scale(params),
            )  # fmt: skip

        return jax.vmap(one)(env_arrays, params, keys)

    def learn(self, state: SeedState, key: Array, step: Array) -> SeedState:
        """Make the updates after lock-step `step`."""
        s = self.settings
        shape = (s.updates_per_step, s.batch)
        batches, returns, finished = replay.sample(
            state.replay, key, state.steps - 1, s.replay, shape, s.horizon
        )
        active = state.steps >= -(-s.min_replay // s.lanes)
        learner, loss_q, loss_a = self.learning.updates(
            state.learner, batches, returns, finished, state.episodes, step, active
        )
        state = count_updates(state, active * s.updates_per_step, loss_q, loss_a)
        return state._replace(learner=learner)
