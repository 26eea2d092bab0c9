"""Runs side by side, from folders whose numbers are known."""

import json
from dataclasses import asdict

import numpy as np
import pytest

import save_rl
from save_rl.cli import main
from save_rl.errors import InputError
from save_rl.training.run.metrics_file import METRICS
from save_rl.training.settings import TrainSettings


def make_run(folder, agent="save", seeds=(0,), returns=lambda seed, line: float(seed), **settings):
    """A folder like that of a run: ten lines per seed, of 100 real steps each."""
    full = TrainSettings(env="tightrope", agent=agent, seeds=tuple(seeds), **settings)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"settings": asdict(full)}))
    lines = [",".join(METRICS)]
    for line in range(1, 11):
        for seed in seeds:
            row = {
                "time_s": line * 2.0, "episodes": line * 10, "env_steps": line * 100,
                "simulator_steps": line * 1000, "return_mean": returns(seed, line), "seed": seed,
                "test_return": returns(seed, line) + 1 if full.test_episodes else "",
            }  # fmt: skip
            lines.append(",".join(str(row.get(name, 0)) for name in METRICS))
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_numbers_are_means_over_seeds(tmp_path):
    """Seeds 1, 2 and 6 with those returns: mean 3, deviation √7, error √(7/3)."""
    run = make_run(tmp_path / "a", seeds=(1, 2, 6))
    (group,) = save_rl.compare(run).groups
    assert group.scores == {1: 1.0, 2: 2.0, 6: 6.0}
    assert group.mean == pytest.approx(3)
    assert group.error == pytest.approx(np.sqrt(7 / 3))
    (alone,) = save_rl.compare(make_run(tmp_path / "b", seeds=(4,))).groups
    assert alone.error is None


def test_scores_are_of_the_last_steps_that_all_have_made(tmp_path):
    """Returns are the number of the line; the last fifth of 1,000 steps is lines 9 and 10."""
    run = make_run(tmp_path / "a", seeds=(0, 1), returns=lambda seed, line: line)
    result = save_rl.compare(run, share=0.2)
    assert result.steps == (800, 1000)
    assert result.groups[0].scores == {0: 9.5, 1: 9.5}
    short = make_run(tmp_path / "b", "q-learning", (0, 1), lambda seed, line: -line)
    text = (short / "metrics.csv").read_text().splitlines()
    (short / "metrics.csv").write_text("\n".join(text[:11]) + "\n")  # five lines of each seed
    result = save_rl.compare(run, short, share=0.2)
    assert result.steps == (400, 500)
    assert [group.scores[0] for group in result.groups] == [5, -5]


def test_runs_that_differ_in_seeds_alone_are_one_row(tmp_path):
    runs = [make_run(tmp_path / f"{i}", seeds=(i,), episodes=100 + i) for i in range(3)]
    result = save_rl.compare(*runs)
    (group,) = result.groups
    assert list(group.scores) == [0, 1, 2]
    assert group.folders == tuple(runs)
    assert result.tests == ()
    assert save_rl.compare(tmp_path) == result  # the folder that holds them


def test_settings_in_which_an_agents_runs_differ_are_their_names(tmp_path):
    make_run(tmp_path / "a", seeds=(0, 1), budget=5)
    make_run(tmp_path / "b", seeds=(0, 1), budget=20, c=0.5)
    make_run(tmp_path / "c", "q-learning", seeds=(0, 1))
    names = [group.name for group in save_rl.compare(tmp_path).groups]
    assert names == ["SAVE, budget 5, c 2.0", "SAVE, budget 20, c 0.5", "q-learning"]


def test_ranks_of_seeds_are_tested(tmp_path):
    """Five seeds all above five others: 2 of 252 splits are as extreme."""
    make_run(tmp_path / "a", seeds=range(5), returns=lambda seed, line: 10 + seed)
    make_run(tmp_path / "b", "q-learning", seeds=range(5))
    result = save_rl.compare(tmp_path)
    assert result.tests[0].p_value == pytest.approx(2 / 252)
    assert result.sentences() == [
        "save above q-learning: p = 0.00794 (Mann-Whitney over seeds)",
    ]
    make_run(tmp_path / "c", "puct", seeds=(0, 1), returns=lambda seed, line: 0)
    result = save_rl.compare(tmp_path / "a", tmp_path / "c")
    assert result.sentences() == [
        "save above puct: p = 0.0952 (Mann-Whitney over seeds); 5 against 2 seeds can't show more "
        "than p = 0.0952",
    ]


