"""The three search policies `argmax_a Q_k(s, a) + U_k(s, a)` of the paper, and tie-breaking.

Gumbel AlphaZero's, which is of another form, is mctx's own: `search.device`.

Every function here is plain arithmetic, so one definition serves both back ends: JAX arrays in
`search.device`, and scalars compiled by Numba in `search.host`.

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
    GUMBEL = 3


PAPER_RULES = (Rule.SAVE, Rule.UCT, Rule.PUCT)
"""The rules of the paper, which both back ends have."""


class Space(IntEnum):
    """The units in which a search averages, for networks that predict rescaled values h(Q).

    PLAIN: priors and returns in plain units. TRANSFORMED: means of the rescaled prior and of h of
    every return. MIXED: means in plain units, compared after h. See
    docs/experiments/atari.md#values-in-the-search.
    """

    PLAIN = 0
    TRANSFORMED = 1
    MIXED = 2


# Scores closer than this are tied: far below any difference that matters, yet above the rounding
# error of float32, so single and double precision see the same ties.
TIE_TOLERANCE = 1e-5

_SAVE, _UCT = int(Rule.SAVE), int(Rule.UCT)


def action_value(rule: int, prior: Any, total_return: Any, visits: Any) -> Any:
    """Return Q_k(s, a), from the sum of backed-up returns."""
    if rule == _SAVE:
        return (prior + total_return) / (visits + 1)
    return total_return / (visits + (visits == 0))


def pseudo_visits(rule: int, visits: Any) -> Any:
    """Return N_k(s, a) as it enters ΣN, the sum over a node's unmasked actions."""
    if rule == _SAVE:
        return visits + 1
    if rule == _UCT:
        return visits + (visits == 0)
    return visits


def exploration(rule: int, prior: Any, visits: Any, spread: Any, c: Any) -> Any:
    """Return U_k(s, a); `spread` is √(log ΣN) for SAVE and UCT, √ΣN for PUCT, one per node."""
    if rule == _SAVE:
        return c * spread / (visits + 1) ** 0.5
    if rule == _UCT:
        return c * spread / (visits + (visits == 0)) ** 0.5
    return c * prior * spread / (visits + 1)


def tie_priority(seed: Any, simulation: Any, node: Any, action: Any) -> Any:
    """Return a random 31-bit number for one action in one selection; the highest wins a tie.

    It depends only on the lane's seed, the simulation, the node and the action, so both back ends
    break the same tie in the same way, and every tie is broken anew. Three odd multipliers spread
    the indices, then two rounds of multiply and xor-shift scramble the bits. Works on Python
    integers, Numba integers and unsigned 32-bit arrays.
    """
    x = (seed + simulation * 0x1E3779B1 + node * 0x05EBCA77 + action * 0x42B2AE3D) & 0x7FFFFFFF
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & 0x7FFFFFFF
    x = x ^ (x >> 15)
    x = (x * 0x2C1B3C6D) & 0x7FFFFFFF
    return x ^ (x >> 16)
