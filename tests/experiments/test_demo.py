"""The demo works twice in a row, and touches nobody else's files."""

import re

import pytest

from save_rl.errors import InputError
from save_rl.experiments import demo

AGENTS = ("save", "q-learning")  # the third would only cost time


@pytest.fixture(autouse=True)
def two_budgets(monkeypatch):
    monkeypatch.setattr(demo, "BUDGETS", (0, 2))
    monkeypatch.setattr(demo, "AGENTS", AGENTS)


@pytest.mark.slow
def test_it_works_twice_in_the_same_folder(tmp_path, capsys):
    out = tmp_path / "demo"
    tables = []
    for _ in range(2):
        tables.append(demo.run(out, episodes=64, tests=8))
        assert {path.name for path in out.iterdir()} == {*AGENTS, "curve.png", "demo.txt"}
        assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
        for agent in AGENTS:
            assert {path.name for path in (out / agent).iterdir()} >= {
                "config.json", "metrics.csv", "checkpoints", "curve.png",
            }  # fmt: skip
    assert tables[0] == tables[1]
    assert set(tables[0]) == set(AGENTS)
    for cells in tables[0].values():
        assert set(cells) == {0, 2}
        assert all(0 <= mean <= 1 and error >= 0 for mean, error in cells.values())
    printed = capsys.readouterr().out
    assert len(re.findall(r"Budget 0\W+Budget 2", printed)) == 2
    assert "64 episodes" in printed
    assert "learning curves are in" in printed


@pytest.mark.parametrize("foreign", ["thesis.tex", "config.json", "save-2"])
def test_a_folder_with_foreign_files_is_left_alone(tmp_path, foreign):
    (tmp_path / "save").mkdir()
    (tmp_path / foreign).write_text("precious")
    with pytest.raises(InputError, match="holds something other than a demo"):
        demo.run(tmp_path, episodes=64, tests=8)
    assert (tmp_path / foreign).read_text() == "precious"
    assert (tmp_path / "save").exists()


def test_a_file_is_not_a_folder(tmp_path):
    (tmp_path / "demo").write_text("precious")
    with pytest.raises(InputError, match="holds something other than a demo"):
        demo.run(tmp_path / "demo", episodes=64, tests=8)
    assert (tmp_path / "demo").read_text() == "precious"


def test_a_folder_that_only_sounds_like_a_demo_is_left_alone(tmp_path, monkeypatch):
    def train(*arguments, **options):
        raise AssertionError("the demo has begun")

    monkeypatch.setattr("save_rl.training.run.loop.train", train)
    (tmp_path / "save").mkdir()
    (tmp_path / "save" / "thesis.tex").write_text("precious")
    with pytest.raises(InputError):
        demo.run(tmp_path, episodes=64, tests=8)
    assert (tmp_path / "save" / "thesis.tex").read_text() == "precious"
