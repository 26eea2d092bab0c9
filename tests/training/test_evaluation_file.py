"""Tables of test episodes: whole after every budget, and older conditions are kept."""

import csv

import numpy as np

from save_rl.experiments.cells import read_tests
from save_rl.training.run.evaluation_file import Conditions, EvaluationFile

OWN = Conditions("save", "maze", 2.0, None, {"size": 3}, "last")


def lines(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def add(path, budget, value, conditions=OWN, append=True):
    returns, steps = np.full((2, 3), value), np.full((2, 3), 7)
    EvaluationFile(path, append).add(budget, returns, steps, (0, 1), conditions)


def test_the_first_columns_are_the_contract(tmp_path):
    path = tmp_path / "evaluation.csv"
    add(path, 5, 0.25)
    header, first = path.read_text().splitlines()[:2]
    assert header.split(",")[:5] == ["budget", "episode", "return", "steps", "seed"]
    assert first == '5,0,0.25,7,0,save,maze,2,,"{""size"": 3}",last'
    found = read_tests(path, (5,), 3, seed=1)
    assert found is not None
    assert found[5].tolist() == [0.25] * 3


def test_other_conditions_are_kept_and_the_same_are_replaced(tmp_path):
    path = tmp_path / "evaluation.csv"
    add(path, 5, 0.25)
    add(path, 10, 0.5)
    add(path, 5, 0.75, OWN._replace(c=0.3))
    add(path, 5, 1.0)
    found = {(x["budget"], x["c"]): float(x["return"]) for x in lines(path)}
    assert found == {("5", "2"): 1.0, ("10", "2"): 0.5, ("5", "0.3"): 0.75}
    assert len(lines(path)) == 3 * 2 * 3
    add(path, 5, 0.0, append=False)
    assert len(lines(path)) == 2 * 3


def test_a_table_of_an_earlier_version_is_kept(tmp_path):
    path = tmp_path / "evaluation.csv"
    path.write_text("budget,episode,return,steps\n5,0,1.0,7\n")
    add(path, 5, 0.25)
    assert lines(path)[0] == {
        **dict.fromkeys(lines(path)[0], ""), "budget": "5", "episode": "0", "return": "1.0",
        "steps": "7",
    }  # fmt: skip
