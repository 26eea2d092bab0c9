"""`reproduce construction` and its ablations: what runs are made, their rows, and going on."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from save_rl.errors import InputError, MissingExtra
from save_rl.experiments.cells import read_tests
from save_rl.experiments.construction import (
    ABLATIONS,
    CONSTRUCTION,
    EFFICIENCY,
    EXPLORATION,
    PUBLISHED,
    REST_FRAMES,
    TASKS,
    pictures,
    run_rows,
    settings,
)
from save_rl.experiments.experiment import reproduce as reproduce_experiment
from save_rl.experiments.runs import thin
from save_rl.players import make_player
from save_rl.report.results import read_results, values
from tests.experiments.made_up import files, made_up_training, seeds_of, write_tests

# One worker runs them all, so that one reproduction is enough.
pytestmark = pytest.mark.xdist_group("construction-experiment")
COLUMNS = ["experiment", "agent", "seed", "task", "budget", "episodes", "metric", "value"]
CONDITIONS = {"experiment": "construction", "agent": "save", "seed": 1, "task": "covering"}
MAIN = CONSTRUCTION.scales
STUDIES = {one.name: one for one in (CONSTRUCTION, ABLATIONS, EXPLORATION, EFFICIENCY)}


def run(name, *given):
    return reproduce_experiment(STUDIES[name], *given)


def test_the_papers_scale_is_the_papers():
    axes = MAIN["paper"]  # paper A.1, C.1, C.2
    assert axes.tasks == ("connecting", "covering", "covering-hard")
    assert axes.agents == ("save", "save-no-amortization", "q-learning")
    assert (axes.seeds, axes.episodes, axes.test_episodes) == (10, 1_000_000, 10_000)
    assert (axes.budget, axes.budgets, axes.lanes) == (10, (0, 5, 10, 20, 50), 64)
    assert (axes.epsilon_episodes, axes.beta_episodes) == (1e4, 5e4)
    assert (axes.uct_budget, axes.uct_episodes) == (1000, 100)
    other = ABLATIONS.scales["paper"]
    variants = ("save-l2", "save-no-q-learning", "save-puct")
    assert other.agents == ("save", "save-no-amortization", *variants)
    same = {"agents": axes.agents, "tasks": axes.tasks, "test_episodes": 10_000}
    assert (other.tasks, other.test_episodes) == (("covering",), 1000)
    assert replace(other, uct_budget=axes.uct_budget, **same) == axes


@pytest.mark.parametrize("name", STUDIES)
def test_smaller_scales_are_cut_down_ones(name):
    scales = STUDIES[name].scales
    small, smoke = scales["small"], scales["smoke"]
    assert (small.episodes, small.epsilon_episodes, small.beta_episodes) == (10_000, 2000, 5e4)
    assert small.tasks == scales["paper"].tasks
    assert small.budgets == scales["paper"].budgets
    assert small.uct_budget == scales["paper"].uct_budget
    assert small.uct_episodes == 50
    assert (smoke.tasks, smoke.budgets, smoke.uct_budget) == (("covering",), (0, 3), 0)
    assert (smoke.lanes, smoke.seeds, smoke.test_episodes) == (8, 1, 4)
    for axes in scales.values():
        axes.check()
        assert axes.budget in axes.budgets  # what the claims look at is tested
        assert axes.epsilon_episodes <= axes.episodes


def test_training_is_what_the_axes_say():
    chosen = settings(MAIN["small"], "connecting", "q-learning")
    assert (chosen.env, chosen.agent, chosen.seeds) == ("connecting", "q-learning", (0, 1, 2))
    assert chosen.env_options == {"masked": False}  # as the papers' agents
    masked = settings(replace(MAIN["small"], masked=True), "connecting", "q-learning")
    assert masked.env_options == {"masked": True}
    assert (chosen.episodes, chosen.budget, chosen.lanes) == (10_000, 10, 128)
    assert chosen.epsilon.at(1000) == pytest.approx(0.505)  # halfway from 1 to 0.01 in 2000
    beta_q, beta_a = settings(MAIN["paper"], "covering", "save").betas
    assert (beta_q.at(25_000), beta_a.at(25_000)) == (pytest.approx(0.55), pytest.approx(2.25))
    _, sooner = settings(replace(MAIN["small"], beta_episodes=5e3), "covering", "save").betas
    assert (sooner.at(2500), sooner.at(5000)) == (pytest.approx(2.25), pytest.approx(4.5))


def test_model_free_agents_see_as_many_steps_as_those_that_search_if_wanted():
    axes = STUDIES["construction-efficiency"].scales["small"]  # budget 10: eleven steps for one
    assert settings(axes, "covering", "save").episodes == 10_000
    assert settings(axes, "covering", "save-no-amortization").episodes == 10_000
    model_free = settings(axes, "covering", "q-learning")
    assert model_free.episodes == 110_000
    assert model_free.epsilon.at(1000) == settings(axes, "covering", "save").epsilon.at(1000)
    equal_episodes = replace(axes, equal_interactions=False)
    assert settings(equal_episodes, "covering", "q-learning").episodes == 10_000


def test_published_numbers_are_there_for_every_task():
    assert set(PUBLISHED) == set(TASKS)
    assert PUBLISHED["connecting"] == {"q-learning": 2.17, "save-no-amortization": 1.90}
    assert PUBLISHED["covering"] == {"q-learning": 5.03, "save-no-amortization": 5.28}
    assert PUBLISHED["covering-hard"] == {"q-learning": 3.60, "save-no-amortization": 4.61}


def test_rows_by_hand():
    metrics = [
        {"episodes": 0.0},  # nothing had ended: no point
        {"episodes": 8.0, "return_mean": -0.5, "level_return": 0.0},
        {"episodes": 24.0, "return_mean": 1.5},
    ]
    tests = {0: np.array([1.0, 2.0]), 10: np.array([0.0, 3.0, 3.0, 6.0])}
    rows = run_rows(CONDITIONS, 7, metrics, tests, {10: np.array([0.5, 1.5])})
    assert all(list(row) == COLUMNS for row in rows)
    assert all(CONDITIONS.items() <= row.items() for row in rows)
    assert [(r["budget"], r["episodes"], r["metric"], r["value"]) for r in rows] == [
        (7, 8, "train_reward", -0.5),
        (7, 24, "train_reward", 1.5),
        (7, 8, "level_reward", 0.0),
        (10, 24, "last_test_reward", 1.0),
        (0, 24, "test_reward", 1.5),
        (10, 24, "test_reward", 3.0),
    ]


def test_rows_over_interactions_by_hand():
    metrics = [
        {"episodes": 8.0, "env_steps": 60.0, "simulator_steps": 500.0, "return_mean": -0.5,
         "epsilon": 0.5},
        {"episodes": 24.0, "env_steps": 200.0, "simulator_steps": 1900.0, "return_mean": 1.5,
         "epsilon": 0.25},
    ]  # fmt: skip
    rows = run_rows(CONDITIONS, 7, metrics, {0: np.array([1.0])}, {}, interactions=True)
    assert all(list(row) == [*COLUMNS[:6], "interactions", *COLUMNS[6:]] for row in rows)
    assert [(r["episodes"], r["interactions"], r["metric"], r["value"]) for r in rows] == [
        (8, 560, "train_reward", -0.5),
        (24, 2100, "train_reward", 1.5),
        (8, 560, "epsilon", 0.5),
        (24, 2100, "epsilon", 0.25),
        (24, 2100, "test_reward", 1.0),
    ]


def test_a_long_curve_is_thinned_evenly_over_log_episodes():
    points = [(episodes, float(episodes)) for episodes in range(0, 100_001, 10)]
    kept = thin(points, 60)
    assert (kept[0], kept[-1]) == (points[1], points[-1])
    assert 40 < len(kept) <= 60
    assert set(kept) <= set(points)
    steps = np.diff(np.log([episodes for episodes, _ in kept]))
    assert max(steps[20:]) < 1.3 * math.log(10_000) / 59  # early points are far apart themselves
    assert thin(points[:30], 60) == points[1:30]
    assert thin([], 60) == []


def test_tests_are_read_back_if_they_are_all_there(tmp_path):
    path = tmp_path / "evaluation.csv"
    assert read_tests(path, (0, 10), 2) is None
    write_tests(path, {10: [1.5, -2.0], 0: [0.25, 1e-3]})
    found = read_tests(path, (0, 10), 2)
    assert {budget: returns.tolist() for budget, returns in found.items()} == {
        0: [0.25, 0.001], 10: [1.5, -2.0],
    }  # fmt: skip
    assert list(found) == [0, 10]
    for budgets, episodes in [((0, 10), 3), ((0, 10), 1), ((0, 5, 10), 2), ((0,), 2)]:
        assert read_tests(path, budgets, episodes) is None


REFUSED = {
    "a task": ({"tasks": ("coverin",)}, r"--tasks: there is no task 'coverin'; .*'covering'\?"),
    "marble-run, as a task": ({"tasks": ("marble-run",)}, "--tasks: there is no task 'marble-run'"),
    "no task": ({"tasks": ()}, r"--tasks: \(\) is not possible; it must be at least one value"),
    "an agent": ({"agents": ("sav",)}, r"--agents: there is no agent 'sav'; .*'save'\?"),
    "uct": ({"agents": ("save", "uct")}, "--agents: 'uct' is not possible; .* agent that learns"),
    "no agents": ({"agents": ()}, "--agents"),
    "an agent twice": ({"agents": ("save", "save")}, "--agents: .* different values"),
    "seeds": ({"seeds": 0}, "--seeds: 0 is not possible; it must be at least 1"),
    "episodes": ({"episodes": 0}, "--episodes: 0 is not possible"),
    "budget": ({"budget": -1}, "--budget: -1 is not possible"),
    "budgets": ({"budgets": (5, -1)}, "--budgets: -1 is not possible; it must be 0 or more"),
    "a budget twice": ({"budgets": (5, 5)}, r"--budgets: \(5, 5\) is not possible"),
    "test episodes": ({"test_episodes": 0}, "--test-episodes: 0 is not possible"),
    "lanes": ({"lanes": 0}, "--lanes: 0 is not possible"),
    "epsilon": ({"epsilon_episodes": 0.0}, "--epsilon-episodes: 0.0 is not possible"),
    "beta": ({"beta_episodes": -1.0}, "--beta-episodes: -1.0 is not possible"),
    "uct budget": ({"uct_budget": -1}, "--uct-budget: -1 is not possible"),
    "uct episodes": ({"uct_episodes": 0}, "--uct-episodes: 0 is not possible"),
    "uct without its network": (
        {"uct_budget": 1000, "agents": ("save",)},
        "--uct-budget: 1000 is not possible; it must be 0 without 'q-learning'",
    ),
}


@pytest.mark.parametrize(("changed", "said"), REFUSED.values(), ids=REFUSED)
def test_impossible_axes_are_refused_before_any_work(changed, said, tmp_path):
    with pytest.raises(InputError, match=said):
        run("construction", "smoke", changed, tmp_path / "out", False, "", "cpu")
    assert list(tmp_path.iterdir()) == []


def test_impossible_options_are_refused_before_any_work(tmp_path, monkeypatch):
    def refused(scale="smoke", device="cpu", workers=0):
        with pytest.raises(InputError) as error:
            run("construction", scale, {}, tmp_path / "out", False, "", device, workers)
        assert list(tmp_path.iterdir()) == []
        return str(error.value)

    assert refused(scale="huge").startswith("--scale: 'huge'")
    assert refused(workers=-2).startswith("--workers: -2")
    assert refused(device="tpu").startswith("--device: 'tpu'")

    def no_engine(task):
        raise MissingExtra("install save-rl[construction]")

    monkeypatch.setattr("save_rl.envs.make", no_engine)
    assert refused() == "install save-rl[construction]"


SMALL = {
    "tasks": ("covering", "connecting"),
    "agents": ("save", "q-learning"),
    "seeds": 3,
    "budgets": (0, 3),
}
# Made-up rewards at budgets 0 and 3, plus a tenth per seed.
REWARD = {"save": (2.0, 3.0), "q-learning": (1.0, 1.2), "uct": (0.25, 0.25)}


def reward(agent, seed, budget):
    return REWARD[agent][budget > 0] + 0.1 * seed


def make_up(monkeypatch):
    """Put training, tests and pictures aside; returns what was asked for."""

    def lines(chosen):
        searched = chosen.agent != "q-learning"
        for episodes in (10, chosen.episodes):
            yield {
                "episodes": episodes, "return_mean": reward(chosen.agent, 0, 0), "epsilon": 0.01,
                "simulator_steps": searched * chosen.budget * episodes,
            }  # fmt: skip

    asked = made_up_training(monkeypatch, lambda chosen: (chosen.env, chosen.agent), lines)

    def evaluate(folder, budgets, episodes, *, agent, out, last, baseline, append, device, workers):
        name = agent or folder.name
        asked.tested.append((folder.parent.name, name, *["last"] * last))
        returns = [
            {budget: [reward(name, seed, budget) - last] * episodes for budget in budgets}
            for seed in seeds_of(folder)
        ]
        write_tests(out, *returns)

    def draw(axes, out, device):
        asked.drawn.append((axes.tasks, device))
        (out / "gallery.png").write_bytes(b"a picture")

    asked.drawn = []
    monkeypatch.setattr("save_rl.evaluation.evaluate", evaluate)
    monkeypatch.setattr("save_rl.experiments.construction.pictures", draw)
    return asked


@pytest.fixture
def made_up(monkeypatch):
    """Training and tests that take no time, and no figures; returns what was asked for."""
    for name in ("budget_figure", "curve_panels"):
        monkeypatch.setattr(f"save_rl.report.panels.{name}", lambda *given, **more: None)
    return make_up(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A reproduction, with its figures; tests that change it work on a copy."""
    out = tmp_path_factory.mktemp("construction") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        asked = make_up(patch)
        claims = reproduce(out)
    return SimpleNamespace(out=out, claims=claims, asked=asked)


