"""Each claim about Construction on made-up results: true, false, and too few seeds to tell.

`PAPER` has rewards as the paper describes them; a case changes what its claim is about.
"""

import numpy as np
import pytest

from save_rl.experiments.comparisons import Sample, above, far_above
from save_rl.experiments.construction_claims import (
    ablation_claims,
    construction_claims,
    efficiency_claims,
    exploration_claims,
    little_gain,
)

TASKS = ("connecting", "covering")
# Rewards by agent and test budget.
PAPER = {
    "save": {0: 5.5, 10: 6.0},
    "save-no-amortization": {0: 0.5, 10: 5.0, 20: 5.5, 50: 4.8},
    "q-learning": {0: 4.0, 10: 4.4},
    "uct": {1000: 0.4},
}
VARIANTS = {
    "save": {10: 6.0},
    "save-no-amortization": {10: 5.0},
    "save-l2": {10: 4.0},
    "save-no-q-learning": {10: 1.0},
    "save-puct": {10: 4.5},
}


def rows(rewards, seeds=6, tasks=TASKS, episodes=10_000):
    """Rows of tests; seeds lie evenly around the numbers, 0.01 apart. Curves must not matter."""
    tests = [
        {
            "experiment": "construction", "agent": agent, "seed": seed, "task": task,
            "budget": budget, "episodes": episodes, "metric": "test_reward",
            "value": reward + 0.01 * (seed - (seeds - 1) / 2),
        }
        for agent, by_budget in rewards.items()
        for budget, reward in by_budget.items()
        for task in tasks
        for seed in range(seeds)
    ]  # fmt: skip
    return [*tests, *(row | {"metric": "train_reward", "value": 99.0} for row in tests)]


def changed(rewards, agent, **by_budget):
    return rewards | {agent: {int(budget[2:]): value for budget, value in by_budget.items()}}


def judged(rewards, judge=construction_claims, budget=10, **options):
    """Claims by their names without the task, which must agree on all of them."""
    found = {}
    for claim in judge(rows(rewards, **options), budget):
        task = claim.claim.split(":")[0]
        assert claim.id.endswith(f"-{task}")
        found.setdefault(claim.id.removesuffix(f"-{task}"), []).append(claim)
    for claims in found.values():
        assert len({claim.holds for claim in claims}) == 1
    return {name: claims[0] for name, claims in found.items()}


FAILS = {
    "save-above-no-amortization": [changed(PAPER, "save-no-amortization", at0=0.5, at10=6.0)],
    "save-above-q-learning": [changed(PAPER, "q-learning", at0=4.0, at10=6.1)],
    "no-amortization-collapses-at-0": [
        changed(PAPER, "save-no-amortization", at0=2.6, at10=5.0),  # falls, but to 52 %
        changed(PAPER, "save", at0=0.5, at10=6.0),  # SAVE falls as low
    ],
    "large-budgets-hurt-without-amortization": [
        changed(PAPER, "save-no-amortization", at0=0.5, at10=5.0, at20=4.0, at50=5.0),
    ],
    "search-adds-little-to-q-learning": [changed(PAPER, "q-learning", at0=4.0, at10=5.01)],
    "uct-is-poor": [changed(PAPER, "uct", at1000=3.01)],
}
ABLATIONS_FAIL = {
    "save-is-best": [changed(VARIANTS, agent, at10=6.0) for agent in VARIANTS if agent != "save"],
    "l2-below-no-amortization": [changed(VARIANTS, "save-l2", at10=5.0)],
    "no-q-learning-drops": [changed(VARIANTS, "save-no-q-learning", at10=3.01)],
    "puct-prior-below": [changed(VARIANTS, "save-puct", at10=6.0)],
}
CASES = [
    *((name, case, construction_claims) for name, cases in FAILS.items() for case in cases),
    *((name, case, ablation_claims) for name, cases in ABLATIONS_FAIL.items() for case in cases),
]


