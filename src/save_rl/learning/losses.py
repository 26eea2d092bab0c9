"""The paper's loss terms for one transition; callers vmap and average.

Arguments follow the equations: `q` is Qθ(s, ·) `[A]`, -inf where an action is masked.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def td_target(
    reward: Float[Array, ""], discount: Float[Array, ""], next_q: Float[Array, " A"]
) -> Float[Array, ""]:
    """Return `r + γ max_a Q_target(s', a)`; the discount is 0 after a terminal step."""
    return reward + discount * jnp.max(jnp.where(discount > 0, next_q, 0.0))


def double_q_target(
    reward: Float[Array, ""],
    discount: Float[Array, ""],
    next_q: Float[Array, " A"],
    online_q: Float[Array, " A"],
) -> Float[Array, ""]:
    """Return `r + γ Q_target(s', argmax_a Qθ(s', a))` (double Q-learning, van Hasselt et al. 2016).

    next_q: of the target network. online_q: of the network that learns.
    """
    value = next_q[jnp.argmax(online_q)]
    return reward + discount * jnp.where(discount > 0, value, 0.0)


def td_loss(
    q: Float[Array, " A"], action: Int[Array, ""], target: Float[Array, ""]
) -> Float[Array, ""]:
    """Return L_Q of 1-step Q-learning, `½ (target - Qθ(s, a))²`."""
    return 0.5 * jnp.square(jax.lax.stop_gradient(target) - q[action])


def return_loss(value: Float[Array, ""], monte_carlo_return: Float[Array, ""]) -> Float[Array, ""]:
    """Return L_Q of PUCT (paper A.3), `½ (Vθ(s) - R)²`.

    The paper prints the norm of the difference; the square is minimised by the mean return, which
    the search needs, rather than by the median.
    """
    return 0.5 * jnp.square(monte_carlo_return - value)


def cross_entropy(logits: Float[Array, " A"], target: Float[Array, " A"]) -> Float[Array, ""]:
    """Return `-Σ_a p(a) log softmax(logits)(a)` over unmasked actions; `target` p is constant."""
    valid = logits > -jnp.inf
    log_p = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.where(valid, jax.lax.stop_gradient(target) * log_p, 0.0))


def amortization_loss(
    q: Float[Array, " A"], q_mcts: Float[Array, " A"], temperature: float | Float[Array, ""] = 1.0
) -> Float[Array, ""]:
    """Return L_A (paper, section 3.3), the cross-entropy of softmax(Q_MCTS/τ) and softmax(Qθ/τ)."""
    target = jax.nn.softmax(jnp.where(q > -jnp.inf, q_mcts, -jnp.inf) / temperature)
    return cross_entropy(q / temperature, target)


def explored_amortization_loss(
    q: Float[Array, " A"], q_mcts: Float[Array, " A"], temperature: float | Float[Array, ""] = 1.0
) -> Float[Array, ""]:
    """Return L_A with both softmaxes over the explored actions alone; `q_mcts` is -inf elsewhere.

    Not the paper's: there, untried actions keep the Qθ that they had during the search.
    """
    return amortization_loss(jnp.where(q_mcts > -jnp.inf, q, -jnp.inf), q_mcts, temperature)


def weighted_amortization_loss(
    q: Float[Array, " A"], q_mcts: Float[Array, " A"], visits: Float[Array, " A"]
) -> Float[Array, ""]:
    """Return `½ Σ_a w(a) (Q_MCTS(a) - Qθ(a))²`, w the share of each action in the `visits`.

    Not the paper's: untried actions have no weight, and values are compared, not differences.
    """
    tried = visits > 0
    difference = jnp.where(tried, jax.lax.stop_gradient(q_mcts), 0.0) - jnp.where(tried, q, 0.0)
    return 0.5 * jnp.sum(visits / jnp.maximum(jnp.sum(visits), 1.0) * jnp.square(difference))


def l2_amortization_loss(q: Float[Array, " A"], q_mcts: Float[Array, " A"]) -> Float[Array, ""]:
    """Return the L2 variant of L_A (paper C.3): `‖Q_MCTS - Qθ‖` over unmasked actions."""
    valid = q > -jnp.inf
    difference = jnp.where(valid, jax.lax.stop_gradient(q_mcts), 0.0) - jnp.where(valid, q, 0.0)
    return safe_norm(difference)


def safe_norm(x: Float[Array, " A"]) -> Float[Array, ""]:
    """Return the Euclidean norm, with gradient 0 instead of NaN at 0."""
    square = jnp.sum(jnp.square(x))
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)
