"""`reproduce marble-run`: what runs are made, their rows, their pictures, and going on."""

import json
import shutil
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from save_rl.errors import InputError
from save_rl.experiments.cells import read_tests
from save_rl.experiments.experiment import reproduce as reproduce_experiment
from save_rl.experiments.marble_run import MARBLE_RUN, SCALES, gallery, run_rows, settings
from save_rl.players import make_player
from save_rl.report.results import read_results, select, values
from tests.experiments.made_up import files, made_up_training, seeds_of, write_tests

# One worker runs them all, so that one reproduction is enough.
pytestmark = pytest.mark.xdist_group("marble-run-experiment")
run = partial(reproduce_experiment, MARBLE_RUN)
COLUMNS = [
    "experiment", "agent", "seed", "sticky_cost", "level", "budget", "episodes", "metric", "value",
]  # fmt: skip
CONDITIONS = {"experiment": "marble-run", "agent": "save", "seed": 1, "sticky_cost": 0.04}


def test_the_papers_scale_is_the_papers():
    axes = SCALES["paper"]  # paper C.2, D.4
    assert (axes.costs, axes.agents) == ((0.0, 0.04), ("save", "q-learning"))
    assert (axes.seeds, axes.episodes, axes.test_episodes) == (10, 1_000_000, 1000)
    assert (axes.budget, axes.levels, axes.lanes) == (10, (0, 1, 2, 3, 4, 5, 6), 64)
    assert (axes.epsilon_episodes, axes.beta_episodes) == (1e4, 5e4)
    assert (axes.test_budgets("save"), axes.test_budgets("q-learning")) == ((10,), (0, 10))


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_is_possible(scale):
    axes = SCALES[scale]
    axes.check()
    assert axes.epsilon_episodes <= axes.episodes


def test_training_is_what_the_axes_say():
    chosen = settings(SCALES["small"], 0.04, "q-learning")
    assert (chosen.env, chosen.agent, chosen.seeds) == ("marble-run", "q-learning", (0, 1, 2))
    scenes = {"preset": "released", "difficulty": 6}
    assert chosen.env_options == {"sticky_penalty": 0.04, **scenes}
    assert (chosen.episodes, chosen.budget, chosen.lanes) == (20_000, 10, 128)
    assert chosen.curriculum == "auto"  # adaptive in marble-run
    assert chosen.betas[1].at(5000) == 0.0  # of Q-learning
    assert settings(SCALES["small"], 0.0, "save").betas[1].at(5000) == pytest.approx(0.45)


def line(episodes, level, **more):
    return {"episodes": float(episodes), "level": float(level), **more}


def test_rows_by_hand():
    metrics = [
        line(8, 0, level_return=0.25),
        line(100, 1),
        line(200, 1, level_return=0.5),
        line(300, 3, level_return=0.75),  # two levels between lines
    ]
    tests = {0: {3: np.array([0.0, 1.0])}, 6: {3: np.array([0.0, 0.0])}}
    rows = run_rows(CONDITIONS, 3, metrics, tests)
    assert all(list(row) == [c for c in COLUMNS if c in row] for row in rows)
    assert all(CONDITIONS.items() <= row.items() for row in rows)
    found = [(r.get("level"), r["budget"], r["episodes"], r["metric"], r["value"]) for r in rows]
    assert found == [
        (0, 3, 300, "test_reward", 0.5),
        (6, 3, 300, "test_reward", 0.0),
        (1, 3, 100, "episodes_to_level", 100.0),
        (2, 3, 300, "episodes_to_level", 300.0),
        (3, 3, 300, "episodes_to_level", 300.0),
        (None, 3, 300, "final_level", 3),
        (0, 3, 8, "level_reward", 0.25),
        (1, 3, 200, "level_reward", 0.5),
        (3, 3, 300, "level_reward", 0.75),
    ]


REFUSED = {
    "an agent": ({"agents": ("sav",)}, r"--agents: there is no agent 'sav'; .*'save'\?"),
    "uct": ({"agents": ("save", "uct")}, "--agents: 'uct' is not possible; .* agent that learns"),
    "no agents": ({"agents": ()}, "--agents"),
    "a negative cost": ({"costs": (0.0, -1.0)}, "--costs: -1.0 is not possible"),
    "no cost": ({"costs": ()}, "--costs"),
    "a cost twice": ({"costs": (0.0, 0)}, "--costs: .* different values"),
    "a level": ({"levels": (0, 7)}, "--levels: 7 is not possible; it must be from 0 to 6"),
    "seeds": ({"seeds": 0}, "--seeds: 0 is not possible"),
    "episodes": ({"episodes": 0}, "--episodes: 0 is not possible"),
    "budget": ({"budget": 0}, "--budget: 0 is not possible; it must be at least 1"),
    "test episodes": ({"test_episodes": 0}, "--test-episodes: 0 is not possible"),
    "lanes": ({"lanes": 0}, "--lanes: 0 is not possible"),
    "preset": ({"preset": "own"}, "--preset: 'own' is not possible"),
}