def reproduce(out, resume=False, **changed):
    return run("construction", "smoke", SMALL | changed, out, resume, "save-rl …", "cpu", 0)


RUNS = [(task, agent) for task in ("covering", "connecting") for agent in ("save", "q-learning")]


def test_a_reproduction_leaves_everything_a_reader_needs(whole):
    out, claims, made_up = whole.out, whole.claims, whole.asked
    assert [(*asked, False) for asked in RUNS] == made_up.trained
    assert made_up.tested == [(*run, *which) for run in RUNS for which in ((), ("last",))]
    assert {path.name for path in out.iterdir()} == {
        "experiment.json", "results.csv", "figure.png", "curves.png", "gallery.png", "claims.json",
        "provenance.json", "runs",
    }  # fmt: skip
    assert made_up.drawn == [(("covering", "connecting"), "cpu")]
    for task, agent in RUNS:
        assert (out / "runs" / task / agent / "config.json").exists()
    rows = read_results(out / "results.csv")
    assert list(rows[0]) == COLUMNS
    tested = values(rows, task="connecting", agent="save", budget=3, metric="test_reward")
    assert tested.tolist() == pytest.approx([3.0, 3.1, 3.2])
    last = values(rows, task="connecting", agent="save", budget=3, metric="last_test_reward")
    assert last.tolist() == pytest.approx([2.0, 2.1, 2.2])
    # Q-learning trains without search, whatever the budget of the others.
    trained = {r["agent"]: r["budget"] for r in rows if r["metric"] == "train_reward"}
    assert trained == {"save": 3, "q-learning": 0}
    holds = {claim.id: claim.holds for claim in claims}
    assert len(holds) == 2 * 6
    assert holds["save-above-q-learning-covering"] is True
    assert holds["search-adds-little-to-q-learning-connecting"] is True
    assert holds["uct-is-poor-covering"] is None
    experiment = json.loads((out / "experiment.json").read_text())
    assert experiment["experiment"] == "construction"
    assert experiment["axes"]["tasks"] == ["covering", "connecting"]
    assert "workers" not in experiment["axes"]  # they change no result
    assert json.loads((out / "provenance.json").read_text())["command"] == "save-rl …"


