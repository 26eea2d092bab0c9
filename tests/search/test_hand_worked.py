"""The first four simulations of each rule, worked out with pen and paper, on both back ends."""

import numpy as np
import pytest

from save_rl.search.rules import Rule
from tests.search import mdps
from tests.search.reference import Mdp

# One worker of xdist runs all that searches here on the device: programs are compiled once.
pytestmark = pytest.mark.xdist_group("device_search")

HOST = [pytest.param(budget, "host", id=f"{budget}-host") for budget in (1, 2, 3, 4)]
# The device needs a program for each budget; all four simulations show in the numbers of the last.
DEVICE = [
    *(pytest.param(n, "device", marks=pytest.mark.slow, id=f"{n}-device") for n in (1, 2, 3)),
    pytest.param(4, "device", id="4-device"),
]
each_budget = pytest.mark.parametrize(("budget", "back_end"), [*HOST, *DEVICE])
C, DISCOUNT = 1.0, 0.5


def small_mdp(edges: dict[tuple[int, int], dict], value: dict[int, float] | None = None) -> Mdp:
    """Pad an MDP of a few `(state, action)` edges to the shape the back ends compile for.

    An edge without `to` is terminal. Everything not named is masked, and would be noticed: its
    reward is NaN.
    """
    shape = (mdps.STATES, mdps.ACTIONS)
    mdp = Mdp(
        next_state=np.zeros(shape, int),
        reward=np.full(shape, np.nan),
        terminal=np.zeros(shape, bool),
        mask=np.zeros(shape, bool),
        prior=np.zeros(shape),
        value=np.zeros(mdps.STATES),
    )
    for at, edge in edges.items():
        mdp.next_state[at] = edge.get("to", 0)
        mdp.terminal[at] = "to" not in edge
        mdp.reward[at] = edge["reward"]
        mdp.prior[at] = edge.get("prior", 0.0)
        mdp.mask[at] = True
    for state, number in (value or {}).items():
        mdp.value[state] = number
    return mdp


def check(result, lane, q_values, visits):
    """The actions beyond those of the hand-worked case are masked."""
    masked = mdps.ACTIONS - len(visits)
    np.testing.assert_array_equal(np.asarray(result.visits[lane]), [*visits, *[0] * masked])
    np.testing.assert_allclose(
        np.asarray(result.q_values[lane]), [*q_values, *[-np.inf] * masked], atol=1e-6
    )
    np.testing.assert_array_equal(
        np.asarray(result.explored[lane]), np.asarray(result.visits[lane]) > 0
    )


# Root: action 0 leads on to state 1 (reward 0), action 1 ends with 0.1. State 1: both actions end,
# with 0 and with 1. Leaf value of state 1: max(0.4, 0.8) = 0.8. Every N starts at 1.
SAVE_MDP = small_mdp(
    {
        (0, 0): {"to": 1, "reward": 0.0, "prior": 0.5},
        (0, 1): {"reward": 0.1, "prior": 0.2},
        (1, 0): {"reward": 0.0, "prior": 0.4},
        (1, 1): {"reward": 1.0, "prior": 0.8},
    }
)
# 1. U is the same for both actions, and 0.5 > 0.2: action 0.
#    R = 0 + 0.5 x 0.8 = 0.4, Q(0) = (0.5 + 0.4) / 2 = 0.45, N = 2.
# 2. ΣN = 3, log 3 = 1.0986. Action 0: 0.45 + √(1.0986 / 2) = 1.191;
#    action 1: 0.2 + √1.0986 = 1.248. Action 1, terminal: R = 0.1, Q(1) = (0.2 + 0.1) / 2 = 0.15.
# 3. N = 2 for both, 0.45 > 0.15: action 0. In state 1 U is equal and 0.8 > 0.4: action 1, terminal.
#    R = 0 + 0.5 x 1 = 0.5, Q(0) = (0.5 + 0.4 + 0.5) / 3 = 0.46667.
# 4. ΣN = 5, log 5 = 1.6094. Action 0: 0.46667 + √(1.6094 / 3) = 1.199;
#    action 1: 0.15 + √(1.6094 / 2) = 1.047. Action 0.
#    State 1, ΣN = 3. Action 0: 0.4 + 1.048 = 1.448;
#    action 1: (0.8 + 1) / 2 + √(1.0986 / 2) = 1.641. Action 1: known to be terminal, no simulator.
#    R = 0.5 again, Q(0) = (0.5 + 0.4 + 0.5 + 0.5) / 4 = 0.475.
SAVE_EXPECTED = {
    1: ([0.45, 0.2], [1, 0], 1),
    2: ([0.45, 0.15], [1, 1], 2),
    3: ([1.4 / 3, 0.15], [2, 1], 3),
    4: ([0.475, 0.15], [3, 1], 3),
}


@each_budget
def test_save(budget, back_end):
    q_values, visits, simulator_calls = SAVE_EXPECTED[budget]
    arguments = (SAVE_MDP, np.array([0, 0]), Rule.SAVE, budget, C, DISCOUNT, [3, 4])
    if back_end == "device":
        check(mdps.device_search(*arguments), 0, q_values, visits)
    else:
        result, calls = mdps.host_search(*arguments)
        check(result, 0, q_values, visits)
        assert calls[0] == simulator_calls


# For UCT and PUCT. Root: action 0 pays 0.2 and leads to state 1, of value 0.6, so a first try
# returns 0.2 + 0.5 x 0.6 = 0.5; action 1 ends with 0.32. State 1: its one action ends with 1, and
# backs up 0.2 + 0.5 x 1 = 0.7 to the root.
CHAIN = small_mdp(
    {
        (0, 0): {"to": 1, "reward": 0.2, "prior": 0.3},
        (0, 1): {"reward": 0.32, "prior": 0.7},
        (1, 0): {"reward": 1.0, "prior": 1.0},
    },
    value={1: 0.6},
)

