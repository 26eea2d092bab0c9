"""Each claim about Marble Run on made-up results: true, false, and too short to tell."""

import pytest

from save_rl.experiments.marble_run_claims import main_rows, marble_run_claims

# Final levels by cost and agent, as the paper describes them.
PAPER = {0.0: {"save": 6, "q-learning": 5}, 0.04: {"save": 6, "q-learning": 4}}
REWARD = {"save": 0.8, "q-learning": 0.5}


CURVES = {  # level and reward in training
    "save": ((3, 0.9), (4, 0.5), (4, 0.7), (5, 0.7), (6, 0.7)),
    "q-learning": ((3, 0.1), (4, 0.6), (4, 0.2), (5, 0.1), (5, 0.0)),
}


def rows(
    final=PAPER, reward=REWARD, seeds=3, episodes=20_000, levels=(0, 1), at_level=None,
    curves=CURVES,
):  # fmt: skip
    """Rows of all seeds; at_level: rewards by agent on level 1, where they differ."""
    found = []
    for cost, agents in final.items():
        for agent, level in agents.items():
            trained = 10 if agent == "save" else 0
            for seed in range(seeds):
                shared = {
                    "experiment": "marble-run", "agent": agent, "seed": seed, "sticky_cost": cost,
                    "episodes": episodes,
                }  # fmt: skip
                end = {"metric": "final_level", "budget": trained, "value": level}
                found.append(shared | end)
                for place, value in curves[agent]:
                    point = {"metric": "level_reward", "level": place, "budget": trained}
                    found.append(shared | point | {"value": value - 0.001 * seed})
                for tested in dict.fromkeys((trained, 10)):
                    for place in levels:
                        here = reward if place == 0 or at_level is None else at_level
                        # Q-learning with search would be better than SAVE, and does not count.
                        value = here[agent] + 0.01 * seed + 5 * (tested != trained)
                        test = {"metric": "test_reward", "level": place, "budget": tested}
                        found.append(shared | test | {"value": value})
    return found


def holds(budget=10, **options):
    return {claim.id: claim.holds for claim in marble_run_claims(rows(**options), budget)}


NAMES = (
    "save-above-q-learning", "save-reaches-higher", "q-learning-collapses",
    "q-learning-stays-below",
)  # fmt: skip


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_all_claims_hold_on_the_papers_results(seeds):
    found = holds(seeds=seeds)
    assert found == {f"{name}-cost-{cost}": True for cost in ("0", "0.04") for name in NAMES}


def test_agents_are_compared_at_the_budget_they_train_with():
    kept = main_rows(rows())
    assert {(row["agent"], row["budget"]) for row in kept} == {("save", 10), ("q-learning", 0)}
    assert {row["metric"] for row in kept} == {"test_reward"}


def test_save_must_be_above_on_every_level():
    equal = holds(at_level={"save": 0.0, "q-learning": 0.0})
    assert equal["save-above-q-learning-cost-0"] is False
    assert equal["save-reaches-higher-cost-0"] is True


def test_a_higher_level_is_needed_and_enough():
    final = {0.0: {"save": 4, "q-learning": 4}}
    assert holds(final=final)["save-reaches-higher-cost-0"] is False


@pytest.mark.parametrize(
    ("cost", "save", "other", "episodes", "expected"),
    [
        (0.0, 6, 6, 20_000, False),
        (0.04, 6, 5, 20_000, False),  # level 5 is too high where glue costs
        (0.04, 5, 4, 20_000, True),
        (0.0, 5, 5, 20_000, None),  # nobody has got there
        (0.0, 5, 5, 1_000_000, True),  # and nobody will
    ],
)
def test_q_learning_stays_below_only_where_training_was_long_enough(
    cost, save, other, episodes, expected
):
    found = holds(final={cost: {"save": save, "q-learning": other}}, episodes=episodes)
    assert found[f"q-learning-stays-below-cost-{cost:g}"] is expected


@pytest.mark.parametrize(
    ("agent", "curve", "expected"),
    [
        ("q-learning", ((4, 0.6), (4, 0.5), (5, 0.6), (5, 0.6)), False),  # it keeps its reward
        ("save", ((4, 0.6), (5, 0.1), (5, 0.1), (5, 0.1)), False),  # SAVE collapses as well
        ("q-learning", ((3, 0.6), (3, 0.0)), None),  # it never got there
    ],
)
def test_only_q_learning_may_collapse_from_level_4_on(agent, curve, expected):
    found = holds(curves=CURVES | {agent: curve})
    assert found["q-learning-collapses-cost-0"] is expected


def test_two_seeds_are_too_few_for_any_claim():
    assert set(holds(seeds=2).values()) == {None}


def test_scale_and_origin_are_always_said():
    for claim in marble_run_claims(rows(), 10):
        assert "Physics and preset are this project's." in claim.note
        assert claim.note.endswith("At 20,000 episodes of the paper's 1e6.")
        assert claim.claim.startswith(("cost 0: ", "cost 0.04: "))
    _, reaches, _, stays = marble_run_claims(rows(final={0.0: PAPER[0.0]}), 10)
    assert reaches.measured == (
        "medians [min, max]: final level of SAVE: 6.00 [6.00, 6.00] against "
        "final level of Q-learning: 5.00 [5.00, 5.00]"
    )
    assert stays.claim == "cost 0: Q-learning never makes it to level 6"
    assert stays.p_value is None


def test_what_was_not_run_is_not_judged():
    found = holds(final={0.0: {"save": 6}, 0.1: {"save": 6, "q-learning": 5}})
    assert {name: verdict for name, verdict in found.items() if name.endswith("cost-0")} == {
        f"{name}-cost-0": None for name in NAMES
    }
    assert "q-learning-stays-below-cost-0.1" not in found  # the paper has no such cost
