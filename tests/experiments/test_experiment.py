"""An experiment is one file: its command, its folder and its files follow from its description."""

import json
import sys
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType

import pytest

from save_rl.cli import main
from save_rl.errors import InputError, require
from save_rl.experiments import EXPERIMENTS, Entry
from save_rl.experiments.experiment import Experiment, Work, folder_options, reproduce
from save_rl.report.claims import Claim
from save_rl.report.results import read_results


@dataclass(frozen=True)
class DiceAxes:
    sides: tuple[int, ...]
    seeds: int
    loaded: bool = False

    def check(self):
        require(self.seeds >= 1, "--seeds", self.seeds, "at least 1")


def work(axes, out, places):
    """A throw of every die, whose result is its number of sides."""
    require(places.device == "auto", "--device", repr(places.device), "'auto'")

    def make():
        assert (out / "experiment.json").exists()
        return [
            {"experiment": "dice", "agent": "hand", "seed": seed, "metric": "eyes", "value": sides}
            for seed in range(axes.seeds)
            for sides in axes.sides
        ]

    return Work("a table", make)


def figures(rows, axes, out, device):
    (out / "figure.png").write_text(f"{len(rows)} throws, {device}, loaded: {axes.loaded}")


def sorted_sides(axes, given):
    return replace(axes, sides=tuple(sorted(axes.sides))) if "sides" in given else axes


SCALES = {"smoke": DiceAxes((6, 4), 1), "small": DiceAxes((6,), 2), "paper": DiceAxes((20,), 9)}
DICE = Experiment(
    "dice",
    "Figure 9: dice.",
    SCALES,
    options={
        **folder_options("smoke, small, paper."),
        "sides": "Sides of the dice.",
        "seeds": "Number of throws.",
        "loaded": "Cheat.",
    },
    work=work,
    claims=lambda rows, axes: [
        Claim("many", "many throws", "Fig. 9", f"{len(rows)}", len(rows) > axes.seeds, axes.seeds)
    ],
    figures=figures,
    settle=sorted_sides,
)
throw = partial(reproduce, DICE)


def test_all_files_come_from_the_description(tmp_path):
    out = tmp_path / "out"
    claims = throw("smoke", {"seeds": 2}, out, False, "save-rl …")
    assert [(claim.id, claim.holds) for claim in claims] == [("many", True)]
    assert [(row["seed"], row["value"]) for row in read_results(out / "results.csv")] == [
        (0, 6), (0, 4), (1, 6), (1, 4),
    ]  # fmt: skip
    experiment = json.loads((out / "experiment.json").read_text())
    assert experiment == {
        "experiment": "dice", "axes": {"sides": [6, 4], "seeds": 2, "loaded": False},
    }  # fmt: skip
    provenance = json.loads((out / "provenance.json").read_text())
    assert (provenance["command"], provenance["device"]) == ("save-rl …", "a table")
    assert (out / "figure.png").read_text() == "4 throws, auto, loaded: False"
    assert {path.name for path in out.iterdir()} == {
        "experiment.json", "results.csv", "figure.png", "claims.json", "provenance.json",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("scale", "overrides", "device", "said"),
    [
        ("huge", {}, "auto", "--scale: 'huge'"),
        ("smoke", {"seeds": 0}, "auto", "--seeds: 0"),
        ("smoke", {}, "gpu", "--device: 'gpu'"),
    ],
)
def test_what_is_impossible_is_refused_before_there_is_a_folder(
    scale, overrides, device, said, tmp_path
):
    with pytest.raises(InputError, match=said):
        throw(scale, overrides, tmp_path / "out", False, "", device)
    assert list(tmp_path.iterdir()) == []


def test_a_file_and_an_entry_are_a_command(monkeypatch, tmp_path, capsys):
    module = ModuleType("save_rl.experiments.dice")
    module.DICE = DICE
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(EXPERIMENTS, "dice", Entry("dice:DICE", "Fig. 9", "dice"))
    monkeypatch.setattr("sys.argv", ["save-rl", "reproduce", "dice"])
    monkeypatch.chdir(tmp_path)
    main(["reproduce", "dice", "--sides", "8", "4", "--loaded"])
    assert "results.csv, figure.png and claims.json are in runs/dice" in capsys.readouterr().out
    out = tmp_path / "runs" / "dice"
    assert [row["value"] for row in read_results(out / "results.csv")] == [4, 8, 4, 8]
    assert (out / "figure.png").read_text() == "4 throws, auto, loaded: True"
    assert json.loads((out / "provenance.json").read_text())["command"] == "save-rl reproduce dice"
    with pytest.raises(SystemExit):
        main(["reproduce", "dice", "--sides", "8", "--resume"])
    assert "was started with --sides [4, 8], not [8]" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["reproduce", "dice", "--help"])
    assert "Figure 9: dice." in capsys.readouterr().out
