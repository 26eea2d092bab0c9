"""`reproduce tightrope-tabular` on a grid of eight cells: its files, and going on after a stop."""

import csv
import json
import shutil
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from save_rl.cli import main
from save_rl.errors import InputError, Interrupted
from save_rl.experiments import tightrope_tabular
from save_rl.experiments.experiment import reproduce
from save_rl.experiments.tightrope_tabular import (
    SCALES,
    TIGHTROPE_TABULAR,
    TabularCell,
    cells,
    run_cell,
)
from save_rl.report.results import read_results, select

# With the tests of training with tables, so that Numba compiles once.
pytestmark = pytest.mark.xdist_group("tabular")
run = partial(reproduce, TIGHTROPE_TABULAR)

AXES = {
    "reward": ("dense",),
    "terminal": (50,),
    "budgets": (2, 5),
    "agents": ("save", "uct"),
    "seeds": 2,
    "episodes": 5,
}
OPTIONS = "--reward dense --terminal 50 --budgets 2 5 --agents save uct --seeds 2 --episodes 5"
COLUMNS = ["experiment", "agent", "seed", "reward", "terminal", "budget", "metric", "value"]


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    out = tmp_path_factory.mktemp("tabular") / "out"
    run("smoke", AXES, out, False, "save-rl reproduce …")
    return out


@pytest.fixture
def finished(once, tmp_path):
    """A finished experiment, of each test its own copy."""
    out = tmp_path / "finished"
    shutil.copytree(once, out)
    return out


def read(folder):
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_recorded_results_come_out_again():
    """Of UCT: it learns nothing, so this takes no time."""
    rows = read_results(Path(__file__).parents[2] / "results/tightrope-tabular/results.csv")
    recorded = select(rows, agent="uct", reward="dense", terminal=95, budget=10)[:5]
    for row in recorded:
        cell = TabularCell("uct", int(row["seed"]), "dense", 95, 10)
        assert run_cell(cell, 500) == pytest.approx(row["value"], abs=1e-6)
    assert len(recorded) == 5


def test_the_command_leaves_everything_a_reader_needs(tmp_path, capsys):
    out = tmp_path / "tabular"
    main(
        ["reproduce", "tightrope-tabular", "--scale", "smoke", *OPTIONS.split(), "--out", str(out)]
    )
    assert {path.name for path in out.iterdir()} == {
        "experiment.json", "results.csv", "figure.png", "claims.json", "provenance.json",
    }  # fmt: skip
    rows = read(out)
    assert list(rows[0]) == COLUMNS
    assert [tuple(row.values())[:7] for row in rows] == [
        ("tightrope-tabular", agent, seed, "dense", "50", budget, "test_reward")
        for budget in "25"
        for agent in ("save", "uct")
        for seed in "01"
    ]
    assert all(0 <= float(row["value"]) <= 1 + 1e-6 for row in rows)

    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    claims = json.loads((out / "claims.json").read_text())
    fields = ["id", "claim", "where", "measured", "holds", "seeds", "p_value", "note"]
    assert all(list(claim) == fields for claim in claims)
    assert all(claim["holds"] is None for claim in claims)  # two seeds tell nothing
    provenance = json.loads((out / "provenance.json").read_text())
    assert list(provenance) == ["command", "device", "cpu", "cores", "python", "wall_time_s"]
    experiment = json.loads((out / "experiment.json").read_text())
    assert experiment["experiment"] == "tightrope-tabular"
    assert experiment["axes"] == {name: list(v) if isinstance(v, tuple) else v
                                  for name, v in AXES.items()}  # fmt: skip
    printed = capsys.readouterr().out
    assert "too small to tell" in printed
    assert f"results.csv, figure.png and claims.json are in {out}" in printed


def test_the_same_command_gives_the_same_numbers(finished, tmp_path_factory):
    again = tmp_path_factory.mktemp("again")
    run("smoke", AXES, again, False, "")
    assert files(again)["results.csv"] == files(finished)["results.csv"]
    assert files(again)["figure.png"] == files(finished)["figure.png"]


def keep_half(folder):
    """Leave every other row of the results, and none of the files that are made from them."""
    header, *rows = (folder / "results.csv").read_text().splitlines(keepends=True)
    (folder / "results.csv").write_text("".join([header, *rows[::2]]))
    for name in ("figure.png", "claims.json", "provenance.json"):
        (folder / name).unlink()


