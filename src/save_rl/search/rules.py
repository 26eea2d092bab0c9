"""The three search policies `argmax_a Q_k(s, a) + U_k(s, a)` of the paper, and how ties break.

Every function here is plain arithmetic, so that one definition serves both back ends: JAX arrays
in `search.device`, and scalars compiled by Numba in `search.host`.

| rule | value of an action | exploration |
|---|---|---|
| SAVE (eq. 1, 2, 4) | (Qθ + Σ returns) / (visits + 1) | c √(log ΣN / N), N = visits + 1 |
| UCT (section 3.1) | mean return, 0 if untried | the same, N = max(visits, 1) |
| PUCT (A.3) | mean return, 0 if untried | c π √(Σ visits) / (visits + 1) |

`prior` is Qθ for SAVE and π for PUCT. All untried actions of a node share everything but their
prior, so the best of them is the one with the highest prior.
"""

from enum import IntEnum
from typing import Any


class Rule(IntEnum):
    """A search policy."""

    SAVE = 0
    UCT = 1
    PUCT = 2


class Space(IntEnum):
    """What is averaged where a network predicts rescaled values h(Q) (atari_r2d2.md, section 6).

    PLAIN: priors and returns as they are. TRANSFORMED: rescaled priors with h of every return.
    MIXED: plain means, of which h is compared.
    """

    PLAIN = 0
    TRANSFORMED = 1
    MIXED = 2


# Scores closer than this are tied: far below any difference that matters, above the rounding of
# float32, so that single and double precision see the same ties.
TIE_TOLERANCE = 1e-5

_SAVE, _UCT = int(Rule.SAVE), int(Rule.UCT)


def action_value(rule: int, prior: Any, total_return: Any, visits: Any) -> Any:
    """Q_k(s, a) from the sum of backed-up returns."""
    if rule == _SAVE:
        return (prior + total_return) / (visits + 1)
    return total_return / (visits + (visits == 0))


def pseudo_visits(rule: int, visits: Any) -> Any:
    """N_k(s, a) as it enters ΣN: what a node sums over its unmasked actions."""
    if rule == _SAVE:
        return visits + 1
    if rule == _UCT:
        return visits + (visits == 0)
    return visits


def exploration(rule: int, prior: Any, visits: Any, spread: Any, c: Any) -> Any:
    """U_k(s, a); `spread` is √(log ΣN) for SAVE and UCT, √ΣN for PUCT, one number per node."""
    if rule == _SAVE:
        return c * spread / (visits + 1) ** 0.5
    if rule == _UCT:
        return c * spread / (visits + (visits == 0)) ** 0.5
    return c * prior * spread / (visits + 1)


def tie_priority(seed: Any, simulation: Any, node: Any, action: Any) -> Any:
    """A random 31-bit number for one action in one selection; of tied actions the highest wins.

    It depends on the lane's seed, the simulation, the node and the action alone, so both back ends
    break the same tie in the same way, and each tie is broken afresh. Three odd multipliers spread
    the indices, then two rounds of multiply and xor-shift scramble the bits. Works on Python
    integers, Numba's and unsigned 32-bit arrays.
    """
    x = (seed + simulation * 0x1E3779B1 + node * 0x05EBCA77 + action * 0x42B2AE3D) & 0x7FFFFFFF
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & 0x7FFFFFFF
    x = x ^ (x >> 15)
    x = (x * 0x2C1B3C6D) & 0x7FFFFFFF
    return x ^ (x >> 16)