def test_tests_count_where_all_runs_have_them(tmp_path):
    make_run(tmp_path / "a", seeds=(3,), test_episodes=5)
    assert save_rl.compare(tmp_path).groups[0].scores == {3: 4.0}
    make_run(tmp_path / "b", "q-learning", seeds=(3,))
    result = save_rl.compare(tmp_path)
    assert result.metric == "return_mean"
    assert result.groups[0].scores == {3: 3.0}


def test_the_command_prints_the_table_and_draws_the_curves(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    make_run(tmp_path / "a", seeds=(1, 2, 6))
    make_run(tmp_path / "b", "q-learning", seeds=(1, 2))
    picture = tmp_path / "new" / "both.png"
    main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(picture)])
    said = capsys.readouterr().out
    assert "tightrope: return while training, real steps 900 to 1,000" in said
    assert " 3.000 │        1.528 │  1.000 │   6.000 " in said
    assert "save above q-learning: p = " in said
    assert f"{picture}: the curves" in said
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_curves_go_over_four_axes(tmp_path):
    make_run(tmp_path / "a", seeds=(1,))
    (group,) = save_rl.compare(tmp_path / "a").groups
    assert [group.rows[-1][name] for name in ("episodes", "steps", "simulations", "time")] == [
        100, 1000, 11_000, 20.0,
    ]  # fmt: skip
    result = save_rl.compare(tmp_path / "a", out=tmp_path / "one.png", over=("steps",))
    assert (tmp_path / "one.png").exists()
    assert "save" in str(result)


def test_what_can_t_be_compared_is_refused(tmp_path):
    a = make_run(tmp_path / "a")
    same = make_run(tmp_path / "same")
    dense = make_run(tmp_path / "dense", env_options={"reward": "dense"})
    other = make_run(tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    config["settings"]["env"] = "gym/CartPole-v1"
    (other / "config.json").write_text(json.dumps(config))
    empty = make_run(tmp_path / "empty", seeds=(1,))
    (empty / "metrics.csv").write_text(",".join(METRICS) + "\n")
    endless = make_run(tmp_path / "endless", seeds=(1,), returns=lambda seed, line: "")
    nothing = tmp_path / "nothing"
    for runs, options, said in (
        ((), {}, "DIR: nothing is not possible; it must be folders of runs."),
        ((nothing,), {}, f"DIR: '{nothing}' holds no run (config.json is missing)."),
        (
            (a, other), {},
            f"DIR: '{a}' is of 'tightrope' and '{other}' of 'gym/CartPole-v1'; returns of "
            "different environments can't be compared.",
        ),
        (
            (a, dense), {},
            f"DIR: '{a}' has reward=default and '{dense}' reward=dense as options of 'tightrope'; "
            "their returns can't be compared.",
        ),
        (
            (a, same), {},
            f"DIR: '{a}' and '{same}' have the same settings and the same seed 0; give one of "
            "them.",
        ),
        ((empty,), {}, f"DIR: '{empty}' has no metrics yet."),
        ((endless,), {}, f"DIR: no episode of seed 1 in '{endless}' has ended yet."),
        ((a,), {"share": 0}, "--share: 0 is not possible; it must be above 0 and at most 1."),
        (
            (a,), {"over": ("step",)},
            "--over: there is no axis 'step'; known: episodes, simulations, steps, time. Did you "
            "mean 'steps'?",
        ),
        (
            (a,), {"out": "c.pdf"},
            "--out: 'c.pdf' is not possible; it must be a file that ends in .png.",
        ),
    ):  # fmt: skip
        with pytest.raises(InputError) as refused:
            save_rl.compare(*runs, **options)
        assert str(refused.value) == said
