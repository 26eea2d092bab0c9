"""`reproduce minatar` and `jax-suite`: their runs, rows, scores, claims and pictures."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from save_rl.envs import make
from save_rl.envs.check.look import Look
from save_rl.errors import InputError
from save_rl.experiments import suites
from save_rl.experiments.experiment import reproduce as reproduce_experiment
from save_rl.experiments.suite_claims import normalised, suite_claims
from save_rl.report.results import read_results, select, values
from tests.experiments.made_up import made_up_training, seeds_of, write_tests

pytestmark = pytest.mark.xdist_group("suite-experiments")
run = partial(reproduce_experiment, suites.JAX_SUITE)
ENVS = ("gymnax/Catch-bsuite", "gymnax/DeepSea-bsuite")
AXES = {"envs": ENVS, "agents": ("save", "q-learning"), "seeds": 5}
# Made-up test rewards; a seed adds a hundredth.
REWARD = {("save", ENVS[0]): 0.8, ("q-learning", ENVS[0]): 0.4,
          ("save", ENVS[1]): 0.9, ("q-learning", ENVS[1]): 0.5}  # fmt: skip


@pytest.mark.parametrize("experiment", [suites.MINATAR_SUITE, suites.JAX_SUITE])
def test_every_scale_is_possible(experiment):
    for axes in experiment.scales.values():
        axes.check()


def test_the_issue_s_size():
    """Five games, five agents, five seeds, two million steps."""
    axes = suites.MINATAR_SUITE.scales["paper"]
    assert (len(axes.envs), len(axes.agents), axes.seeds, axes.steps) == (5, 5, 5, 2_000_000)
    assert axes.budgets == (0, 5, 10, 20, 50)
    assert len(suites.JAX_SUITE.scales["paper"].envs) >= 10


def test_puzzles_end_before_jumanji_s_own_limits():
    """A sliding puzzle starts 200 moves from its solution, so that 200 moves are enough."""
    name = "jumanji/SlidingTilePuzzle-v0"
    chosen = suites.settings(suites.JAX_SUITE.scales["paper"], name, "save")
    env: Any = make(name, **chosen.all_env_options)
    assert env.time_limit == env._env.generator.num_random_moves == 200
    assert suites.settings(suites.SuiteAxes(ENVS, 1), ENVS[0], "save").env_options == {}


def test_settings_are_fitted_to_rewards_that_differ_between_environments():
    """The scale is a power of 2 next to returns of random play; other settings are the axes'."""
    axes, env = suites.JAX_SUITE.scales["paper"], ENVS[0]
    seen = Look(num_actions=3, features=50, vector=False, length=9.0, ended=1.0, returns=900.0)
    fitted = [suites.settings(axes, env, agent, seen) for agent in axes.agents]
    assert {(s.reward_scale, s.discount, s.n_step) for s in fitted} == {(1024.0, 0.963, None)}
    plain = suites.settings(axes, env, "save")
    assert (plain.reward_scale, plain.discount) == (1.0, 0.99)
    assert replace(fitted[0], reward_scale=1.0, discount=0.99) == plain


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A reproduction whose training, tests and random play are made up."""

    def lines(chosen):
        for step in (1024, 2048):
            simulated = step * chosen.budget if chosen.agent == "save" else 0
            yield {"time_s": step / 512, "episodes": step / 8, "env_steps": step,
                   "simulator_steps": simulated, "return_mean": step / 4096}  # fmt: skip

    monkeypatch, folder = pytest.MonkeyPatch(), tmp_path_factory.mktemp("suite")
    asked = made_up_training(monkeypatch, lambda s: (s.env, s.agent), lines)

    def evaluate(folder, budgets, episodes, *, agent, out, last, device, workers, **more):
        env, agent = folder.parts[-2].replace("-", "/", 1), folder.parts[-1]
        asked.tested.append((env, agent, tuple(budgets)))
        write_tests(out, *(
            {k: [REWARD[agent, env] + 0.01 * seed + 0.1 * (k > 0)] * episodes for k in budgets}
            for seed in seeds_of(folder)
        ))  # fmt: skip

    monkeypatch.setattr("save_rl.evaluation.evaluate", evaluate)
    monkeypatch.setattr(
        suites, "random_rows",
        lambda name, env: [{"experiment": name, "agent": "random", "seed": 0, "game": env,
                            "metric": "score", "value": 0.1}],
    )  # fmt: skip
    try:
        claims = run("smoke", AXES, folder / "out", False, "", "cpu", workers=0)
    finally:
        monkeypatch.undo()
    return asked, claims, folder / "out"


def test_every_agent_trains_once_on_every_environment_with_all_seeds(made):
    asked, _, out = made
    expected = [(env, agent, False) for env in ENVS for agent in ("save", "q-learning")]
    assert asked.trained == expected
    assert asked.tested == [(env, agent, (0, 3)) for env, agent, _ in expected]
    rows = read_results(out / "results.csv")
    assert {row["seed"] for row in select(rows, agent="save", metric="score")} == {0, 1, 2, 3, 4}


def test_a_score_is_the_test_at_the_budget_of_training(made):
    rows = read_results(made[2] / "results.csv")
    ours = values(rows, metric="score", agent="save", game=ENVS[0])
    theirs = values(rows, metric="score", agent="q-learning", game=ENVS[0])
    assert ours == pytest.approx([0.9, 0.91, 0.92, 0.93, 0.94])
    assert theirs == pytest.approx([0.4, 0.41, 0.42, 0.43, 0.44])  # trains without search


def test_a_score_at_another_budget_says_so():
    axes = replace(suites.JAX_SUITE.scales["smoke"], budget=10, budgets=(3, 50))
    cell = suites.Cell("", Path(), suites.settings(axes, ENVS[0], "save"), ())
    line = {"env_steps": 64.0, "simulator_steps": 640.0, "time_s": 1.0}
    tests = {"evaluation.csv": {3: np.array([0.25]), 50: np.array([0.75])}}
    (score,) = select(suites.rows_of("x", axes, cell, [line], tests), metric="score")
    assert (score["value"], score["budget"]) == (0.25, 3)


def test_simulated_steps_count_on_their_own_axis(made):
    rows = read_results(made[2] / "results.csv")
    ends = {row["agent"]: row for row in select(rows, metric="score", seed=0, game=ENVS[1])}
    assert (ends["save"]["steps"], ends["save"]["all_steps"]) == (2048, 2048 * 4)
    assert (ends["q-learning"]["steps"], ends["q-learning"]["all_steps"]) == (2048, 2048)


def test_save_is_better_where_all_its_seeds_are(made):
    (claim,) = made[1]
    assert (claim.id, claim.holds, claim.seeds) == ("save-above-q-learning", True, 5)
    assert "probability 1.00 [1.00, 1.00]" in claim.measured


def test_the_figures_are_there(made):
    for name in ("figure.png", "curves.png", "curves-all-steps.png"):
        with Image.open(made[2] / name) as picture:
            assert picture.size[0] > 600


def scored(**by_agent):
    return [
        {"experiment": "x", "agent": agent, "seed": seed, "game": game, "metric": "score",
         "value": value}
        for agent, games in by_agent.items()
        for game, seeds in games.items()
        for seed, value in enumerate(seeds)
    ]  # fmt: skip


def test_scores_are_normalised_by_random_play_and_the_best_mean():
    rows = scored(
        save={"a": [3.0, 5.0], "b": [1.0, 1.0]}, other={"a": [2.0, 2.0], "b": [0.0, 1.0]},
        random={"a": [2.0], "b": [1.0]},
    )  # fmt: skip
    found = normalised(rows, ("a", "b"), ("save", "other"))  # nobody beats chance in b
    np.testing.assert_allclose(found["save"], [[0.5], [1.5]])
    np.testing.assert_allclose(found["other"], [[0.0], [0.0]])


def test_few_seeds_or_nobody_who_learns_decide_nothing():
    few = scored(save={"a": [3.0]}, other={"a": [2.0]}, random={"a": [0.0]})
    (claim,) = suite_claims(few, ("a",), ("save", "other"), 10)
    assert claim.holds is None
    assert claim.note.startswith("1 seeds; at least 5")
    none = scored(save={"a": [0.0] * 5}, other={"a": [0.0] * 5}, random={"a": [0.0]})
    (claim,) = suite_claims(none, ("a",), ("save", "other"), 10)
    assert (claim.holds, claim.measured) == (None, "nobody learned")


REFUSED = {
    "an agent": ({"agents": ("sav",)}, r"--agents: there is no agent 'sav'"),
    "no environment": ({"envs": ()}, "--envs"),
    "steps": ({"steps": 0}, "--steps: 0 is not possible"),
    "a budget": ({"budgets": (0, -1)}, "--budgets: -1 is not possible"),
    "lanes": ({"lanes": 6, "batch": 64}, "--lanes: 6 is not possible"),
}


@pytest.mark.parametrize(("changed", "said"), REFUSED.values(), ids=REFUSED)
def test_impossible_axes_are_refused_before_any_work(changed, said, tmp_path):
    with pytest.raises(InputError, match=said):
        run("smoke", changed, tmp_path / "out", False, "", "cpu")
    assert list(tmp_path.iterdir()) == []