@pytest.mark.parametrize(("changed", "said"), REFUSED.values(), ids=REFUSED)
def test_impossible_axes_are_refused_before_any_work(changed, said, tmp_path):
    with pytest.raises(InputError, match=said):
        run("smoke", changed, tmp_path / "out", False, "", "cpu")
    assert list(tmp_path.iterdir()) == []


LEVELS = (0, 3, 6)
SMALL = {"seeds": 3, "levels": LEVELS}
# Made-up rewards on level 0, which fall by a tenth per level and rise by a hundredth per seed.
REWARD = {"save": 0.9, "q-learning": 0.7}
FINAL = {"save": 6, "q-learning": 3}
RUNS = [(cost, agent) for cost in (0.0, 0.04) for agent in ("save", "q-learning")]


def reward(agent, level, seed, budget):
    return REWARD[agent] - 0.1 * level + 0.01 * seed + (0.05 if budget else 0.0)


def make_up(monkeypatch):
    """Put training, tests and pictures aside; returns what was asked for."""

    def lines(chosen):
        for level in range(FINAL[chosen.agent] + 1):
            yield {"episodes": 1 + 5 * level, "level": level, "level_return": 0.1 * level}
        yield {"episodes": chosen.episodes, "level": FINAL[chosen.agent]}

    asked = made_up_training(
        monkeypatch,
        lambda chosen: (chosen.env_options["sticky_penalty"], chosen.agent),
        lines,
    )
    asked.drawn = []

    def evaluate_levels(folder, levels, budgets, episodes, *, device, workers):
        for level in levels:
            asked.tested.append((folder.parent.name, folder.name, level))
            returns = [
                {b: [reward(folder.name, level, seed, b)] * episodes for b in budgets}
                for seed in seeds_of(folder)
            ]
            write_tests(folder / f"evaluation-level-{level}.csv", *returns)

    def gallery(runs, out, preset, level, budget, device):
        asked.drawn.append(([(cost, folder.name) for cost, folder in runs], level, budget))
        out.write_bytes(b"a picture")

    monkeypatch.setattr("save_rl.evaluation.evaluate_levels", evaluate_levels)
    monkeypatch.setattr("save_rl.experiments.marble_run.gallery", gallery)
    return asked