# At first every value is 0 and every U is the same (0 for PUCT), so both rules begin with a tie.
# Each is worked out for both of its outcomes.
#
# UCT, action 0 first. N counts as max(N, 1), so an action tried once has the U of an untried one.
# 1. Q(0) = 0.5.
# 2. U is equal, 0.5 > 0: action 0, on to the end of state 1. R = 0.7, Q(0) = (0.5 + 0.7) / 2 = 0.6.
# 3. ΣN = 2 + 1. Action 0: 0.6 + √(1.0986 / 2) = 1.341; action 1: 0 + √1.0986 = 1.048.
#    Action 0 to a known end: Q(0) = (0.5 + 0.7 + 0.7) / 3 = 0.63333.
# 4. ΣN = 3 + 1, log 4 = 1.3863. Action 0: 0.63333 + √(1.3863 / 3) = 1.313;
#    action 1: √1.3863 = 1.177. Action 0 again: Q(0) = (0.5 + 3 x 0.7) / 4 = 0.65.
#
# UCT, action 1 first. It is terminal, so that after its first try no simulator is asked about it.
# 1. Q(1) = 0.32.
# 2. U is equal, 0.32 > 0: action 1.
# 3. ΣN = 1 + 2. Action 0: 0 + √1.0986 = 1.048; action 1: 0.32 + √(1.0986 / 2) = 1.061. Action 1.
#    (With a pseudo-count for every action, as in SAVE, ΣN would be 2 + 2, the scores from log 4
#    1.177 and 1.153, and the choice action 0.)
# 4. ΣN = 1 + 3. Action 0: √1.3863 = 1.177; action 1: 0.32 + √(1.3863 / 3) = 1.000.
#    Action 0: Q(0) = 0.5.
#
# PUCT, action 0 first, π = (0.3, 0.7).
# 1. Q(0) = 0.5.
# 2. √ΣN = 1. Action 0: 0.5 + 0.3 / 2 = 0.65; action 1: 0.7 / 1. Action 1: Q(1) = 0.32.
# 3. √ΣN = 1.4142. Action 0: 0.5 + 0.3 x 1.4142 / 2 = 0.712;
#    action 1: 0.32 + 0.7 x 1.4142 / 2 = 0.815. Action 1, known to be terminal.
# 4. √ΣN = 1.7321. Action 0: 0.5 + 0.3 x 1.7321 / 2 = 0.760;
#    action 1: 0.32 + 0.7 x 1.7321 / 3 = 0.724.
#    Action 0, on to the end of state 1: Q(0) = (0.5 + 0.7) / 2 = 0.6.
#
# PUCT, action 1 first.
# 1. Q(1) = 0.32.
# 2. Action 0: 0.3; action 1: 0.32 + 0.7 / 2 = 0.67. Action 1.
# 3. Action 0: 0.3 x 1.4142 = 0.424; action 1: 0.32 + 0.7 x 1.4142 / 3 = 0.650. Action 1.
# 4. Action 0: 0.3 x 1.7321 = 0.520; action 1: 0.32 + 0.7 x 1.7321 / 4 = 0.623. Action 1.
EXPECTED = {
    (Rule.UCT, 0): {
        1: ([0.5, 0.0], [1, 0], 1),
        2: ([0.6, 0.0], [2, 0], 2),
        3: ([1.9 / 3, 0.0], [3, 0], 2),
        4: ([0.65, 0.0], [4, 0], 2),
    },
    (Rule.UCT, 1): {
        1: ([0.0, 0.32], [0, 1], 1),
        2: ([0.0, 0.32], [0, 2], 1),
        3: ([0.0, 0.32], [0, 3], 1),
        4: ([0.5, 0.32], [1, 3], 2),
    },
    (Rule.PUCT, 0): {
        1: ([0.5, 0.0], [1, 0], 1),
        2: ([0.5, 0.32], [1, 1], 2),
        3: ([0.5, 0.32], [1, 2], 2),
        4: ([0.6, 0.32], [2, 2], 3),
    },
    (Rule.PUCT, 1): {
        1: ([0.0, 0.32], [0, 1], 1),
        2: ([0.0, 0.32], [0, 2], 1),
        3: ([0.0, 0.32], [0, 3], 1),
        4: ([0.0, 0.32], [0, 4], 1),
    },
}


def seeds_by_first_action(rule):
    """A seed whose first tie falls on action 0, and one whose falls on action 1."""
    seeds = np.arange(64)
    result, _ = mdps.host_search(CHAIN, np.zeros(64, int), rule, 1, C, DISCOUNT, seeds)
    first = result.visits.argmax(1)
    assert set(first) == {0, 1}
    return [int(seeds[first == action][0]) for action in (0, 1)]


@each_budget
@pytest.mark.parametrize("rule", [Rule.UCT, Rule.PUCT], ids=lambda r: r.name)
def test_uct_and_puct(rule, budget, back_end):
    seeds = seeds_by_first_action(rule)
    arguments = (CHAIN, np.array([0, 0]), rule, budget, C, DISCOUNT, seeds)
    if back_end == "device":
        result, calls = mdps.device_search(*arguments), None
    else:
        result, calls = mdps.host_search(*arguments)
    for first_action in (0, 1):
        q_values, visits, simulator_calls = EXPECTED[rule, first_action][budget]
        check(result, first_action, q_values, visits)
        assert calls is None or calls[first_action] == simulator_calls
