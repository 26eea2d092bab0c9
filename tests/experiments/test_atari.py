"""`reproduce atari`: what runs are made, their rows and scores, the files, and going on."""

import json
import shlex
import shutil
import sys
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace

import pytest

from save_rl.cli import main
from save_rl.errors import InputError, MissingExtra
from save_rl.experiments.atari import (
    ATARI,
    PROFILES,
    SCALES,
    last_episodes,
    mean_scores,
    run_rows,
    settings,
    steps_to_learning,
)
from save_rl.experiments.atari_scores import BASELINE, CONTROLLED, GAMES, SAVE
from save_rl.experiments.experiment import reproduce as reproduce_experiment
from save_rl.report.results import read_results, select, values
from save_rl.training.settings import TrainSettings
from tests.experiments.made_up import files, made_up_training

# One worker runs them all, so that one reproduction is enough.
pytestmark = pytest.mark.xdist_group("atari-experiment")
run = partial(reproduce_experiment, ATARI)
COLUMNS = ["experiment", "agent", "seed", "game", "frames", "metric", "value"]
CONDITIONS = {"experiment": "atari", "agent": SAVE, "seed": 1, "game": "alien"}


def test_the_papers_scale_is_the_papers():
    axes = SCALES["paper"]  # paper E
    assert (axes.games, axes.agents) == (tuple(GAMES), (BASELINE, CONTROLLED, SAVE))
    assert (axes.seeds, axes.budget, axes.score_episodes) == (3, 10, 20_000)
    made = {agent: settings(axes, "alien", agent, 0) for agent in axes.agents}
    assert {agent: (one.lanes, one.r2d2.refresh) for agent, one in made.items()} == {
        BASELINE: (256, 400),
        CONTROLLED: (1024, 40),
        SAVE: (1024, 40),
    }
    assert [beta.start for beta in made[SAVE].betas] == [1, 10]
    for one in made.values():
        assert (one.steps, one.r2d2.network.profile) == (2_500_000_000, "paper")
        assert (one.r2d2.replay.capacity, one.r2d2.replay.minimum) == (100_000, 5_000)
        assert one.r2d2.replay.samples_per_insert is None  # the agent's


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_is_possible(scale):
    SCALES[scale].check()


def test_training_is_what_the_axes_say():
    axes = SCALES["small"]
    chosen = settings(axes, "zaxxon", CONTROLLED, 2)
    assert (chosen.env, chosen.agent, chosen.seeds) == ("atari/zaxxon", CONTROLLED, (2,))
    assert (chosen.steps, chosen.budget, chosen.lanes) == (1_000_000, 10, 256)
    assert chosen.env_options == {"max_frames": 108_000}
    assert (chosen.r2d2.replay.capacity, chosen.r2d2.replay.minimum) == (25_000, 1_250)
    assert chosen.r2d2.refresh == settings(axes, "zaxxon", BASELINE, 0).r2d2.refresh == 40
    assert not chosen.r2d2.discard_search


def test_only_the_controlled_agent_discards_what_it_finds():
    axes = replace(SCALES["smoke"], discard_search=True, lanes=8)
    axes.check()
    made = {agent: settings(axes, "alien", agent, 0) for agent in axes.agents}
    assert {agent: one.r2d2.discard_search for agent, one in made.items()} == {
        BASELINE: False, CONTROLLED: True, SAVE: False,
    }  # fmt: skip
    assert {one.lanes for one in made.values()} == {8}


def test_learning_begins_when_that_many_sequences_can_be_there():
    lanes, r2d2 = PROFILES["two-cores"]  # windows of 20 steps that begin every 10
    # After 20 steps 16 lanes have one sequence each, after 30 two, after 50 four: 64 of 50.
    made = TrainSettings(f"atari/{next(iter(GAMES))}", SAVE, lanes=lanes, r2d2=r2d2)
    assert 16 * 40 <= steps_to_learning(made) == 660 <= 16 * 50


def line(steps, episodes, time=0.0, **more):
    return {
        "env_steps": float(steps), "episodes": float(episodes), "time_s": time, "explored": 2.0,
        "changed": 0.25, **more,
    }  # fmt: skip