@pytest.fixture
def made_up(monkeypatch):
    """Training, tests and pictures that take no time, and no figures; returns what was asked."""
    for name in ("curve_panels", "level_figure", "progress_figure"):
        monkeypatch.setattr(f"save_rl.report.panels.{name}", lambda *given, **more: None)
    return make_up(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A reproduction, with its figures; tests that change it work on a copy."""
    out = tmp_path_factory.mktemp("marble-run") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        asked = make_up(patch)
        claims = reproduce(out)
    return SimpleNamespace(out=out, claims=claims, asked=asked)


def reproduce(out, resume=False, **changed):
    return run("smoke", SMALL | changed, out, resume, "save-rl …", "cpu", 0)


def test_a_reproduction_leaves_everything_a_reader_needs(whole):
    out, claims, made_up = whole.out, whole.claims, whole.asked
    assert made_up.trained == [(*asked, False) for asked in RUNS]
    assert made_up.tested == [
        (f"cost-{cost:g}", agent, level) for cost, agent in RUNS for level in LEVELS
    ]
    assert {path.name for path in out.iterdir()} == {
        "experiment.json", "results.csv", "figure.png", "curves.png", "rewards.png",
        "structures.png", "claims.json", "provenance.json", "runs",
    }  # fmt: skip
    assert made_up.drawn == [([(0.0, "save"), (0.04, "save")], 6, 3)]
    rows = read_results(out / "results.csv")
    assert list(rows[0]) == COLUMNS
    tests = select(rows, metric="test_reward", sticky_cost=0.04, level=3)
    assert values(tests, agent="save", budget=3).tolist() == pytest.approx([0.65, 0.66, 0.67])
    assert values(tests, agent="q-learning", budget=0).tolist() == pytest.approx([0.4, 0.41, 0.42])
    assert len(values(tests, agent="save", budget=0)) == 0
    rises = values(rows, metric="episodes_to_level", agent="q-learning", seed=0, sticky_cost=0.0)
    assert rises.tolist() == [6.0, 11.0, 16.0]
    assert values(rows, metric="final_level", agent="save", sticky_cost=0.04).tolist() == [6, 6, 6]
    assert {claim.id: claim.holds for claim in claims} == {
        f"{name}-cost-{cost}": holds
        for cost in ("0", "0.04")
        for name, holds in (
            ("save-above-q-learning", True), ("save-reaches-higher", True),
            ("q-learning-stays-below", True),
            ("q-learning-collapses", None),  # it ends on level 3, too low to tell
        )
    }  # fmt: skip
    experiment = json.loads((out / "experiment.json").read_text())
    assert experiment["axes"]["costs"] == [0.0, 0.04]


def test_what_is_done_is_not_done_again(monkeypatch, whole, tmp_path):
    made_up, out = make_up(monkeypatch), tmp_path / "out"
    shutil.copytree(whole.out, out)
    for name in ("figure.png", "curves.png", "rewards.png", "claims.json"):
        (out / name).unlink()
    reproduce(out, resume=True)
    assert (made_up.trained, made_up.tested) == ([], [])
    for name in ("results.csv", "figure.png", "curves.png", "rewards.png", "claims.json"):
        assert files(out)[name] == files(whole.out)[name]


def test_a_level_whose_tests_are_lost_is_tested_again(made_up, whole, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(whole.out, out)
    (out / "runs" / "cost-0.04" / "save" / "evaluation-level-3.csv").unlink()
    reproduce(out, resume=True)
    assert made_up.tested == [("cost-0.04", "save", 3)]
    assert files(out)["results.csv"] == files(whole.out)["results.csv"]


def test_a_stopped_reproduction_goes_on_where_it_was(made_up, whole, tmp_path):
    out = tmp_path / "out"
    made_up.fail_after = 3
    with pytest.raises(KeyboardInterrupt):
        reproduce(out)
    made_up.fail_after = None
    made_up.trained.clear()
    reproduce(out, resume=True)
    assert made_up.trained == [(*asked, False) for asked in RUNS[3:]]
    assert files(out)["results.csv"] == files(whole.out)["results.csv"]
    with pytest.raises(InputError, match=r"was started with --costs \[0.0, 0.04\], not"):
        reproduce(out, resume=True, costs=(0.0,))


def test_there_is_no_gallery_without_save(made_up, tmp_path):
    out = tmp_path / "out"
    claims = reproduce(out, agents=("q-learning",), costs=(0.1,))
    assert not (out / "structures.png").exists()
    assert [claim.holds for claim in claims] == [None] * 3  # the paper has no such cost


def test_the_gallery_shows_what_is_built(monkeypatch, tmp_path):
    asked = []

    def builder(folder, sim, budget, *, device):
        scenes = sim.sticky_penalty, sim.preset, sim.difficulty
        asked.append((folder.name, *scenes, budget, device))
        return make_player("scripted", sim)

    monkeypatch.setattr("save_rl.evaluation.trained_player", builder)
    monkeypatch.setattr("save_rl.experiments.runs.SCENES", 2)
    out = tmp_path / "structures.png"
    gallery([(0.0, tmp_path / "a"), (0.04, tmp_path / "b")], out, "paper", 1, 10, "cpu")
    assert asked == [("a", 0.0, "paper", 1, 10, "cpu"), ("b", 0.04, "paper", 1, 10, "cpu")]
    with Image.open(out) as sheet:
        width, height = sheet.size
    assert width > 2 * 256
    assert height > 2 * 144


@pytest.mark.slow
def test_a_smoke_reproduction_trains_tests_and_builds_for_real(tmp_path):
    out = tmp_path / "out"
    claims = run("smoke", {}, out, False, "", "cpu")
    assert all(claim.holds is None for claim in claims)  # one seed tells nothing
    rows = read_results(out / "results.csv")
    for cost in (0.0, 0.04):
        for agent, budgets in {"save": (3,), "q-learning": (0, 3)}.items():
            for level in (0, 6):
                table = f"runs/cost-{cost:g}/{agent}/evaluation-level-{level}.csv"
                lines = read_tests(out / table, budgets, 4)
                assert lines is not None
                asked = {"agent": agent, "sticky_cost": cost, "level": level, "budget": 3}
                (found,) = values(rows, metric="test_reward", **asked)
                assert found == lines[3].mean()
    assert (out / "structures.png").read_bytes().startswith(b"\x89PNG")
    before = files(out)
    run("smoke", {}, out, True, "", "cpu")
    for kept in ("results.csv", "figure.png", "curves.png", "structures.png", "claims.json"):
        assert files(out)[kept] == before[kept]
