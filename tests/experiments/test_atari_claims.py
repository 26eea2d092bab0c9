"""Each claim about Atari on made-up results: true, false, and too little to tell."""

import numpy as np
import pytest

from save_rl.experiments.atari_claims import CLEAR, atari_claims, not_below, shortfall
from save_rl.experiments.atari_scores import BASELINE, CONTROLLED, GAMES, PUBLISHED, SAVE
from save_rl.experiments.comparisons import Sample


def rows(scores=PUBLISHED, seeds=5, episodes=500, frames=4_000_000):
    """Rows of scores, whose seeds differ by a thousandth."""
    return [
        {
            "experiment": "atari", "agent": agent, "seed": seed, "game": game, "frames": frames,
            "metric": metric, "value": value,
        }
        for game, by_agent in scores.items()
        for agent, score in by_agent.items()
        for seed in range(seeds)
        for metric, value in (
            ("score", score * (1 + 0.001 * (seed - (seeds - 1) / 2))), ("episodes", episodes),
        )
    ]  # fmt: skip


def judged(scores=PUBLISHED, **options):
    return {claim.id: claim for claim in atari_claims(rows(scores, **options), 10, 256)}


def holds(scores=PUBLISHED, **options):
    return {id: claim.holds for id, claim in judged(scores, **options).items()}


IDS = [
    "save-not-below-controlled",
    *(f"save-not-below-controlled-{game}" for game in GAMES),
    *(f"clear-gain-{game}" for game in CLEAR),
    "save-above-baseline",
]


@pytest.mark.parametrize("seeds", [3, 5])
def test_all_claims_hold_on_the_papers_results(seeds):
    assert holds(seeds=seeds) == dict.fromkeys(IDS, True)


def test_two_seeds_are_too_few_for_any_claim():
    assert holds(seeds=2) == dict.fromkeys(IDS, None)


def changed(game, **scores):
    agents = {"save": SAVE, "controlled": CONTROLLED, "baseline": BASELINE}
    new = {agents[name]: score for name, score in scores.items()}
    return {**PUBLISHED, game: {**PUBLISHED[game], **new}}


def test_one_game_below_is_enough_against_all():
    found = holds(changed("hero", save=44_000.0))
    wrong = {"save-not-below-controlled", "save-not-below-controlled-hero"}
    assert {id for id, verdict in found.items() if verdict is False} == wrong
    assert {id for id, verdict in found.items() if verdict is None} == set()


def test_a_clear_gain_is_twice_the_score():
    assert holds(changed("alien", controlled=139_000.0))["clear-gain-alien"] is True
    found = holds(changed("alien", controlled=141_000.0))
    assert found["clear-gain-alien"] is False
    assert found["save-not-below-controlled-alien"] is True


def test_the_baseline_must_be_beaten_in_most_games():
    scores = {game: dict(found) for game, found in PUBLISHED.items()}
    for count, game in enumerate(scores, 1):
        scores[game][BASELINE] = 2 * scores[game][SAVE]
        assert holds(scores)["save-above-baseline"] is (count < 7)
    claim = judged(scores)["save-above-baseline"]
    assert claim.p_value is None


def sample(*scores):
    return Sample("x", np.array(scores, float))


@pytest.mark.parametrize(
    ("save", "controlled", "expected"),
    [
        ((4, 5, 6), (1, 2, 3), True),
        ((1, 2, 3), (4, 5, 6), False),
        ((1, 5, 6), (2, 3, 4), None),  # its median is higher, and that is all
        ((2, 3, 4), (1, 5, 6), None),
        ((3, 3, 3), (3, 3, 3), None),  # three seeds do not make two agents equal
        ((1, 2, 3, 4, 5), (1, 2, 3, 4, 5), True),  # five do
        ((1, 2, 3, 4, 5), (6, 7, 8, 9, 10), False),
        ((1, 2), (3, 4), None),
        ((1, 2, 3), (), None),
    ],
)
def test_outperforms_or_equals(save, controlled, expected):
    assert not_below(sample(*save), sample(*controlled)).holds is expected


def test_games_that_were_not_run_are_named_and_leave_the_general_claim_open():
    some = {game: PUBLISHED[game] for game in ("ms_pacman", "frostbite")}
    claims = judged(some)
    assert list(claims) == [
        "save-not-below-controlled", "save-not-below-controlled-frostbite",
        "save-not-below-controlled-ms_pacman", "clear-gain-frostbite", "clear-gain-alien",
        "clear-gain-zaxxon", "save-above-baseline",
    ]  # fmt: skip
    others = ", ".join(game for game in GAMES if game not in some)
    overall, baseline = claims["save-not-below-controlled"], claims["save-above-baseline"]
    assert f"Not run: {others}." in overall.note
    assert f"Not run: {others}." in baseline.note
    assert (overall.holds, baseline.holds) == (None, True)
    assert claims["clear-gain-frostbite"].holds is True
    alien = claims["clear-gain-alien"]
    assert (alien.holds, alien.seeds, alien.measured) == (None, 0, "not measured")
    assert alien.note.endswith("Not run.")
    below = changed("ms_pacman", save=10.0)
    assert holds({"ms_pacman": below["ms_pacman"]})["save-not-below-controlled"] is False


def test_agents_that_were_not_run_are_not_judged():
    without = {game: {CONTROLLED: 1.0, SAVE: 3.0} for game in GAMES}
    claim = judged(without)["save-above-baseline"]
    assert (claim.holds, claim.seeds) == (None, 0)
    assert "R2D2 on alien not measured" in claim.measured


def test_games_that_the_paper_does_not_have_are_not_judged():
    found = holds({"pong": {CONTROLLED: 1.0, SAVE: 3.0}})
    assert {id for id in found if "pong" in id} == set()
    assert set(found.values()) == {None}


def test_scale_is_always_said_and_few_episodes_are():
    claim = judged(seeds=3)["save-not-below-controlled-alien"]
    assert claim.note == "At 4,000,000 frames; the paper does not give its number."
    assert claim.measured == (
        "medians [min, max]: R2D2 with SAVE on alien: 280,227 [279,947, 280,508] against "
        "R2D2, controlled on alien: 96,014 [95,917, 96,110]"
    )
    (few,) = {claim.note for claim in atari_claims(rows(episodes=40), 3, 256)[1:2]}
    assert few == (
        "At 4,000,000 frames; the paper does not give its number. Budget 3; the paper's is 10. "
        "In 15 of 15 runs fewer than 256 episodes ended, in one 40; their scores are means over "
        "all that did, from the beginning on."
    )
    assert shortfall(rows(episodes=256), 256) == ""
