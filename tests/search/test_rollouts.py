"""What random rollouts of simulators are worth, and what becomes of a lane when one fails."""

import numpy as np
import pytest

from save_rl.envs.pool import Source
from save_rl.search.rollouts import ROLLOUT_LIMIT, rollout
from save_rl.search.rules import Rule
from save_rl.search.simulators import LaneSearch
from save_rl.search.tree_lanes import tree_pool
from tests.envs.pool_simulators import countdown

COUNTDOWN = "tests.envs.pool_simulators:countdown"


def paid(start: int, discount: float, end: int = 0) -> float:
    """Of standing at a number, when all are paid down to `end`."""
    return sum(discount**i * n for i, n in enumerate(range(start, end, -1)))


@pytest.mark.parametrize("discount", [0.9, 0.0, 1.0])
@pytest.mark.parametrize(("options", "end"), [({}, 0), ({"only": 2}, 0), ({"cut": 3}, 2)])
def test_it_is_worth_the_discounted_rewards_up_to_the_end(options, end, discount):
    simulator = countdown(**options)  # `only`: actions that are not allowed raise
    for start in (8, 3):
        value = rollout(simulator, start, False, discount, seed=start)
        assert value == pytest.approx(paid(start, discount, end), rel=1e-12)
    assert rollout(simulator, 2, True, discount, seed=0) == 0.0  # time was up


def test_one_that_would_never_end_is_cut():
    assert rollout(countdown(never=True), 5, False, 1.0, seed=0) == ROLLOUT_LIMIT


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_one_that_meets_a_reward_that_is_no_number_costs_its_lane_alone(workers):
    said: list[str] = []
    options = {"flaw": 5}
    with tree_pool(
        [countdown(**options)], [3], workers=workers, sources=[Source(COUNTDOWN, 0, options)],
        warn=said.append,
    ) as pool:  # fmt: skip
        pool.reset(0, np.arange(3), np.array([9, 4, 3]))
        searcher = LaneSearch(pool, [0], 4)
        roots = searcher.run(
            None, rule=Rule.UCT, c=2.0, discount=0.9, seeds=np.arange(3, dtype=np.uint32)
        )
        assert pool.lost.tolist() == [True, False, False]
        assert len(said) == 1
        assert "not finite in a rollout" in said[0]
        # Every action takes one away, so each is worth the same: 4 + 0.9 (3 + 0.9 (2 + 0.9)).
        np.testing.assert_allclose(roots.q_values[1, roots.visits[1] > 0], paid(4, 0.9), rtol=1e-6)
