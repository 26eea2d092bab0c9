"""Each claim about Tightrope on made-up results: where it holds, where it fails, and too few seeds.

`PAPER` and `curves` make results as the paper describes them; a case changes what its claim is
about and leaves the rest.
"""

import pytest

from save_rl.experiments.tightrope_claims import network_claims, tabular_claims

REWARDS, TERMINALS, BUDGETS = ("dense", "sparse"), (50, 95, 99), (5, 10, 100)
SEEDS = 6


def hard(terminal, budget):
    """Where the paper sets the agents apart."""
    return terminal >= 95 and budget <= 10


def save(reward, terminal, budget):
    return 0.6 if (reward, terminal, budget) == ("sparse", 99, 5) else 0.98


def puct(reward, terminal, budget):
    if not hard(terminal, budget):
        return 0.97
    return 0.5 if reward == "dense" else 0.2


def uct(reward, terminal, budget):
    return 0.07


def uct_threshold(reward, terminal, budget):
    return 0.08


def q_learning(reward, terminal, budget):
    return 0.3 + 0.0001 * budget


PAPER = {
    "save": save,
    "puct": puct,
    "uct": uct,
    "uct-threshold": uct_threshold,
    "q-learning": q_learning,
}


def only_where(agent, where, value):
    """The paper's results, but for one agent in some of the settings."""

    def changed(*setting):
        return value if where(*setting) else PAPER[agent](*setting)

    return PAPER | {agent: changed}


def tabular(agents, seeds=SEEDS):
    """A row per setting and seed; seeds lie evenly around the number, ± 0.0025."""
    return [
        {
            "experiment": "tightrope-tabular",
            "agent": agent,
            "seed": seed,
            "reward": reward,
            "terminal": terminal,
            "budget": budget,
            "metric": "test_reward",
            "value": number(reward, terminal, budget) + 0.001 * (seed - (seeds - 1) / 2),
        }
        for agent, number in agents.items()
        for reward in REWARDS
        for terminal in TERMINALS
        for budget in BUDGETS
        for seed in range(seeds)
    ]


def one(rows, name, judge):
    (claim,) = [claim for claim in judge(rows) if claim.id == name]
    return claim


FAILS = {
    "uct-dense-95-10": only_where("uct", lambda *s: s == ("dense", 95, 10), 0.085),
    "uct-threshold-dense-95-10": only_where(
        "uct-threshold", lambda *s: s == ("dense", 95, 10), 0.065
    ),
    "uct-threshold-helps": only_where("uct-threshold", lambda *s: s == ("dense", 95, 10), 0.07),
    "save-solves-dense": only_where("save", lambda *s: s == ("dense", 99, 5), 0.94),
    "save-solves-most-sparse": only_where(
        "save", lambda reward, terminal, _: reward == "sparse" and terminal >= 95, 0.94
    ),
    "puct-struggles": only_where("puct", lambda *s: s == ("sparse", 95, 10), 0.98),
    "puct-worse-when-sparse": only_where("puct", lambda *s: s == ("sparse", 99, 10), 0.5),
    "both-converge": only_where("puct", lambda *s: s == ("sparse", 99, 100), 0.94),
    "brute-force-is-hard": only_where("uct", lambda *s: s == ("sparse", 95, 5), 0.98),
    "q-learning-slow-when-sparse": only_where(
        "q-learning", lambda *s: s == ("sparse", 95, 10), 0.98
    ),
    "search-hardly-helps-q-learning": only_where(
        "q-learning", lambda _reward, _terminal, budget: budget == 100, 0.45
    ),
}


def test_all_tabular_claims_hold_on_the_papers_results():
    claims = tabular_claims(tabular(PAPER))
    assert {claim.id: claim.holds for claim in claims} == dict.fromkeys(FAILS, True)
    assert all(claim.seeds == SEEDS for claim in claims)


@pytest.mark.parametrize("name", FAILS)
def test_a_tabular_claim_fails_when_one_of_its_settings_does(name):
    assert one(tabular(FAILS[name]), name, tabular_claims).holds is False


@pytest.mark.parametrize("name", FAILS)
def test_four_seeds_are_too_few_for_any_tabular_claim(name):
    claim = one(tabular(PAPER, seeds=4), name, tabular_claims)
    assert (claim.holds, claim.p_value) == (None, None)
    assert claim.seeds == 4
    assert "at least 5" in claim.note or "five seeds" in claim.note


def test_one_seed_missing_in_one_setting_is_noticed():
    rows = [row for row in tabular(PAPER, seeds=5)
            if (row["agent"], row["reward"], row["terminal"], row["budget"], row["seed"])
            != ("puct", "sparse", 99, 10, 4)]  # fmt: skip
    assert one(rows, "puct-struggles", tabular_claims).holds is None
    assert one(rows, "brute-force-is-hard", tabular_claims).holds is True


def test_what_was_measured_is_said():
    rows = tabular(FAILS["save-solves-dense"])
    # Three terminals x three budgets.
    assert one(rows, "save-solves-dense", tabular_claims).measured == (
        "8 of 9 settings have a median of at least 0.95; not 99 % at 5: 0.94"
    )
    claim = one(rows, "puct-struggles", tabular_claims)
    assert claim.measured == (
        "SAVE against PUCT, medians: 95 % at 5: 0.98 against 0.20; 95 % at 10: 0.98 against 0.20; "
        "99 % at 5: 0.60 against 0.20; 99 % at 10: 0.98 against 0.20"
    )
    # All six above all six: one of C(12, 6) = 924 orders.
    assert claim.p_value == pytest.approx(1 / 924)
    assert one(rows, "uct-dense-95-10", tabular_claims).measured == "median 0.0700"