@pytest.mark.parametrize("seeds", [3, 4, 5, 10])
def test_all_claims_hold_on_the_papers_results(seeds):
    claims = judged(PAPER, seeds=seeds)
    assert {name: claim.holds for name, claim in claims.items()} == dict.fromkeys(FAILS, True)
    ablations = judged(VARIANTS, ablation_claims, tasks=("covering",), seeds=seeds)
    assert {name: claim.holds for name, claim in ablations.items()} == dict.fromkeys(
        ABLATIONS_FAIL, True
    )
    assert all(claim.seeds == seeds for claim in [*claims.values(), *ablations.values()])


@pytest.mark.parametrize("seeds", [3, 6])
@pytest.mark.parametrize(("name", "case", "judge"), CASES)
def test_a_claim_fails_when_its_numbers_do(name, case, judge, seeds):
    assert judged(case, judge, seeds=seeds)[name].holds is False


@pytest.mark.parametrize("seeds", [1, 2])
def test_two_seeds_are_too_few_for_any_claim(seeds):
    claims = [*judged(PAPER, seeds=seeds).values()]
    claims += judged(VARIANTS, ablation_claims, seeds=seeds).values()
    for claim in claims:
        assert (claim.holds, claim.p_value, claim.seeds) == (None, None, seeds)
        assert f"{seeds} seed{'s' * (seeds > 1)}; at least 3 of each are needed" in claim.note


def test_what_was_not_run_is_not_judged():
    claims = judged({"save": PAPER["save"], "q-learning": PAPER["q-learning"]})
    decided = {name for name, claim in claims.items() if claim.holds is not None}
    assert decided == {"save-above-q-learning", "search-adds-little-to-q-learning"}
    assert claims["uct-is-poor"].measured == (
        "medians [min, max]: SAVE at 10: 6.00 [5.97, 6.03] against UCT not measured"
    )
    untested = judged(changed(PAPER, "save-no-amortization", at0=0.5, at5=1.0, at10=5.0))
    assert untested["large-budgets-hurt-without-amortization"].holds is None
    alone = judged({"save": {10: 6.0}}, ablation_claims)
    assert {claim.holds for claim in alone.values()} == {None}
    assert alone["save-is-best"].measured == "not measured"


@pytest.mark.parametrize(("ucb", "holds"), [(3.0, True), (6.5, False)])
def test_greedy_exploration_must_be_above_every_other(ucb, holds):
    others = {"save-ucb": {10: ucb}, "save-softmax": {10: 2.0}, "save-counts": {10: 1.0}}
    claims = judged({"save": {10: 6.0}, **others}, exploration_claims)
    assert claims["epsilon-greedy-is-best"].holds is holds


def test_the_scale_is_always_said():
    for claim in judged(PAPER).values():
        assert claim.note.endswith("At 10,000 episodes of the paper's 1e6.")
    at_three = {agent: {0: 0.5, 3: 1.0} for agent in ("save", "q-learning")}
    claims = judged(at_three, budget=3, episodes=96, seeds=1)
    assert claims["save-above-q-learning"].note == (
        "1 seed; at least 3 of each are needed to tell. At 96 episodes of the paper's 1e6. "
        "Budget 3; the paper's is 10."
    )


def test_what_was_measured_is_said():
    claims = judged(PAPER, seeds=5)
    assert claims["save-above-q-learning"].measured == (
        "medians [min, max]: SAVE at 10: 6.00 [5.98, 6.02] against "
        "Q-learning at 10: 4.40 [4.38, 4.42]"
    )
    # All five above all five: one of C(10, 5) = 252 orders.
    assert claims["save-above-q-learning"].p_value == pytest.approx(1 / 252)
    gain = claims["search-adds-little-to-q-learning"]
    assert gain.measured.endswith("median gain +0.40")
    assert gain.p_value is None
    assert claims["uct-is-poor"].measured.endswith("UCT at 1000: 0.40 [0.38, 0.42]")


def sample(*rewards):
    return Sample("x", np.array(rewards, float))


def test_three_seeds_need_all_above_all():
    part = above(sample(4, 5, 6), sample(1, 2, 3))
    assert (part.holds, part.p_value) == (True, pytest.approx(1 / 20))
    assert above(sample(2.5, 5, 6), sample(1, 2, 3)).holds is None  # may yet be
    assert above(sample(1, 2, 3), sample(2.5, 5, 6)).holds is False
    assert above(sample(1, 2, 3), sample(1, 2, 3)).holds is False