def test_what_was_lost_is_computed_again(finished):
    before = files(finished)
    keep_half(finished)
    run("smoke", AXES, finished, True, "save-rl reproduce …")
    after = files(finished)
    assert set(after) == set(before)
    for name in ("results.csv", "figure.png", "claims.json", "experiment.json"):
        assert after[name] == before[name]


def test_what_is_there_is_not_computed_again(finished, monkeypatch):
    keep_half(finished)
    computed = []

    def note(cell, episodes):
        computed.append((cell.agent, cell.seed, cell.budget))
        return 0.125

    monkeypatch.setattr(tightrope_tabular, "run_cell", note)
    kept = {tuple(row.values()) for row in read(finished)}
    run("smoke", AXES, finished, True, "")
    assert sorted(computed) == [("save", 1, 2), ("save", 1, 5), ("uct", 1, 2), ("uct", 1, 5)]
    rows = read(finished)
    assert len(rows) == 8
    assert {tuple(row.values()) for row in rows if row["value"] != "0.125"} == kept


def test_a_finished_experiment_may_be_resumed(finished):
    before = files(finished)
    run("smoke", AXES, finished, True, "save-rl reproduce …")
    assert files(finished)["results.csv"] == before["results.csv"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"episodes": 6}, "--episodes 5, not 6"),
        ({"agents": ("save",)}, r"--agents \['save', 'uct'\], not \['save'\]"),
        ({"terminal": (50, 95)}, r"--terminal \[50\], not \[50, 95\]"),
    ],
)
def test_other_axes_are_not_mixed_in(finished, changed, said):
    before = files(finished)
    with pytest.raises(InputError, match=f"was started with {said}; repeat its settings"):
        run("smoke", AXES | changed, finished, True, "")
    assert files(finished) == before


def test_the_folder_of_another_experiment_is_not_resumed(tmp_path):
    (tmp_path / "experiment.json").write_text('{"experiment": "tightrope-network", "axes": {}}')
    before = files(tmp_path)
    with pytest.raises(InputError, match="--resume"):
        run("smoke", AXES, tmp_path, True, "")
    assert files(tmp_path) == before


def stop_after(computed, monkeypatch):
    """Ctrl-C arrives when so many cells have been computed."""
    original = run_cell
    count = iter(range(1000))

    def interrupted(cell, episodes):
        if next(count) + 1 == computed:
            signal.raise_signal(signal.SIGINT)
        return original(cell, episodes)

    monkeypatch.setattr(tightrope_tabular, "run_cell", interrupted)
    monkeypatch.setattr(tightrope_tabular.os, "sched_getaffinity", lambda _: {0})


def test_ctrl_c_saves_what_is_done(tmp_path, finished, monkeypatch, tmp_path_factory):
    out = tmp_path_factory.mktemp("stopped")
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        with pytest.raises(Interrupted, match="is saved, continue with --resume") as stop:
            run("smoke", AXES, out, False, "")
    assert stop.value.code == 130
    assert 0 < len(read(out)) < 8
    assert "claims.json" not in files(out)
    run("smoke", AXES, out, True, "")
    assert files(out)["results.csv"] == files(finished)["results.csv"]


def test_ctrl_c_in_a_resumed_experiment_does_not_pass_for_its_end(finished, monkeypatch):
    header, *rows = (finished / "results.csv").read_text().splitlines(keepends=True)
    (finished / "results.csv").write_text("".join([header, *rows[:5]]))
    with monkeypatch.context() as patch:
        stop_after(1, patch)
        with pytest.raises(Interrupted):
            run("smoke", AXES, finished, True, "")


def test_a_percentage_may_be_written_either_way(finished, tmp_path_factory):
    again = tmp_path_factory.mktemp("again")
    run("smoke", AXES | {"terminal": (50.0,)}, again, False, "")
    assert files(again)["results.csv"] == files(finished)["results.csv"]
    assert files(again)["experiment.json"] == files(finished)["experiment.json"]


def test_the_scales_grow():
    sizes = {name: len(list(cells(axes))) for name, axes in SCALES.items()}
    assert sizes == {
        "smoke": 2 * 2 * 1 * 5 * 2,
        "small": 2 * 3 * 2 * 5 * 5,
        "paper": 2 * 5 * 5 * 5 * 20,
    }
    for axes in SCALES.values():
        axes.check()
        with pytest.raises(InputError, match="--seeds"):
            replace(axes, seeds=0).check()