def test_what_is_done_is_not_done_again(monkeypatch, whole, tmp_path):
    made_up, out = make_up(monkeypatch), tmp_path / "out"
    shutil.copytree(whole.out, out)
    for name in ("figure.png", "curves.png", "claims.json"):
        (out / name).unlink()
    reproduce(out, resume=True)
    assert (made_up.trained, made_up.tested) == ([], [])
    for name in ("results.csv", "figure.png", "curves.png", "claims.json"):
        assert files(out)[name] == files(whole.out)[name]


def test_a_stopped_reproduction_goes_on_where_it_was(made_up, whole, tmp_path):
    out = tmp_path / "out"
    made_up.fail_after = 1
    with pytest.raises(KeyboardInterrupt):
        reproduce(out)
    assert {row["agent"] for row in read_results(out / "results.csv")} == {"save"}  # so far
    # A run of which two seeds have ended, that somebody tested before the third had.
    begun = out / "runs" / "covering" / "q-learning"
    shutil.copytree(whole.out / "runs" / "covering" / "q-learning", begun)
    *lines, _ = (begun / "metrics.csv").read_text().splitlines(keepends=True)
    (begun / "metrics.csv").write_text("".join(lines))
    write_tests(begun / "evaluation.csv", *[{0: [9.0] * 4, 3: [9.0] * 4}] * 3)
    made_up.fail_after = None
    made_up.trained.clear()
    reproduce(out, resume=True)
    assert made_up.trained == [(*asked, asked == ("covering", "q-learning")) for asked in RUNS[1:]]
    assert files(out)["results.csv"] == files(whole.out)["results.csv"]


