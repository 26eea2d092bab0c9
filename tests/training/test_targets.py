"""What replay keeps of a search for the amortization loss, on both paths."""

import jax.numpy as jnp
import numpy as np
import pytest

from save_rl.agents import get_agent, target_width
from save_rl.training.device.acting import target_of
from save_rl.training.host.collector import _searched_targets
from save_rl.training.settings import TrainSettings
from save_rl.types import SearchResult

INF = np.inf
# One lane of six actions, the last of them masked; a search tried the second twice and the fourth
# once. Q_MCTS of the others is their Qθ.
Q = [0.1, 0.2, 0.3, 0.4, 0.5, -INF]
Q_MCTS = [0.1, 2.0, 0.3, 4.0, 0.5, -INF]
VISITS = [0, 2, 0, 1, 0, 0]
EXPECTED = {
    "save": Q_MCTS,
    "save-explored": [-INF, 2.0, -INF, 4.0, -INF, -INF],
    "save-visit-weighted": [*Q_MCTS, *VISITS],
    "q-learning": [],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_on_the_device(name):
    visits = jnp.asarray([VISITS])
    result = SearchResult(jnp.asarray([Q_MCTS]), visits, visits > 0)
    target = target_of(get_agent(name), result)
    np.testing.assert_allclose(target, [EXPECTED[name]], rtol=1e-6)
    assert target.shape[1] == target_width(get_agent(name), 6)


@pytest.mark.parametrize("name", ["save", "save-explored", "save-visit-weighted"])
def test_from_the_slots_of_a_tree_on_the_host(name):
    # The tree has slots for actions 3, 1 and 4, and one left over, which says 0.
    kind = get_agent(name).amortization_loss
    target = _searched_targets(
        jnp.asarray([[Q]]), jnp.asarray([[[3, 1, 4, 0]]]), jnp.asarray([[[4.0, 2.0, 0.5, -INF]]]),
        jnp.asarray([[[1, 2, 0, 0]]]), kind,
    )  # fmt: skip
    np.testing.assert_allclose(target, [[EXPECTED[name]]], rtol=1e-6)


@pytest.mark.parametrize("name", ["save-explored", "save-visit-weighted"])
def test_without_a_search_there_is_nothing_to_learn_from(name):
    with pytest.raises(ValueError, match=f"at least 1 for '{name}', which learns from actions"):
        TrainSettings(agent=name, budget=0).check()
