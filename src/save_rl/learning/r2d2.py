"""R2D2's loss on sequences, with and without SAVE (Kapturowski et al. 2019; paper, appendix E).

A sequence has 40 burn-in steps that only warm up the recurrent state, 80 training steps, and one
bootstrap step. Arrays have a time axis first and optionally a batch axis second: `[T, ...]` below
means `[T]` or `[T, B]`. Values q̃ = h(Q), TD errors and stored search results are rescaled; rewards
are game points, and discounts include γ and are 0 where the game ended.

`valid` is true for steps and false for padding. If an episode was truncated before the game ended,
its last observation follows the last valid step, for bootstrapping; the rest of the padding is
ignored.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from save_rl.envs.atari_protocol import STACK
from save_rl.errors import unknown_name
from save_rl.learning import losses
from save_rl.learning.r2d2_settings import ETA
from save_rl.networks.recurrent import RecurrentNetwork, stack_frames, unroll
from save_rl.rescaling import rescale, unscale
from save_rl.types import Array

IMPORTANCE = 0.6  # R2D2, table 2

_cross_entropy = jnp.vectorize(losses.amortization_loss, signature="(a),(a)->()")


class Sequences(NamedTuple):
    """A batch of `B` sequences of `T` steps: burn-in, training and one bootstrap step.

    frames: `[T + 3, B, 84, 84]` uint8, starting with the three frames before the first step.
    previous_action, previous_reward: `[T, B]`; zero at the first step of an episode.
    action, reward, discount, valid: `[T, B]`; valid is false at padding.
    q_mcts: `[T, B, A]` rescaled search result; None without search.
    state: recurrent state before the first step, `[B, H]` each. weight: `[B]` importance weights.
    """

    frames: Array
    previous_action: Array
    previous_reward: Array
    action: Array
    reward: Array
    discount: Array
    valid: Array
    q_mcts: Array
    state: dict[str, Array]
    weight: Array


def to_rescaled(q: Array, search_space: str) -> Array:
    """Return the values of a search in the rescaled units that replay stores.

    See docs/experiments/atari.md#values-in-the-search.

    search_space: 'transformed' where the search averages h(return); 'mixed' or 'raw' where it
    averages returns.
    """
    known = ("transformed", "mixed", "raw")
    if search_space not in known:
        raise unknown_name("space of values", search_space, known, "--r2d2.network.search-space")
    return q if search_space == "transformed" else rescale(q)


def importance_weights(probabilities: Array) -> Array:
    """Return `w_i = (1 / (N P_i))^0.6 / max_j (1 / (N P_j))^0.6`, `[B]`.

    N and any other common factor of the probabilities cancel.
    """
    return (probabilities / jnp.min(probabilities)) ** -IMPORTANCE


def n_step_targets(
    rewards: Array, discounts: Array, online_q: Array, target_q: Array, valid: Array, n: int
) -> Array:
    """Return rescaled double Q-learning targets `[T, ...]`:

        h( Σ_{k<n} γ^k r_{t+k} + γ^n h⁻¹(Q̃⁻(s_{t+n}, a*)) ),   a* = argmax_a q̃(s_{t+n}, a)

    with a smaller n where fewer steps follow, and no bootstrap after the end of a game.

    rewards, discounts, valid: `[T, ...]`. online_q, target_q: q̃ and Q̃⁻, `[T + 1, ..., A]`. Targets
    at padding are meaningless.
    """
    values = unscale(_of_action(target_q, jnp.argmax(online_q, -1)))
    returns = rewards
    after = values[1:]  # return from s_{t+1} on, over 0, 1, … n - 1 steps
    for _ in range(n):
        returns = rewards + jnp.where(discounts == 0, 0.0, discounts * after)
        longer = jnp.where(valid[1:], returns[1:], values[1:-1])
        after = jnp.concatenate([longer, values[-1:]])
    return jax.lax.stop_gradient(rescale(returns))


def td_errors(q: Array, actions: Array, targets: Array, valid: Array) -> Array:
    """Return `δ_t = target_t - q̃(s_t, a_t)`, `[T, ...]`, and 0 at padding.

    q: `[T, ..., A]`. actions, targets, valid: `[T, ...]`.
    """
    return jnp.where(valid, targets - _of_action(q, actions), 0.0)


def amortization_terms(q: Array, q_mcts: Array, valid: Array) -> tuple[Array, Array]:
    """Return the cross-entropies and KL divergences of p_MCTS and p_θ, `[T, ...]`, 0 at padding:

        CE_t = -Σ_a p_MCTS(a) log p_θ(a)   and   KL_t = Σ_a p_MCTS(a) log (p_MCTS(a) / p_θ(a))

    p_θ = softmax(q̃) and p_MCTS = softmax(q̃_MCTS), `[T, ..., A]`; no gradient flows into p_MCTS.
    """
    # Padding must not reach a gradient, not even as zero times infinity.
    q_mcts = jnp.where(valid[..., None], jax.lax.stop_gradient(q_mcts), 0.0)
    cross_entropy = jnp.where(valid, _cross_entropy(q, q_mcts), 0.0)
    entropy = jnp.where(valid, _cross_entropy(q_mcts, q_mcts), 0.0)
    return cross_entropy, cross_entropy - entropy


def sequence_priorities(errors: Array, valid: Array) -> Array:
    """Return `0.9 max_t |δ_t| + 0.1 mean_t |δ_t|` over valid steps, `[T, ...]` to `[...]`."""
    size = jnp.abs(errors)
    return ETA * jnp.max(size, 0, where=valid, initial=0.0) + (1 - ETA) * _mean(size, valid, 0)


def sequence_loss(
    network: RecurrentNetwork, target: RecurrentNetwork, batch: Sequences,
    beta_q: float, beta_a: float, burn_in: int, n: int, *,
    over_time: Literal["sum", "mean"] = "sum", weighted_losses: Literal["both", "q"] = "both",
    raw: bool = False,
) -> tuple[Array, dict[str, Any]]:  # fmt: skip
    """Return the loss of a batch, differentiable in `network`, and a dictionary of metrics. It is

        mean_b w_b Σ_t ℓ_t,   ℓ_t = β_Q ½ δ_t² + β_A CE_t   over the valid training steps t

    Both networks burn in from the stored state, without gradient. With β_A = 0 the search's results
    are ignored, and this is R2D2's loss.

    over_time: 'mean' divides by the number of valid steps. weighted_losses: 'q' applies w to the
    first term only. raw: take the softmaxes of plain values, h⁻¹ of these.

    The metrics are `priorities` `[B]`, and means over the same steps of `loss_q` (½ δ²), `error`
    (|δ|), `q` (q̃ of the action taken) and, with β_A, of `loss_a` (CE) and `kl`.
    """
    seen = _seen(batch)
    observations = _observations(batch, seen)
    warm_up = jax.tree.map(lambda x: x[:burn_in], (observations, seen))
    window = jax.tree.map(lambda x: x[burn_in:], (observations, seen))

    def values(network: RecurrentNetwork) -> Array:
        cut = jax.lax.stop_gradient(network)
        _, state = unroll(cut, warm_up[0], batch.state, warm_up[1])
        return unroll(network, window[0], state, window[1])[0]

    q, target_q = values(network), values(jax.lax.stop_gradient(target))
    action, reward, discount, valid = (
        x[burn_in:-1] for x in (batch.action, batch.reward, batch.discount, batch.valid)
    )
    targets = n_step_targets(reward, discount, q, target_q, valid, n)
    errors = td_errors(q[:-1], action, targets, valid)
    loss_q = 0.5 * jnp.square(errors)
    weight = jnp.broadcast_to(batch.weight, loss_q.shape)
    per_step = beta_q * weight * loss_q
    logged = {"loss_q": loss_q, "error": jnp.abs(errors), "q": _of_action(q[:-1], action)}
    if beta_a != 0:
        found = jnp.where(valid[..., None], batch.q_mcts[burn_in:-1], 0.0)
        compared = (unscale(q[:-1]), unscale(found)) if raw else (q[:-1], found)
        loss_a, kl = amortization_terms(*compared, valid)
        per_step = per_step + beta_a * (weight if weighted_losses == "both" else 1.0) * loss_a
        logged |= {"loss_a": loss_a, "kl": kl}
    about = {name: _mean(x, valid) for name, x in logged.items()}
    about["priorities"] = sequence_priorities(errors, valid)
    steps = jnp.maximum(jnp.sum(valid, 0), 1) if over_time == "mean" else 1
    loss = jnp.mean(jnp.sum(per_step, 0) / steps)
    return loss, jax.lax.stop_gradient(about)


def _seen(batch: Sequences) -> Array:
    """Mark the observations `[T, B]` in use: of valid steps, and the last of truncated episodes."""
    goes_on = batch.valid[:-1] & (batch.discount[:-1] != 0)
    return jnp.concatenate([batch.valid[:1], batch.valid[1:] | goes_on])


def _observations(batch: Sequences, seen: Array) -> dict[str, Array]:
    """Return the network's observations `[T, B, ...]`; padding is blank in every frame stack."""
    before = STACK - 1
    frames = jnp.where(seen[..., None, None], batch.frames[before:], 0)
    return {
        "frames": stack_frames(jnp.concatenate([batch.frames[:before], frames])),
        "action": batch.previous_action,
        "reward": batch.previous_reward,
    }


def _of_action(q: Array, action: Array) -> Array:
    """Return `q(s, a)` `[...]` from `q [..., A]`."""
    return jnp.take_along_axis(q, action[..., None], -1)[..., 0]


def _mean(x: Array, valid: Array, axis: int | None = None) -> Array:
    """Return the mean over valid steps; 0 if there are none."""
    return jnp.sum(x, axis, where=valid) / jnp.maximum(jnp.sum(valid, axis), 1)
