"""Learning from batches: `β_Q L_Q + β_A L_A`, an optimiser, a target network. Both loops use it.

A lock-step of acting is followed by the updates that keep the replay ratio. All their batches are
sampled at once. The target network does not change until the end of the lock-step, so it evaluates
them in one pass.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from save_rl.agents import Agent
from save_rl.learning import losses, reward_scale
from save_rl.learning.replay import Transition
from save_rl.networks.own import is_learned, parameters
from save_rl.search.lanes import apply_mask
from save_rl.training.networks import make_optimizer
from save_rl.training.settings import TrainSettings
from save_rl.types import Array


class Scaled(NamedTuple):
    """Parameters where the scale of rewards is measured: the network's arrays, and the scale."""

    network: Any
    scale: Any


class Learner(NamedTuple):
    """The state of learning. `params` are the arrays of the network, or `Scaled`."""

    params: Any
    target: Any
    optimiser: Any


def with_measured_scale(settings: TrainSettings, params: Any) -> TrainSettings:
    """Return settings with the scale of rewards that a run has measured, if it does, for agents
    without its parameters. With several seeds it is the largest."""
    if settings.reward_scale != reward_scale.NOTHING_YET:
        return settings
    scale = reward_scale.divisor(np.asarray(params.scale), np)
    return replace(settings, reward_scale=float(np.max(scale)))


def is_array(x: Any) -> bool:
    """Test for arrays, the parts of an environment or network that differ between seeds."""
    return isinstance(x, (jax.Array, np.ndarray, np.generic))