def test_a_run_whose_tests_are_lost_is_tested_again(made_up, whole, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(whole.out, out)
    (out / "runs" / "covering" / "save" / "evaluation.csv").unlink()
    reproduce(out, resume=True)
    assert made_up.tested == [("covering", "save")]
    assert files(out)["results.csv"] == files(whole.out)["results.csv"]


def test_other_axes_are_not_mixed_in(whole, tmp_path):
    out, before = whole.out, files(whole.out)
    with pytest.raises(InputError, match="was started with --episodes 40, not 41"):
        reproduce(out, resume=True, episodes=41)
    with pytest.raises(InputError, match="is not empty"):
        reproduce(out)
    with pytest.raises(InputError, match="holds no experiment"):
        reproduce(tmp_path / "nowhere", resume=True)
    assert files(out) == before


def test_uct_searches_with_the_networks_of_q_learning(made_up, tmp_path):
    out = tmp_path / "out"
    claims = reproduce(out, uct_budget=1000, uct_episodes=2)
    asked = [(task, "uct") for task, agent in RUNS if agent == "q-learning"]
    assert [tested for tested in made_up.tested if tested[1] == "uct"] == asked
    rows = read_results(out / "results.csv")
    uct = [row for row in rows if row["agent"] == "uct"]
    assert all(list(row) == COLUMNS for row in uct)
    assert {(row["budget"], row["episodes"], row["metric"]) for row in uct} == {
        (1000, 40, "test_reward")
    }
    assert values(uct, task="covering").tolist() == pytest.approx([0.25, 0.35, 0.45])
    (claim,) = [claim for claim in claims if claim.id == "uct-is-poor-covering"]
    assert claim.holds is True
    made_up.tested.clear()
    reproduce(out, resume=True, uct_budget=1000, uct_episodes=2)
    assert made_up.tested == []


def test_uct_is_left_out_where_nobody_learns_by_q_learning(made_up, tmp_path):
    out = tmp_path / "out"
    changed = {"tasks": ("covering",), "agents": ("save",), "seeds": 1, "test_episodes": 2}
    run("construction", "small", changed, out, False, "", "cpu", 0)
    assert made_up.tested == [("covering", "save"), ("covering", "save", "last")]
    assert json.loads((out / "experiment.json").read_text())["axes"]["uct_budget"] == 0


def test_efficiency_compares_at_equal_interactions(monkeypatch, tmp_path):
    made_up, out = make_up(monkeypatch), tmp_path / "out"
    changed = {"seeds": 3, "budgets": (0, 3)}
    name = "construction-efficiency"
    (claim,) = run(name, "smoke", changed, out, False, "save-rl …", "cpu", 0)
    rows = read_results(out / "results.csv")
    assert list(rows[0]) == [*COLUMNS[:6], "interactions", *COLUMNS[6:]]
    ends = {row["agent"]: row["interactions"] for row in rows if row["metric"] == "test_reward"}
    # Budget 3: four steps for one, and four episodes for one.
    assert ends == {"save": 160, "q-learning": 160}
    assert (claim.id, claim.holds) == ("save-more-efficient-covering", True)
    assert "SAVE after 160 steps: 2.00 [2.00, 2.00]" in claim.measured
    before = files(out)
    assert before["figure.png"] != before["curves.png"]
    assert made_up.drawn == []
    made_up.trained.clear()
    run(name, "smoke", changed, out, True, "save-rl …", "cpu", 0)
    assert made_up.trained == []
    assert files(out)["results.csv"] == before["results.csv"]


@pytest.fixture
def players(monkeypatch):
    """Agents that build by a script, or at random; returns who was asked for."""
    asked = []

    def builder(folder, sim, budget, *, device):
        assert not sim.masked
        level = sim.curriculum_sample, sim.difficulty
        asked.append((f"{folder.parent.name}/{folder.name}", sim.name, *level, budget, device))
        return make_player("scripted" if folder.name == "save" else "random", sim)

    monkeypatch.setattr("save_rl.evaluation.trained_player", builder)
    monkeypatch.setattr("save_rl.experiments.runs.SCENES", 2)
    monkeypatch.setattr("save_rl.experiments.construction.ANIMATED", 1)
    return asked


def test_pictures_show_what_agents_build(players, tmp_path):
    agents = ("save", "save-puct", "q-learning")
    axes = replace(MAIN["smoke"], tasks=("covering", "silhouette"), agents=agents)
    pictures(axes, tmp_path, "cpu")
    assert players == [  # all but save-puct, which does not search from Q-values
        ("covering/save", "covering", False, 2, 3, "cpu"),
        ("covering/q-learning", "covering", False, 2, 3, "cpu"),
        ("silhouette/save", "silhouette", False, 7, 3, "cpu"),
        ("silhouette/q-learning", "silhouette", False, 7, 3, "cpu"),
    ]
    assert {path.name for path in tmp_path.iterdir()} == {
        "gallery.png", "covering.gif", "silhouette.gif",
    }  # fmt: skip
    with Image.open(tmp_path / "gallery.png") as sheet:
        assert sheet.size[0] > 2 * 256
        assert sheet.size[1] > 4 * 144
    for task in axes.tasks:
        with Image.open(tmp_path / f"{task}.gif") as animation:
            assert animation.size[0] == 480
            assert animation.n_frames >= 5
        assert (tmp_path / f"{task}.gif").stat().st_size < 1_500_000


def test_pictures_of_a_task_have_the_same_scenes_and_rest_at_the_end(players, monkeypatch):
    drawn, sheets, animations = [], [], {}

    def draw(state, path=None):
        drawn.append(state)
        return np.zeros((144, 256, 3), np.uint8)

    monkeypatch.setattr("save_rl.watch.small_picture", draw)
    monkeypatch.setattr(
        "save_rl.report.pictures.contact_sheet", lambda *given: sheets.append(given)
    )
    monkeypatch.setattr(
        "save_rl.report.pictures.save_gif",
        lambda frames, out, seconds: animations.update({out.name: frames}),
    )
    axes = replace(MAIN["smoke"], agents=("save", "q-learning"), budget=0)
    pictures(axes, Path("out"), "cpu")
    assert [asked[4] for asked in players] == [0, 0]  # the budget of training
    ((rows, out),) = sheets
    assert out == Path("out/gallery.png")
    assert [(label, len(row)) for label, row in rows] == [
        ("covering\nSAVE", 2), ("covering\nQ-learning", 2),
    ]  # fmt: skip
    save, other = drawn[:2], drawn[2:]
    assert [end.scene for end in save] == [end.scene for end in other]
    assert save[0].scene != save[1].scene
    assert all(end.ending for end in drawn)
    assert list(animations) == ["covering.gif"]
    frames = animations["covering.gif"]
    assert len(frames) == 1 + save[0].steps + REST_FRAMES  # of the first scene
    rest = frames[-1 - REST_FRAMES :]
    assert all((frame == rest[0]).all() for frame in rest)
    assert (frames[-2 - REST_FRAMES] != rest[0]).any()


def test_there_are_no_pictures_without_agents_that_can_play(players, tmp_path):
    axes = replace(MAIN["smoke"], agents=("save-puct",))
    pictures(axes, tmp_path, "cpu")
    pictures(replace(axes, agents=("q-learning",)), tmp_path, "cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["gallery.png"]  # animations are of SAVE


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_a_smoke_reproduction_trains_and_tests_for_real(name, tmp_path):
    out = tmp_path / "out"
    claims = run(name, "smoke", {}, out, False, "", "cpu")
    assert all(claim.holds is None for claim in claims)  # one seed tells nothing
    rows = read_results(out / "results.csv")
    agents = STUDIES[name].scales["smoke"].agents
    for agent in agents:
        for budget in (0, 3):
            assert len(values(rows, agent=agent, budget=budget, metric="test_reward")) == 1
        lines = read_tests(out / "runs" / "covering" / agent / "evaluation.csv", (0, 3), 4)
        assert lines is not None
        assert lines[3].mean() == values(rows, agent=agent, budget=3, metric="test_reward")[0]
    assert {row["metric"] for row in rows} >= {"train_reward", "test_reward"}
    before = files(out)
    assert ("gallery.png" in before) == ("covering.gif" in before) == (name == "construction")
    run(name, "smoke", {}, out, True, "", "cpu")
    assert before.pop("provenance.json")
    assert before.items() <= files(out).items()
