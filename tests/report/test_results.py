"""Results survive the trip through CSV and can be picked apart."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl.errors import InputError
from save_rl.report.results import read_results, select, values, write_results

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1)
WORDS = st.sampled_from(["dense", "sparse", "a, b", 'say "no"', "two\nlines", "1_000", "1e", "θ"])
NUMBERS = st.integers() | st.floats(allow_nan=False)
ROWS = st.fixed_dictionaries(
    {
        "experiment": NAMES,
        "agent": NAMES,
        "seed": st.integers(0, 2**32),
        "metric": NAMES,
        "value": NUMBERS,
    },
    optional={"reward": WORDS, "budget": NUMBERS, "terminal": NUMBERS | WORDS},
)


def row(agent="save", seed=0, value=0.0, **conditions):
    return {
        "experiment": "test",
        "agent": agent,
        "seed": seed,
        **conditions,
        "metric": "test_reward",
        "value": value,
    }


@given(rows=st.lists(ROWS, max_size=5))
@settings(max_examples=30)
def test_round_trip(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("results") / "results.csv"
    write_results(path, rows)
    read = read_results(path)
    assert read == rows
    types = [{key: type(cell) for key, cell in row.items()} for row in rows]
    assert [{key: type(cell) for key, cell in row.items()} for row in read] == types


def test_the_file_is_what_the_documentation_says(tmp_path):
    path = tmp_path / "results.csv"
    write_results(path, [row(seed=3, value=0.5, reward="dense", budget=10), row(value=1, c=0.1)])
    assert path.read_bytes().decode() == (
        "experiment,agent,seed,reward,budget,c,metric,value\n"
        "test,save,3,dense,10,,test_reward,0.5\n"
        "test,save,0,,,0.1,test_reward,1\n"
    )


def test_numpy_numbers_are_written_as_numbers(tmp_path):
    path = tmp_path / "results.csv"
    write_results(path, [row(value=np.float64(0.1), budget=np.int64(5), sticky=np.bool_(True))])
    assert read_results(path) == [row(value=0.1, budget=5, sticky=True)]


def test_a_name_that_looks_like_a_number_stays_a_name(tmp_path):
    write_results(tmp_path / "results.csv", [row(agent="007")])
    assert read_results(tmp_path / "results.csv")[0]["agent"] == "007"


def test_not_a_number_comes_back_as_such(tmp_path):
    write_results(tmp_path / "results.csv", [row(value=float("nan"))])
    assert np.isnan(values(read_results(tmp_path / "results.csv"))).all()


def test_an_incomplete_row_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="lacks metric, value"):
        write_results(tmp_path / "results.csv", [{"experiment": "e", "agent": "a", "seed": 0}])
    assert not (tmp_path / "results.csv").exists()


def test_another_csv_file_is_not_taken_for_results(tmp_path):
    (tmp_path / "evaluation.csv").write_text("budget,episode,return,steps\n0,1,2,3\n")
    with pytest.raises(InputError, match=r"evaluation.csv: not a results file"):
        read_results(tmp_path / "evaluation.csv")


def test_select_needs_every_condition_to_agree():
    rows = [row(budget=10), row(budget=50), row("puct", budget=10), row()]
    assert select(rows, agent="save", budget=10) == rows[:1]
    assert select(rows, budget=None) == []
    assert select(rows) == rows


def test_values_are_in_the_order_of_seeds():
    rows = [row(seed=10, value=0.1), row(seed=2, value=0.2), row("puct", seed=1, value=9)]
    np.testing.assert_array_equal(values(rows, agent="save"), [0.2, 0.1])
    assert values(rows, agent="uct").shape == (0,)