METRICS = [
    line(100, 0, 10.0),
    line(200, 4, 12.0, return_mean=10.0),
    line(300, 4, 14.0, explored=8.0),
    line(600, 10, 30.0, return_mean=20.0, changed=0.5),
]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (1, (20.0, 1)),
        (6, (20.0, 6)),
        (8, ((6 * 20 + 2 * 10) / 8, 8)),  # of the four before, their mean for two
        (10, (16.0, 10)),
        (500, (16.0, 10)),  # all there are
    ],
)
def test_the_mean_of_the_last_episodes_by_hand(wanted, expected):
    assert last_episodes(METRICS, wanted) == expected


def test_rows_by_hand():
    rows = run_rows(CONDITIONS, METRICS, 8)
    assert all(list(row) == COLUMNS for row in rows)
    assert all(CONDITIONS.items() <= row.items() for row in rows)
    assert [(row["frames"], row["metric"], row["value"]) for row in rows] == [
        (800, "train_reward", 10.0),
        (2400, "train_reward", 20.0),
        (2400, "score", 17.5),
        (2400, "score_episodes", 8),
        (2400, "episodes", 10),
        (2400, "explored", (100 * 2 + 100 * 2 + 100 * 8 + 300 * 2) / 600),
        (2400, "changed", (300 * 0.25 + 300 * 0.5) / 600),
        (2400, "steps_per_second", 500 / 20),
    ]


def test_a_run_in_which_no_episode_ended_has_no_score():
    rows = run_rows(CONDITIONS, METRICS[:1], 8)
    assert {row["metric"]: row["value"] for row in rows} == {
        "score_episodes": 0, "episodes": 0, "explored": 2.0, "changed": 0.25,
    }  # fmt: skip
    assert mean_scores(rows, ("alien",)) == {"alien": {}}


def test_scores_are_means_over_seeds():
    rows = [{**CONDITIONS, "seed": n, "metric": "score", "value": 10.0 * n} for n in range(3)]
    assert mean_scores(rows, ("zaxxon", "alien")) == {"zaxxon": {}, "alien": {SAVE: 10.0}}


SMALL = {"games": ("MsPacman", "frostbite"), "seeds": 3, "agents": (CONTROLLED, SAVE)}
RUNS = [
    (game, agent, seed)
    for seed in range(3)
    for game in ("ms_pacman", "frostbite")
    for agent in (CONTROLLED, SAVE)
]
REWARD = {CONTROLLED: 100.0, SAVE: 250.0}


def make_up(monkeypatch):
    """Put training aside; returns what was asked for."""

    def lines(chosen):
        for part in (1, 2, 4):
            yield {
                "episodes": 8 * part, "env_steps": chosen.steps * part // 4, "time_s": 10.0 * part,
                "return_mean": part / 4 * REWARD[chosen.agent] + chosen.seeds[0],
                "explored": 3.0, "changed": 0.2,
            }  # fmt: skip

    return made_up_training(
        monkeypatch, lambda chosen: (chosen.env[6:], chosen.agent, chosen.seeds[0]), lines
    )


