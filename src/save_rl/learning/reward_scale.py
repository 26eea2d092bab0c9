"""The size of returns, measured while training: a power of 2, so that division by it is exact.

It follows `G_t = γ G_(t-1) + r_t`, the discounted sum of the rewards of an episode so far, which is
as large as the returns that lie ahead, and is known at every step. The scale is the highest power
of 2 that is not above the largest |G| so far. It never falls: values learned in its units stay
what they are once rewards have shown their size.
"""

from typing import Any

from save_rl.types import Array

NOTHING_YET = 0.0
"""The scale before the first reward that is not 0."""


def next_sums(sums: Array, reward: Array, gamma: float, fresh: Array, xp: Any) -> Array:
    """Return G_t of lanes `[...]`; fresh: their episode began with this step.

    xp: NumPy or jax.numpy, here and below.
    """
    return xp.asarray(xp.where(fresh, 0.0, gamma * sums) + reward, xp.float32)


def grown(scale: Array, sums: Array, xp: Any) -> Array:
    """Return the scale `[...]` after a step with these sums `[..., lanes]`."""
    largest = xp.max(xp.abs(sums), -1)
    _, exponent = xp.frexp(largest)  # 2^(exponent - 1) ≤ largest
    seen = xp.ldexp(xp.ones_like(largest), exponent - 1)
    return xp.asarray(xp.maximum(scale, xp.where(largest > 0, seen, NOTHING_YET)), xp.float32)


def divisor(scale: Array, xp: Any) -> Array:
    """Return what rewards are divided by: the scale, or 1 before there was a reward."""
    return xp.where(scale > 0, scale, xp.float32(1.0))