def test_overlapping_seeds_are_told_apart_only_from_five_on():
    four = above(sample(1, 6, 7, 8), sample(2, 3, 4, 9))
    assert four.holds is None
    assert four.note == "The medians differ, but 4 seeds are too few for the test."
    assert above(sample(1, 6, 7, 8, 9), sample(2, 3, 4, 9.5, 5)).holds is False


def test_nothing_is_far_below_nothing():
    part = far_above(sample(0, 0, 0), sample(-3, -2, -1))
    assert (part.holds, part.note) == (None, "x has no reward to compare with.")
    assert little_gain(sample(-1, -1, 0), sample(2, 2, 2)).holds is None
    assert little_gain(sample(4, 4, 4), sample(1, 5, 9)).holds is True  # 25 % just so


def test_gains_are_those_of_each_seed():
    # Medians 4 and 4.5, but two of three seeds gain 2: (1, 4, 7) -> (3, 4.5, 9).
    part = little_gain(sample(1, 4, 7), sample(3, 4.5, 9))
    assert part.measured.endswith("median gain +2.00")
    assert part.holds is False


# Training reward by agent over (interactions, reward); SAVE makes eleven steps for one.
SLOW = {"save": [(110, 1.0), (1100, 3.0), (11_000, 5.0)], "q-learning": [(10, 1.0), (1100, 2.0)]}


def curve_rows(curves, seeds=3, epsilon=0.01):
    shared = {"experiment": "construction-efficiency", "task": "covering", "budget": 10}
    return [
        {
            **shared, "agent": agent, "seed": seed, "episodes": 1000, "interactions": at + seed,
            "metric": metric, "value": {"epsilon": epsilon}.get(metric, reward + 0.01 * seed),
        }
        for agent, curve in curves.items()
        for seed in range(seeds)
        for at, reward in curve
        for metric in ("train_reward", "epsilon", "test_reward")
    ]  # fmt: skip


def efficiency(curves, **options):
    (claim,) = efficiency_claims(curve_rows(curves, **options), 10)
    assert claim.id == "save-more-efficient-covering"
    return claim


def test_efficiency_is_judged_where_the_shorter_curve_ends():
    claim = efficiency(SLOW)
    assert (claim.holds, claim.p_value) == (True, pytest.approx(1 / 20))
    # At 1100: 3 against 2. The ends, 5 against 2, are not compared.
    assert "SAVE after 1,100 steps: 3.0" in claim.measured
    assert "Q-learning after 1,100 steps: 2.0" in claim.measured
    slower = SLOW | {"save": [(110, 1.0), (1100, 1.5), (11_000, 5.0)]}
    assert efficiency(slower).holds is False


def test_between_points_a_curve_is_read_over_log_steps():
    between = SLOW | {"save": [(110, 1.0), (11_000, 5.0)]}  # 1100 is halfway
    assert "SAVE after 1,100 steps: 3.0" in efficiency(between).measured


def test_a_curve_that_begins_later_has_no_value_there():
    late = efficiency(SLOW | {"save": [(2000, 3.0), (11_000, 5.0)]})
    assert (late.holds, late.seeds) == (None, 0)
    assert "SAVE after 1,100 steps not measured" in late.measured


def test_an_agent_that_still_explores_is_not_called_worse():
    slower = SLOW | {"save": [(110, 1.0), (1100, 1.5)]}
    claim = efficiency(slower, epsilon=0.5)
    assert claim.holds is None
    assert "SAVE still explores there: ε is 0.50." in claim.note
    assert efficiency(SLOW, epsilon=0.5).holds is True  # better in spite of it


def test_efficiency_needs_both_agents_and_three_seeds():
    assert efficiency(SLOW, seeds=2).holds is None
    alone = efficiency({"save": SLOW["save"]})
    assert (alone.holds, alone.seeds) == (None, 0)
    assert "Q-learning after 11,000 steps not measured" in alone.measured
