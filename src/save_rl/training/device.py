"""Training inside one jitted program: act, search, replay, learn; vmapped over seeds.

A *lock-step* moves every lane of every seed by one real step and is followed by the updates that
keep the replay ratio. A *chunk* of lock-steps is one compiled call. Between chunks the host logs,
tests, saves and stops; everything it needs to go on is in `TrainState`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from save_rl.agents import Agent, get_agent
from save_rl.errors import InputError
from save_rl.learning import losses, replay
from save_rl.learning.exploration import EPSILON, epsilon_at_step, typical_length
from save_rl.learning.replay import Replay, Transition
from save_rl.networks import make_network
from save_rl.search.lanes import apply_mask, masks
from save_rl.training.acting import choose_action, run_search
from save_rl.training.settings import TrainSettings
from save_rl.types import Array, Simulator


class Stats(NamedTuple):
    """Sums since the last line of metrics, per seed."""

    steps: Array
    episodes: Array
    return_sum: Array
    return_min: Array
    return_max: Array
    loss_q: Array
    loss_a: Array
    updates: Array


class Learner(NamedTuple):
    """What learning changes. `params` are the arrays of the network."""

    params: Any
    target: Any
    optimiser: Any


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


def no_stats() -> Stats:
    none, zero = jnp.zeros((), jnp.int32), jnp.zeros(())
    return Stats(none, none, zero, zero + jnp.inf, zero - jnp.inf, zero, zero, none)


def is_array(x: Any) -> bool:
    """Arrays of an environment or network that differ between seeds."""
    return isinstance(x, (jax.Array, np.ndarray, np.generic))


def stack_envs(envs: list[Simulator]) -> tuple[Any, Any]:
    """Split environments into arrays with a leading seed axis and what they share."""
    parts = [eqx.partition(env, is_array) for env in envs]
    if any(part[1] != parts[0][1] for part in parts):
        raise InputError(
            "ENV: the seeds' environments differ in more than arrays; make the environment a "
            "NamedTuple or another pytree of arrays, or train one seed at a time."
        )
    arrays = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(y) for y in x]), *[p[0] for p in parts])
    return arrays, parts[0][1]


class Program:
    """The compiled functions of one set of settings, over all its seeds at once."""

    def __init__(
        self, settings: TrainSettings, envs: list[Simulator], options: dict[str, str] | None = None
    ):
        """options: for the compiler, see `devices.compiler_options`."""
        self.settings = settings
        self.agent: Agent = get_agent(settings.agent)
        self.env_arrays, self._env_static = stack_envs(envs)
        value_head = self.agent.prior == "policy"
        self._value_head = value_head
        network = make_network(settings.network, envs[0], jax.random.PRNGKey(0), value_head)
        self._network_static = eqx.partition(network, is_array)[1]
        self.optimiser = optax.adam(settings.learning_rate)  # paper A.1, TensorFlow's defaults
        self.chunk: Callable[..., SeedState] = jax.jit(
            jax.vmap(self._chunk, in_axes=(0, 0, None, None)),
            donate_argnums=1,
            compiler_options=options,
        )
        self.initial: Callable[..., SeedState] = jax.jit(jax.vmap(self._initial))
        self.forget_stats: Callable[..., SeedState] = jax.jit(
            lambda state: state._replace(stats=jax.vmap(lambda _: no_stats())(state.steps)),
            donate_argnums=0,
        )

    def env(self, arrays: Any) -> Simulator:
        return eqx.combine(arrays, self._env_static)

    def network(self, params: Any) -> Any:
        return eqx.combine(params, self._network_static)

    def _initial(self, env_arrays: Any, seed: Array) -> SeedState:
        s, env = self.settings, self.env(env_arrays)
        key, network_key, reset_key = jax.random.split(jax.random.PRNGKey(seed), 3)
        network = make_network(s.network, env, network_key, self._value_head)
        params = eqx.partition(network, is_array)[0]
        states = jax.vmap(env.reset)(jax.random.split(reset_key, s.lanes))
        observation = jax.vmap(env.observe)(states)
        width = env.num_actions if self.agent.amortization_loss != "none" else 0
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
            learner=Learner(params, params, self.optimiser.init(params)),
            replay=replay.empty(example, s.replay),
            stats=no_stats(),
        )

    def _chunk(self, env_arrays: Any, state: SeedState, step: Array, episodes: Array) -> SeedState:
        """`settings.chunk` lock-steps of one seed; `step` lock-steps were made before.

        A seed that has had its `episodes` stays as it is, so what a seed learns does not depend on
        the seeds beside it.
        """
        env = self.env(env_arrays)
        steps = step + jnp.arange(self.settings.chunk)
        after = jax.lax.scan(lambda s, t: (self.lock_step(env, s, t), None), state, steps)[0]
        finished = state.episodes >= episodes
        return jax.tree.map(lambda old, new: jnp.where(finished, old, new), state, after)

    def lock_step(self, env: Simulator, state: SeedState, step: Array) -> SeedState:
        key, act_key, reset_key, learn_key = jax.random.split(state.key, 4)
        state, transitions, over = self._act(env, state._replace(key=key), act_key, reset_key)
        ring = replay.add(
            state.replay, step, transitions, over, self.settings.discount,
            track=self.agent.value_loss == "return",
        )  # fmt: skip
        return self.learn(state._replace(replay=ring), learn_key, step)

    def _act(
        self, env: Simulator, state: SeedState, key: Array, reset_key: Array
    ) -> tuple[SeedState, Transition, Array]:
        """One real step of every lane; lanes whose episode ends begin another."""
        s, agent = self.settings, self.agent
        search_key, action_key = jax.random.split(key)
        before = state.env_states
        result = run_search(
            agent, self.network(state.learner.params), env, before, rule=agent.search,
            budget=s.budget, c=s.c, discount=s.discount, key=search_key, noise=agent.root_noise,
        )  # fmt: skip
        epsilon = epsilon_at_step(EPSILON.at(state.episodes), state.episode_step, state.length)
        actions = jax.vmap(choose_action, (None, 0, 0, 0))(
            agent, result, epsilon, jax.random.split(action_key, s.lanes)
        )
        after, reward, terminated, truncated = jax.vmap(env.step)(before, actions)
        reward = jnp.asarray(reward, jnp.float32)
        over = terminated | truncated
        if agent.amortization_loss == "none":
            target = jnp.zeros((s.lanes, 0))
        elif agent.amortization_loss == "visits":
            target = result.visits / jnp.sum(result.visits, -1, keepdims=True)
        else:
            target = result.q_values
        transitions = Transition(
            observation=jax.vmap(env.observe)(before),
            action=actions.astype(jnp.int32),
            reward=reward,
            discount=jnp.where(terminated, 0.0, s.discount),
            next_observation=jax.vmap(env.observe)(after),
            target=target,
            mask=masks(env, before),
            next_mask=masks(env, after),
        )
        fresh = jax.vmap(env.reset)(jax.random.split(reset_key, s.lanes))

        def restart(new: Array, old: Array) -> Array:
            return jnp.where(over.reshape(-1, *[1] * (old.ndim - 1)), new, old).astype(old.dtype)

        episode_return = state.episode_return + reward
        episode_step = state.episode_step + 1
        finished = jnp.sum(over, dtype=jnp.int32)
        mean_length = jnp.sum(jnp.where(over, episode_step, 0)) / jnp.maximum(finished, 1)
        stats = state.stats
        stats = stats._replace(
            steps=stats.steps + 1,
            episodes=stats.episodes + finished,
            return_sum=stats.return_sum + jnp.sum(jnp.where(over, episode_return, 0.0)),
            return_min=jnp.minimum(
                stats.return_min, jnp.min(jnp.where(over, episode_return, jnp.inf))
            ),
            return_max=jnp.maximum(
                stats.return_max, jnp.max(jnp.where(over, episode_return, -jnp.inf))
            ),
        )
        state = state._replace(
            env_states=jax.tree.map(restart, fresh, after),
            episode_step=jnp.where(over, 0, episode_step),
            episode_return=jnp.where(over, 0.0, episode_return),
            length=typical_length(state.length, finished, mean_length),
            episodes=state.episodes + finished,
            steps=state.steps + 1,
            stats=stats,
        )
        return state, transitions, over

    def _loss(
        self, params: Any, batch: Transition, targets: Array, weights: Array, betas: Any
    ) -> tuple[Array, tuple[Array, Array]]:
        """`β_Q L_Q + β_A L_A` on one batch `[N, ...]`, and both terms."""
        head, value = self.network(params)(batch.observation)
        head = apply_mask(head, batch.mask)
        agent = self.agent
        loss_q = loss_a = jnp.zeros(targets.shape)
        if agent.value_loss == "td":
            loss_q = jax.vmap(losses.td_loss)(head, batch.action, targets)
        elif agent.value_loss == "return":
            loss_q = jax.vmap(losses.return_loss)(value, targets)
        if agent.amortization_loss == "cross-entropy":
            loss_a = jax.vmap(losses.amortization_loss)(head, batch.target)
        elif agent.amortization_loss == "l2":
            loss_a = jax.vmap(losses.l2_amortization_loss)(head, batch.target)
        elif agent.amortization_loss == "visits":
            loss_a = jax.vmap(losses.cross_entropy)(head, batch.target)
        mean_q, mean_a = jnp.sum(weights * loss_q), jnp.sum(weights * loss_a)
        return betas[0] * mean_q + betas[1] * mean_a, (mean_q, mean_a)

    def learn(self, state: SeedState, key: Array, step: Array) -> SeedState:
        """The updates after lock-step `step`.

        All batches are drawn at once, and the target network, which rests until the end of the
        lock-step, sees them in one pass.
        """
        s, agent = self.settings, self.agent
        shape = (s.updates_per_step, s.batch)
        batches, returns, finished = replay.sample(state.replay, key, step, s.replay, shape)
        weights = jnp.full(shape, 1.0 / s.batch)
        if agent.value_loss == "return":
            targets = returns
            weights = finished / jnp.maximum(jnp.sum(finished, -1, keepdims=True), 1)
        else:
            flat = batches.next_observation.reshape(-1, *batches.next_observation.shape[2:])
            next_q, _ = self.network(state.learner.target)(flat)
            next_q = apply_mask(next_q.reshape(*shape, -1), batches.next_mask)
            targets = jax.vmap(jax.vmap(losses.td_target))(batches.reward, batches.discount, next_q)
        betas = (agent.beta_q.at(state.episodes), agent.beta_a.at(state.episodes))
        active = (step + 1) * s.lanes >= s.min_replay

        def update(carry, inputs):
            params, optimiser = carry
            (_, terms), gradient = jax.value_and_grad(self._loss, has_aux=True)(
                params, *inputs, betas
            )
            changes, new_optimiser = self.optimiser.update(gradient, optimiser)
            changed = (optax.apply_updates(params, changes), new_optimiser)
            kept = jax.tree.map(lambda new, old: jnp.where(active, new, old), changed, carry)
            return kept, terms

        learner = state.learner
        (params, optimiser), (loss_q, loss_a) = jax.lax.scan(
            update, (learner.params, learner.optimiser), (batches, targets, weights)
        )
        # Counted from the first lock-step, so that the moment is the same for all seeds.
        made = (step + 1) * s.updates_per_step
        copy = (made // s.target_period) != ((made - s.updates_per_step) // s.target_period)
        target = jax.tree.map(lambda new, old: jnp.where(copy, new, old), params, learner.target)
        stats = state.stats
        stats = stats._replace(
            loss_q=stats.loss_q + active * jnp.sum(loss_q),
            loss_a=stats.loss_a + active * jnp.sum(loss_a),
            updates=stats.updates + active * s.updates_per_step,
        )
        return state._replace(
            learner=Learner(params, target, optimiser),
            updates=state.updates + active * s.updates_per_step,
            stats=stats,
        )
