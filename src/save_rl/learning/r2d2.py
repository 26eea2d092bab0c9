"""R2D2 with and without SAVE: learning from sequences (atari_r2d2.md, 1 and 7).

A sequence has 40 steps that only warm up the recurrent state (burn-in), 80 to train on, and one to
bootstrap from. Arrays have time first and may have a batch behind it: `[T, ...]` below stands for
`[T]` or `[T, B]`. Values are rescaled, q̃ = h(Q), TD errors and stored search results as well;
rewards are points, and discounts contain γ and are 0 where the game ended.

`valid` says where a step was taken, and is false at padding. Where an episode was cut short before
the game ended, its last observation follows the last valid step, to bootstrap from; all else in
padding is never looked at.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from save_rl.errors import unknown_name
from save_rl.learning import losses
from save_rl.learning.r2d2_settings import ETA
from save_rl.networks.recurrent import STACK, RecurrentNetwork, stack_frames, unroll
from save_rl.rescaling import rescale, unscale
from save_rl.types import Array

BURN_IN = 40  # R2D2, table 2, as all of these
N_STEP = 5
IMPORTANCE = 0.6

_cross_entropy = jnp.vectorize(losses.amortization_loss, signature="(a),(a)->()")


class Sequences(NamedTuple):
    """A batch of `B` sequences of `T` steps: burn-in, training and one to bootstrap from.

    frames: `[T + 3, B, 84, 84]` uint8, beginning with the three before the first step.
    previous_action, previous_reward: `[T, B]` what led to a step; zero at the first of an episode.
    action, reward, discount, valid: `[T, B]` what was done, what followed, whether it was at all.
    q_mcts: `[T, B, A]` what the search found, rescaled; None where there is no search.
    state: of the network before the first step, `[B, H]` each. weight: `[B]` importance weights.
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
    """What a search found, in the rescaled units that replay stores (atari_r2d2.md, 6).

    search_space: 'transformed' where the search averages h(return); 'mixed' or 'raw' where it
    averages returns.
    """
    known = ("transformed", "mixed", "raw")
    if search_space not in known:
        raise unknown_name("space of values", search_space, known, "--r2d2.network.search-space")
    return q if search_space == "transformed" else rescale(q)


def importance_weights(probabilities: Array) -> Array:
    """`w_i = (1 / (N P_i))^0.6 / max_j (1 / (N P_j))^0.6`, `[B]`.

    N and any other factor that probabilities share cancel.
    """
    return (probabilities / jnp.min(probabilities)) ** -IMPORTANCE


def n_step_targets(
    rewards: Array, discounts: Array, online_q: Array, target_q: Array, valid: Array,
    n: int = N_STEP,
) -> Array:  # fmt: skip
    """Targets of double Q-learning `[T, ...]`, rescaled:

        h( Σ_{k<n} γ^k r_{t+k} + γ^n h⁻¹(Q̃⁻(s_{t+n}, a*)) ),   a* = argmax_a q̃(s_{t+n}, a)

    with a smaller n where fewer steps follow, and nothing after the end of a game.

    rewards, discounts, valid: `[T, ...]`. online_q, target_q: q̃ and Q̃⁻, `[T + 1, ..., A]`. What
    comes out at padding has no meaning.
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
    """`δ_t = target_t - q̃(s_t, a_t)`, `[T, ...]`, and 0 at padding.

    q: `[T, ..., A]`. actions, targets, valid: `[T, ...]`.
    """
    return jnp.where(valid, targets - _of_action(q, actions), 0.0)


def amortization_terms(q: Array, q_mcts: Array, valid: Array) -> tuple[Array, Array]:
    """`CE_t = -Σ_a p_MCTS(a) log p_θ(a)` and `KL_t = Σ_a p_MCTS(a) log (p_MCTS(a) / p_θ(a))`.

    p_θ = softmax(q̃) and p_MCTS = softmax(q̃_MCTS), the latter a constant; `[T, ..., A]` both. The
    results are `[T, ...]`, and 0 at padding.
    """
    # Nothing at padding may reach a gradient, not even as zero times infinity.
    q_mcts = jnp.where(valid[..., None], jax.lax.stop_gradient(q_mcts), 0.0)
    cross_entropy = jnp.where(valid, _cross_entropy(q, q_mcts), 0.0)
    entropy = jnp.where(valid, _cross_entropy(q_mcts, q_mcts), 0.0)
    return cross_entropy, cross_entropy - entropy


def sequence_priorities(errors: Array, valid: Array) -> Array:
    """`0.9 max_t |δ_t| + 0.1 mean_t |δ_t|` over valid steps, `[...]` of `[T, ...]`."""
    size = jnp.abs(errors)
    return ETA * jnp.max(size, 0, where=valid, initial=0.0) + (1 - ETA) * _mean(size, valid, 0)


def sequence_loss(
    network: RecurrentNetwork, target: RecurrentNetwork, batch: Sequences,
    beta_q: float = 1.0, beta_a: float = 10.0, burn_in: int = BURN_IN, n: int = N_STEP, *,
    over_time: Literal["sum", "mean"] = "sum", weighs: Literal["both", "q"] = "both",
    raw: bool = False,
) -> tuple[Array, dict[str, Any]]:  # fmt: skip
    """The loss of a batch, to be differentiated by `network`, and what else is worth knowing:

        mean_b w_b Σ_t ℓ_t,   ℓ_t = β_Q ½ δ_t² + β_A CE_t   over the valid training steps t

    Both networks burn in from the stored state, without gradient. Where β_A is 0, the search's
    results are not looked at, and this is R2D2.

    over_time: 'mean' divides by the number of valid steps. weighs: 'q' leaves w out of the second
    term. raw: compare softmaxes of plain values, h⁻¹ of these.

    Also returned: `priorities` `[B]`, and means over the same steps of `loss_q` (½ δ²), `error`
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
        per_step = per_step + beta_a * (weight if weighs == "both" else 1.0) * loss_a
        logged |= {"loss_a": loss_a, "kl": kl}
    about = {name: _mean(x, valid) for name, x in logged.items()}
    about["priorities"] = sequence_priorities(errors, valid)
    steps = jnp.maximum(jnp.sum(valid, 0), 1) if over_time == "mean" else 1
    loss = jnp.mean(jnp.sum(per_step, 0) / steps)
    return loss, jax.lax.stop_gradient(about)


def _seen(batch: Sequences) -> Array:
    """Which observations count, `[T, B]`: of all valid steps, and the last of a cut episode."""
    goes_on = batch.valid[:-1] & (batch.discount[:-1] != 0)
    return jnp.concatenate([batch.valid[:1], batch.valid[1:] | goes_on])


def _observations(batch: Sequences, seen: Array) -> dict[str, Array]:
    """What the network sees, `[T, B, ...]`; no frame of padding is in any stack."""
    before = STACK - 1
    frames = jnp.where(seen[..., None, None], batch.frames[before:], 0)
    return {
        "frames": stack_frames(jnp.concatenate([batch.frames[:before], frames])),
        "action": batch.previous_action,
        "reward": batch.previous_reward,
    }


def _of_action(q: Array, action: Array) -> Array:
    """`q(s, a)` `[...]` of `q [..., A]`."""
    return jnp.take_along_axis(q, action[..., None], -1)[..., 0]


def _mean(x: Array, valid: Array, axis: int | None = None) -> Array:
    """Mean over valid steps; 0 where there is none."""
    return jnp.sum(x, axis, where=valid) / jnp.maximum(jnp.sum(valid, axis), 1)