@pytest.mark.parametrize(("median", "holds"), [(0.06, True), (0.0595, False), (0.0805, False)])
def test_the_printed_number_is_met_within_a_hundredth(median, holds):
    rows = tabular(only_where("uct", lambda *_: True, median))
    assert one(rows, "uct-dense-95-10", tabular_claims).holds is holds


def test_what_was_not_run_is_not_judged():
    rows = [row for row in tabular(PAPER) if row["agent"] == "save" and row["terminal"] == 50]
    holds = {claim.id: claim.holds for claim in tabular_claims(rows)}
    assert {name for name, verdict in holds.items() if verdict is not None} == {
        "save-solves-dense", "save-solves-most-sparse",
    }  # fmt: skip


LEARNED = [name for name in FAILS if not name.startswith("uct")]


@pytest.mark.parametrize("name", LEARNED)
def test_what_fails_after_less_training_than_the_papers_is_undecided(name):
    def short(rows):
        return tabular_claims(rows, episodes=50)

    claim = one(tabular(FAILS[name]), name, short)
    assert claim.holds is None
    assert claim.note.endswith("50 episodes; the paper trained for 500.")
    assert one(tabular(PAPER), name, short).holds is True


def test_uct_does_not_train():
    for name in set(FAILS) - set(LEARNED):
        claim = one(tabular(FAILS[name]), name, lambda rows: tabular_claims(rows, episodes=0))
        assert claim.holds is False


FINAL = {"save": 0.99, "q-learning": 0.96, "puct": 0.4}
AREA = {"save": 0.8, "q-learning": 0.5, "puct": 0.2}
SOLVED_AFTER = {"save": 2e4, "q-learning": 8e4, "puct": 9e5}


def curves(final=None, area=None, solved=None, budget=10, seeds=SEEDS, episodes=1_000_000):
    """What the learning curves come to, as `curve_rows` writes it; changes by agent."""
    rows = []
    numbers = {
        "final_test_reward": FINAL | (final or {}),
        "area_under_curve": AREA | (area or {}),
        "episodes_to_solve": SOLVED_AFTER | (solved or {}),
    }
    for metric, by_agent in numbers.items():
        for agent, number in by_agent.items():
            rows += [
                {
                    "experiment": "tightrope-network",
                    "agent": agent,
                    "seed": seed,
                    "budget": budget,
                    "episodes": episodes,
                    "metric": metric,
                    "value": number * (1 + 0.001 * (seed - (seeds - 1) / 2)),
                }
                for seed in range(seeds)
            ]
    return rows


NETWORK_FAILS = {
    "save-solves": {"final": {"save": 0.94}},
    "save-above-puct": {"final": {"puct": 0.99}},
    "q-learning-above-puct": {"final": {"puct": 0.96}},
    "save-ends-above-q-learning": {"final": {"q-learning": 0.99}},
    "save-learns-faster": {"area": {"q-learning": 0.8}},
    "save-solves-earlier": {"solved": {"q-learning": 2e4}},
    "puct-solves-with-large-budget": {"final": {"puct": 0.94}, "budget": 50},
}
LARGE = "puct-solves-with-large-budget"


def test_all_network_claims_hold_on_the_papers_results():
    holds = {claim.id: claim.holds for claim in network_claims(curves())}
    assert holds == dict.fromkeys(NETWORK_FAILS, True) | {LARGE: None}
    fine = curves(final={"puct": 0.97}, budget=50)
    assert one(fine, LARGE, network_claims).holds is True


@pytest.mark.parametrize("name", NETWORK_FAILS)
def test_a_network_claim_fails_when_its_numbers_do(name):
    claim = one(curves(**NETWORK_FAILS[name]), name, network_claims)
    assert claim.holds is False
    assert claim.seeds == SEEDS


@pytest.mark.parametrize("name", NETWORK_FAILS)
def test_four_seeds_are_too_few_for_any_network_claim(name):
    budget = 50 if name == LARGE else 10
    claim = one(curves(seeds=4, budget=budget), name, network_claims)
    assert (claim.holds, claim.p_value, claim.seeds) == (None, None, 4)
    assert "4 seeds; at least 5" in claim.note


def test_a_short_run_that_has_not_solved_it_decides_nothing():
    claim = one(curves(final={"save": 0.9}, episodes=100_000), "save-solves", network_claims)
    assert claim.holds is None
    assert claim.note == "100,000 episodes; the paper trained for 1,000,000."
    assert one(curves(episodes=100_000), "save-solves", network_claims).holds is True


@pytest.mark.parametrize("name", NETWORK_FAILS)
def test_a_network_claim_that_fails_after_a_short_run_is_undecided(name):
    claim = one(curves(**NETWORK_FAILS[name], episodes=2_000), name, network_claims)
    assert claim.holds is None
    assert claim.note.endswith("2,000 episodes; the paper trained for 1,000,000.")


def test_claims_about_small_budgets_say_so_at_large_ones():
    claim = one(curves(budget=50), "save-above-puct", network_claims)
    assert claim.note == "The claim is about small budgets; this run has 50."


def test_an_agent_that_never_solves_it_is_not_earlier():
    rows = [row for row in curves()
            if (row["agent"], row["metric"]) != ("q-learning", "episodes_to_solve")]  # fmt: skip
    assert one(rows, "save-solves-earlier", network_claims).holds is True
