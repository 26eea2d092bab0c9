"""Both back ends return what a literal transcription of the paper returns."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from save_rl.search.rules import PAPER_RULES, TIE_TOLERANCE
from tests.search import mdps, reference

# One worker of xdist runs all that searches here on the device: programs are compiled once.
pytestmark = pytest.mark.xdist_group("device_search")

RULES = PAPER_RULES
CONSTANTS = {
    "c": st.sampled_from([0.0, 0.1, 1.0, 2.0]),
    "discount": st.sampled_from([0.5, 0.99, 1.0]),
}


def expected(mdp, root, rule, budget, c, discount, seed):
    outcome = reference.search(
        mdp, root, rule.name.lower(), budget, c, discount, mdps.prefer(seed), TIE_TOLERANCE
    )
    assume(not outcome.ambiguous)
    return outcome


def check(result, lane, outcome):
    np.testing.assert_array_equal(np.asarray(result.visits[lane]), outcome.visits)
    np.testing.assert_array_equal(np.asarray(result.explored[lane]), outcome.explored)
    np.testing.assert_allclose(np.asarray(result.q_values[lane]), outcome.q_values, atol=1e-5)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
@given(data=st.data(), budget=st.integers(0, 60), seed=st.integers(0, 2**32 - 1), **CONSTANTS)
@settings(max_examples=30)
def test_host_equals_the_equations(rule, data, budget, c, discount, seed):
    mdp = data.draw(mdps.mdps(rule))
    outcome = expected(mdp, 0, rule, budget, c, discount, seed)
    result, calls = mdps.host_search(mdp, np.array([1, 0]), rule, budget, c, discount, [seed, seed])
    check(result, 1, outcome)
    assert calls[1] == outcome.simulator_calls


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
@given(
    data=st.data(),
    budget=st.sampled_from([0, *mdps.DEVICE_BUDGETS]),
    seed=st.integers(0, 2**32 - 1),
    **CONSTANTS,
)
@settings(max_examples=15)
def test_device_equals_the_equations(rule, data, budget, c, discount, seed):
    mdp = data.draw(mdps.mdps(rule))
    outcome = expected(mdp, 0, rule, budget, c, discount, seed)
    result = mdps.device_search(mdp, np.array([1, 0]), rule, budget, c, discount, [seed, seed])
    check(result, 1, outcome)
    on_host, _ = mdps.host_search(mdp, np.array([0]), rule, budget, c, discount, [seed])
    np.testing.assert_allclose(np.asarray(result.q_values[1]), on_host.q_values[0], atol=1e-5)