@pytest.fixture
def made_up(monkeypatch):
    """Training that takes no time, and no figures; returns what was asked for."""
    for name in ("change_figure", "game_curves"):
        monkeypatch.setattr(f"save_rl.report.games.{name}", lambda *given, **more: None)
    return make_up(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A reproduction, with its figures; tests that change it work on a copy."""
    out = tmp_path_factory.mktemp("atari") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        asked = make_up(patch)
        claims = reproduce(out)
    return SimpleNamespace(out=out, claims=claims, asked=asked)


def reproduce(out, resume=False, **changed):
    return run("smoke", SMALL | changed, out, resume, "save-rl …", "cpu", 0)


def test_a_reproduction_leaves_everything_a_reader_needs(whole):
    out, claims, made_up = whole.out, whole.claims, whole.asked
    assert made_up.trained == [(*asked, False) for asked in RUNS]
    assert {path.name for path in out.iterdir()} == {
        "experiment.json", "results.csv", "figure.png", "curves.png", "table.md", "table.csv",
        "claims.json", "provenance.json", "runs",
    }  # fmt: skip
    rows = read_results(out / "results.csv")
    assert list(rows[0]) == COLUMNS
    scores = select(rows, metric="score", game="frostbite")
    assert values(scores, agent=SAVE).tolist() == [250.0, 251.0, 252.0]
    assert values(scores, agent=CONTROLLED).tolist() == [100.0, 101.0, 102.0]
    assert {row["frames"] for row in scores} == {20_000}
    told = {claim.id: claim.holds for claim in claims if claim.holds is not None}
    assert told == {
        "save-not-below-controlled-frostbite": True,
        "save-not-below-controlled-ms_pacman": True,
        "clear-gain-frostbite": True,
    }
    written = json.loads((out / "claims.json").read_text())
    assert written == [asdict(claim) for claim in claims]
    experiment = json.loads((out / "experiment.json").read_text())
    assert experiment["axes"]["games"] == ["ms_pacman", "frostbite"]
    table = (out / "table.md").read_text()
    assert "| Frostbite | – | 101.0 | **251.0** | 148.5 % |" in table
    assert (
        "Means over 3 seeds, of the last 16 training episodes of each, after 20,000 frames. "
        "Episodes were cut after 400 frames. Without a score: Baseline (r2d2), alien, " in table
    )


def test_what_is_done_is_not_done_again(monkeypatch, whole, tmp_path):
    made_up, out = make_up(monkeypatch), tmp_path / "out"
    shutil.copytree(whole.out, out)
    for name in ("figure.png", "curves.png", "table.md", "table.csv", "claims.json"):
        (out / name).unlink()
    reproduce(out, resume=True)
    assert made_up.trained == []
    before = files(whole.out)
    for name in before.keys() - {"provenance.json"}:
        assert files(out)[name] == before[name]


def test_a_stopped_reproduction_goes_on_where_it_was(made_up, whole, tmp_path):
    out = tmp_path / "out"
    made_up.fail_after = 5
    with pytest.raises(KeyboardInterrupt):
        reproduce(out)
    made_up.fail_after = None
    made_up.trained.clear()
    reproduce(out, resume=True)
    assert made_up.trained == [(*asked, False) for asked in RUNS[5:]]
    assert files(out)["results.csv"] == files(whole.out)["results.csv"]
    with pytest.raises(InputError, match=r"was started with --frames 20000\.0, not 40000\.0"):
        reproduce(out, resume=True, frames=4e4)


def test_with_one_agent_there_is_nothing_to_compare(monkeypatch, tmp_path):
    make_up(monkeypatch)
    claims = reproduce(tmp_path / "out", agents=(SAVE,), games=("asterix", "alien"), seeds=1)
    assert {claim.holds for claim in claims} == {None}
    assert (tmp_path / "out" / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_without_ale_py_the_extra_is_named(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.startswith("save_rl.envs.atari")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(MissingExtra, match=r"ale-py; install it with: pip install 'save-rl\[atari"):
        reproduce(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


TINY = (
    "reproduce atari --scale smoke --frames 3500 --lanes 4 --budget 2 --max-frames 240 "
    "--score-episodes 8 --device cpu --workers 0 --agents r2d2-controlled r2d2-save"
)


@pytest.mark.slow
def test_a_tiny_reproduction_trains_for_real(tmp_path, capsys):
    out = tmp_path / "out"
    main(shlex.split(f"{TINY} --out {out}"))
    assert "SAVE outperforms or equals controlled R2D2 in all games" in capsys.readouterr().out
    rows = select(read_results(out / "results.csv"), game="ms_pacman")
    assert {row["agent"] for row in rows} == {CONTROLLED, SAVE}
    assert all(row["value"] >= 0 for row in rows)
    assert {row["frames"] for row in select(rows, metric="score")} == {3584}  # whole chunks
    assert {row["value"] for row in select(rows, metric="score_episodes")} == {8}
    (explored,) = values(rows, metric="explored", agent=SAVE)
    assert 1 < explored <= 2
    for agent in (CONTROLLED, SAVE):
        metrics = (out / f"runs/ms_pacman/{agent}-0/metrics.csv").read_text().splitlines()
        last = dict(zip(metrics[0].split(","), metrics[-1].split(","), strict=True))
        assert int(last["updates"]) > 0
    claims = json.loads((out / "claims.json").read_text())
    assert {claim["holds"] for claim in claims} == {None}  # one seed


@pytest.mark.slow
def test_a_smoke_reproduction_is_the_same_with_two_jobs(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for out, jobs in ((one, 1), (two, 2)):
        run("smoke", {}, out, False, "", "cpu", 0, jobs)
    rows = [read_results(out / "results.csv") for out in (one, two)]
    kept = [[row for row in found if row["metric"] != "steps_per_second"] for found in rows]
    assert kept[0] == kept[1]
    for name in ("table.md", "figure.png", "curves.png", "claims.json"):
        assert files(one)[name] == files(two)[name]
