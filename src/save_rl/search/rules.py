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

With chance an action has several *outcomes*, each a child of its own; the action's visits and
returns are those of all its outcomes together, so the rules are the same. `widens` says when an
action gets another outcome, `luck` with which seed the simulator draws it. A return is then one
draw among many, so SAVE's prior counts as more than one visit (`prior_visits`).
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

# Purposes of `luck`.
OUTCOME, NODE, EPISODE = 0, 1, 2
# With chance, all three chosen by measurement: results/chance/README.md.
_WIDENING = 4  # n visits allow ⌈4 √n⌉ outcomes
_PRIOR_VISITS = 16  # visits that SAVE's prior counts as

_SAVE, _UCT = int(Rule.SAVE), int(Rule.UCT)


def prior_visits(stochastic: bool) -> int:
    """Return the visits that SAVE's prior counts as: 1 in the paper, more with chance."""
    return _PRIOR_VISITS if stochastic else 1


def action_value(rule: int, prior: Any, total_return: Any, visits: Any, before: int = 1) -> Any:
    """Return Q_k(s, a), from the sum of backed-up returns; before: of `prior_visits`."""
    if rule == _SAVE:
        return (before * prior + total_return) / (visits + before)
    return total_return / (visits + (visits == 0))


def pseudo_visits(rule: int, visits: Any, before: int = 1) -> Any:
    """Return N_k(s, a) as it enters ΣN, the sum over a node's unmasked actions."""
    if rule == _SAVE:
        return visits + before
    if rule == _UCT:
        return visits + (visits == 0)
    return visits


def exploration(rule: int, prior: Any, visits: Any, spread: Any, c: Any, before: int = 1) -> Any:
    """Return U_k(s, a); `spread` is √(log ΣN) for SAVE and UCT, √ΣN for PUCT, one per node."""
    if rule == _SAVE:
        return c * spread / (visits + before) ** 0.5
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


def widens(outcomes: Any, visits: Any) -> Any:
    """Test whether an action with some outcomes gets another: fewer than ⌈4 √visits⌉.

    In integers, so that both back ends decide alike.
    """
    return outcomes * outcomes < _WIDENING * _WIDENING * visits


def most_outcomes(budget: int) -> int:
    """Return the most outcomes that an action can have in a search."""
    outcomes = 1
    for visits in range(1, budget):
        outcomes += bool(widens(outcomes, visits))
    return outcomes


def luck(seed: Any, number: Any, purpose: int = OUTCOME) -> Any:
    """Return a random 31-bit seed, made from another one as in `tie_priority`.

    OUTCOME: of the steps that draw outcome `number` of a node's actions, from the node's seed. All
    actions share it, so that their values differ less by chance (common random numbers). NODE: of
    the new node, from the seed of the step and the action `number`. EPISODE: of real step `number`,
    from the seed of the episode.
    """
    x = (seed + number * 0x1E3779B1 + purpose * 0x05EBCA77 + 0x5BD1E995) & 0x7FFFFFFF
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & 0x7FFFFFFF
    x = x ^ (x >> 15)
    x = (x * 0x2C1B3C6D) & 0x7FFFFFFF
    return x ^ (x >> 16)
