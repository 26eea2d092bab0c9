"""Action masks and random rollouts for a batch of lanes of a JAX environment."""

from typing import Any

import jax
import jax.numpy as jnp

from save_rl.envs.chance import lucky_step
from save_rl.search.rollouts import ROLLOUT_LIMIT
from save_rl.types import Array, Simulator


def masks(env: Simulator, states: Any) -> Array:
    """Return the allowed actions of states `[B]`: `[B, A]`, or `[B, 0]` without action masks."""
    action_mask = getattr(env, "action_mask", None)
    if action_mask is None:
        return jnp.zeros((jax.tree.leaves(states)[0].shape[0], 0), jnp.bool_)
    return jax.vmap(action_mask)(states)


def apply_mask(values: Array, mask: Array) -> Array:
    """Return the values, -inf where masked; a mask of width 0 masks nothing."""
    return values if mask.shape[-1] == 0 else jnp.where(mask, values, -jnp.inf)


def random_action(key: Array, mask: Array, num_actions: int) -> Array:
    """Draw an allowed action of one lane, uniformly."""
    if mask.shape[-1] == 0:
        return jax.random.randint(key, (), 0, num_actions)
    nth = jax.random.randint(key, (), 0, jnp.maximum(mask.sum(), 1))
    return jnp.argmax(jnp.cumsum(mask) > nth)


def rollouts(env: Simulator, states: Any, discount: float, key: Array) -> Array:
    """Return the discounted returns `[B]` of a uniformly random policy, to the end of episodes."""
    lanes = jax.tree.leaves(states)[0].shape[0]

    def unfinished(carry):
        _, _, _, over, t = carry
        return ~jnp.all(over) & (t < ROLLOUT_LIMIT)

    def step(carry):
        states, total, weight, over, t = carry
        keys, luck = jax.random.split(jax.random.fold_in(key, t), (2, lanes))
        actions = jax.vmap(random_action, (0, 0, None))(keys, masks(env, states), env.num_actions)
        states, reward, terminated, truncated = jax.vmap(lucky_step(env))(states, actions, luck)
        total = total + jnp.where(over, 0.0, weight * reward)
        return states, total, weight * discount, over | terminated | truncated, t + 1

    zeros = jnp.zeros(lanes)
    start = (states, zeros, zeros + 1.0, zeros > 0, 0)
    return jax.lax.while_loop(unfinished, step, start)[1]