class Learning:
    """An agent's losses and updates, as functions of its parameters.

    make: returns a new network from a JAX key.
    """

    def __init__(self, agent: Agent, settings: TrainSettings, make: Callable[[Any], Any]):
        self.agent, self.settings, self._make = agent, settings, make
        self.measures_scale = settings.reward_scale == reward_scale.NOTHING_YET
        network = make(jax.random.PRNGKey(0))
        self._static = eqx.partition(network, is_learned)[1]
        self._optimiser = make_optimizer(
            settings.optimizer, settings.learning_rate, parameters(network)
        )

    def network(self, params: Any) -> Any:
        """Return the network with these parameters; its values are rewards divided by `scale`."""
        return eqx.combine(self._weights(params), self._static)

    def scale(self, params: Any) -> Any:
        """Return what search and losses divide rewards by; `[seeds]` if `params` are those of all.

        params: None before there are any.
        """
        if not self.measures_scale:
            return self.settings.reward_scale
        return 1.0 if params is None else reward_scale.divisor(params.scale, jnp)

    def _weights(self, params: Any) -> Any:
        """Return the arrays of the network."""
        return params.network if self.measures_scale else params

    def measure(self, learner: Learner, sums: Array) -> Learner:
        """Return the learner after a step; sums: `[..., lanes]`, of `reward_scale.next_sums`."""
        if not self.measures_scale:
            return learner
        scale = reward_scale.grown(learner.params.scale, sums, jnp)
        return learner._replace(
            params=learner.params._replace(scale=scale), target=learner.target._replace(scale=scale)
        )

    def initial(self, key: Array) -> Learner:
        """Return an untrained learner."""
        params = weights = parameters(self._make(key))
        if self.measures_scale:
            params = Scaled(weights, jnp.float32(reward_scale.NOTHING_YET))
        return Learner(params, params, self._optimiser.init(weights))

    def betas(self, episodes: Any) -> tuple[Any, Any]:
        """Return β_Q and β_A after this many episodes."""
        beta_q, beta_a = self.settings.betas
        return beta_q.at(episodes), beta_a.at(episodes)

    def _loss(
        self, params: Any, batch: Transition, targets: Array, weights: Array, betas: Any
    ) -> tuple[Array, tuple[Array, Array]]:
        """Return `β_Q L_Q + β_A L_A` on one batch `[N, ...]`, and both terms."""
        head, value = self.network(params)(batch.observation)
        head = apply_mask(head, batch.mask)
        agent = self.agent
        if self.settings.double_q:
            online, _ = self.network(jax.lax.stop_gradient(params))(batch.next_observation)
            targets = jax.vmap(losses.double_q_target)(
                batch.reward / jax.lax.stop_gradient(self.scale(params)), batch.discount, targets,
                apply_mask(online, batch.next_mask),
            )  # fmt: skip
        loss_q = loss_a = jnp.zeros(targets.shape)
        searched = batch.target
        visits = searched[..., :0]
        if agent.amortization_loss == "weighted":
            searched, visits = jnp.split(batch.target, 2, -1)
        if agent.value_loss == "td":
            loss_q = jax.vmap(losses.td_loss)(head, batch.action, targets)
        elif agent.value_loss in ("td-value", "return"):
            loss_q = jax.vmap(losses.return_loss)(value, targets)
        if agent.amortization_loss == "cross-entropy":
            loss_a = jax.vmap(losses.amortization_loss, (0, 0, None))(
                head, searched, self.settings.temperature
            )
        elif agent.amortization_loss == "explored":
            loss_a = jax.vmap(losses.explored_amortization_loss, (0, 0, None))(
                head, searched, self.settings.temperature
            )
        elif agent.amortization_loss == "weighted":
            loss_a = jax.vmap(losses.weighted_amortization_loss)(head, searched, visits)
        elif agent.amortization_loss == "l2":
            loss_a = jax.vmap(losses.l2_amortization_loss)(head, searched)
        elif agent.amortization_loss in ("visits", "policy"):
            loss_a = jax.vmap(losses.cross_entropy)(head, searched)
        mean_q, mean_a = jnp.sum(weights * loss_q), jnp.sum(weights * loss_a)
        return betas[0] * mean_q + betas[1] * mean_a, (mean_q, mean_a)

    def targets(self, target: Any, batches: Transition, returns: Array) -> Array:
        """Return the targets of the value loss, `[updates, batch]`; with double Q-learning, whose
        targets depend on the network that learns, Q_target(s', ·) `[updates, batch, A]`.

        target: parameters of the target network, which evaluates all batches in one pass. batches:
        `[updates, batch, ...]`. returns: `[updates, batch]`, of `replay.sample`.
        """
        scale = self.scale(target)
        if self.agent.value_loss == "return":
            return returns / scale
        reward = batches.reward / scale
        shape = batches.action.shape
        flat = jax.tree.map(
            lambda x: x.reshape(-1, *x.shape[len(shape) :]), batches.next_observation
        )
        next_q, next_value = self.network(target)(flat)
        if self.agent.value_loss == "td-value":
            return reward + batches.discount * next_value.reshape(shape)
        next_q = apply_mask(next_q.reshape(*shape, -1), batches.next_mask)
        if self.settings.double_q:
            return next_q
        return jax.vmap(jax.vmap(losses.td_target))(reward, batches.discount, next_q)

    def weights(self, finished: Array) -> Array:
        """Return the weights of transitions, `[updates, batch]`; `finished` of `replay.sample`."""
        if self.agent.value_loss == "return":
            return finished / jnp.maximum(jnp.sum(finished, -1, keepdims=True), 1)
        return jnp.full(finished.shape, 1.0 / self.settings.batch)

    def gradient(
        self, params: Any, batch: Transition, targets: Array, weights: Array, betas: Any
    ) -> tuple[Any, Array]:
        """Return the gradient of a batch, or the share of a part, and both loss terms `[2]`.

        betas: from `betas`. The other arrays are `[N, ...]`.
        """
        (_, terms), gradient = jax.value_and_grad(self._loss, has_aux=True)(
            params, batch, targets, weights, betas
        )
        return gradient, jnp.stack(terms)

    def step(self, params: Any, optimiser: Any, gradient: Any, active: Any) -> tuple[Any, Any]:
        """Return new parameters and optimiser state; unchanged ones unless `active`."""
        weights = self._weights(params)
        changes, new = self._optimiser.update(self._weights(gradient), optimiser, weights)
        weights = optax.apply_updates(weights, changes)
        changed = params._replace(network=weights) if self.measures_scale else weights, new
        return jax.tree.map(
            lambda new, old: jnp.where(active, new, old), changed, (params, optimiser)
        )

    def descend(
        self, params: Any, optimiser: Any, batches: Transition, targets: Array, weights: Array,
        episodes: Any, active: Any = True,
    ) -> tuple[Any, Any, Array]:  # fmt: skip
        """Make one update per batch; return parameters, optimiser state and sums `[2]` of losses.

        active: false before learning starts. A loss that is not finite changes no parameters.
        """
        betas = self.betas(episodes)

        def update(carry, inputs):
            (params, optimiser), (batch, targets, weights) = carry, inputs
            gradient, terms = self.gradient(params, batch, targets, weights, betas)
            good = active & jnp.all(jnp.isfinite(terms))
            return self.step(params, optimiser, gradient, good), terms

        (params, optimiser), terms = jax.lax.scan(
            update, (params, optimiser), (batches, targets, weights)
        )
        return params, optimiser, jnp.where(active, jnp.sum(terms, 0), 0.0)

    def copies_target(self, step: Any) -> Any:
        """Test whether the target network is updated after lock-step `step`.

        Counts from the first lock-step, so that all seeds update at the same time.
        """
        per_step, period = self.settings.updates_per_step, self.settings.target_period
        made = (step + 1) * per_step
        return (made // period) != ((made - per_step) // period)

    def updates(
        self, learner: Learner, batches: Transition, returns: Array, finished: Array,
        episodes: Any, step: Any, active: Any,
    ) -> tuple[Learner, Array, Array]:  # fmt: skip
        """Make all updates after lock-step `step`; return the learner and the sums of losses."""
        targets = self.targets(learner.target, batches, returns)
        params, optimiser, terms = self.descend(
            learner.params,
            learner.optimiser,
            batches,
            targets,
            self.weights(finished),
            episodes,
            active,
        )
        copy = self.copies_target(step)
        target = jax.tree.map(lambda new, old: jnp.where(copy, new, old), params, learner.target)
        return Learner(params, target, optimiser), terms[0], terms[1]
