"""Curves: medians and ranges over seeds, on one axis, thinned out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from save_rl.studio.curves import combine, seed_points, thin
from save_rl.studio.metrics import Table
from save_rl.studio.server import make_app
from tests.studio.asgi import request
from tests.studio.folders import append, line, lines, make_run


def points(*pairs):
    return tuple(np.array(side, float) for side in zip(*pairs, strict=True))


def test_median_and_range_by_hand():
    """Three seeds with the same places: 1, 2, 6 at 0 and 4, 3, 2 at 10."""
    seeds = [points((0, 1), (10, 4)), points((0, 2), (10, 3)), points((0, 6), (10, 2))]
    curve = combine(seeds, 100)
    assert curve.x.tolist() == [0, 10]
    assert curve.median.tolist() == [2, 3]
    assert curve.low.tolist() == [1, 2]
    assert curve.high.tolist() == [6, 4]


def test_places_in_between_are_interpolated():
    seeds = [points((0, 0), (10, 10)), points((0, 4), (5, 4), (10, 4))]
    curve = combine(seeds, 100)
    assert curve.x.tolist() == [0, 5, 10]
    assert curve.median.tolist() == [2, 4.5, 7]  # of 0, 5, 10 and 4, 4, 4


def test_where_one_seed_has_ended_the_others_go_on():
    seeds = [points((0, 0), (5, 0)), points((0, 2), (5, 2), (10, 8))]
    curve = combine(seeds, 3)
    assert curve.median.tolist() == [1, 1, 8]
    assert curve.low.tolist() == [0, 0, 8]


def test_near_the_end_a_seed_keeps_its_last_value():
    """Seeds end at 98 and 100 episodes: the last median is that of both."""
    seeds = [points((0, 0), (98, 1)), points((0, 0), (100, 3))]
    assert combine(seeds, 2).median.tolist() == [0, 2]


def test_a_single_seed_keeps_its_points():
    curve = combine([points((1, 5), (2, 7), (9, 6))], 10)
    assert curve.x.tolist() == [1, 2, 9]
    assert curve.median.tolist() == curve.low.tolist() == curve.high.tolist() == [5, 7, 6]


def test_a_logarithmic_axis_has_equal_steps_and_no_zero():
    seeds = [points((0, 9), (1, 0), (10, 1), (100, 2))] * 2
    curve = combine(seeds, 3, log=True)
    np.testing.assert_allclose(curve.x, [1, 10, 100])
    np.testing.assert_allclose(curve.median, [0, 1, 2], atol=1e-12)


def test_nothing_gives_nothing():
    assert combine([], 10).x.size == 0
    assert combine([points((0, 1))], 10, log=True).x.size == 0


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), most=st.integers(2, 50))
def test_thinning_keeps_the_order_the_ends_and_the_range(values, most):
    x = np.arange(len(values), dtype=float)
    thin_x, thin_y = thin((x, np.array(values)), most)
    assert len(thin_x) == len(thin_y) <= max(most, 1) or len(values) <= most
    assert (np.diff(thin_x) > 0).all()
    assert min(values) - 1e-6 <= thin_y.min() <= thin_y.max() <= max(values) + 1e-6
    assert thin_x[0] <= len(values) / most
    if len(values) % most == 0:  # groups of equal size: the mean stays
        np.testing.assert_allclose(thin_y.mean(), np.mean(values), atol=1e-6, rtol=1e-9)


def test_empty_cells_and_other_seeds_are_kept_apart():
    nan = np.nan
    table = Table(
        ("episodes", "return_mean", "seed"),
        np.array([[1, 5, 3], [1, nan, 7], [2, 6, 3], [2, 8, 7], [3, 1, nan]]), 0,
    )  # fmt: skip
    found = seed_points(table, "episodes", "return_mean")
    assert [(x.tolist(), y.tolist()) for x, y in found] == [([1, 2], [5, 6]), ([2], [8])]


@pytest.fixture
def app(tmp_path):
    make_run(tmp_path / "a-0", lines(4), seeds=[0])
    make_run(tmp_path / "a-1", lines(4, 1, of=lambda i: i / 10 + 1), seeds=[1])
    make_run(tmp_path / "b", lines(4), agent="q-learning")
    return make_app(tmp_path, token="t")


def test_a_curve_per_run(app):
    answer = request(app, "/api/curves", {"run": ["a-0", "b"]}).json
    first, second = answer["curves"]
    assert (first["runs"], first["label"], first["colour"]) == (["a-0"], "SAVE", "#D55E00")
    assert (second["label"], second["colour"]) == ("Q-learning", "#0072B2")
    assert first["x"] == [100, 200, 300, 400]
    assert first["median"] == [0.1, 0.2, 0.3, 0.4]
    assert first["low"] is None
    assert answer["columns"][:2] == ["time_s", "episodes"]


@pytest.mark.parametrize(
    ("axis", "step"),
    [("episodes", 100), ("env_steps", 300), ("simulator_steps", 3000), ("time_s", 10)],
)
def test_every_axis(app, axis, step):
    (curve,) = request(app, "/api/curves", {"run": "b", "x": axis}).json["curves"]
    assert curve["x"] == [step, 2 * step, 3 * step, 4 * step]


def test_runs_that_differ_only_in_seeds_make_one_curve(app):
    query = {"run": ["a-0", "b", "a-1"], "together": 1}
    together, alone = request(app, "/api/curves", query).json["curves"]
    assert (together["runs"], together["seeds"]) == (["a-0", "a-1"], 2)
    assert together["median"] == [0.6, 0.7, 0.8, 0.9]
    assert (together["low"][0], together["high"][0]) == (0.1, 1.1)
    assert alone["runs"] == ["b"]


def test_new_lines_are_in_the_next_answer(app, tmp_path):
    assert len(request(app, "/api/curves", {"run": "b"}).json["curves"][0]["x"]) == 4
    append(tmp_path / "b", line(episodes=500, return_mean=1, seed=0))
    assert request(app, "/api/curves", {"run": "b"}).json["curves"][0]["x"][-1] == 500


def test_a_broken_run_is_named_and_the_others_are_drawn(app, tmp_path):
    (tmp_path / "b" / "metrics.csv").unlink()
    answer = request(app, "/api/curves", {"run": ["a-0", "b"]}).json
    assert [curve["runs"] for curve in answer["curves"]] == [["a-0"]]
    assert answer["problems"] == {"b": "metrics.csv can't be read (No such file or directory)."}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"x": "episode"}, "x: there is no axis 'episode'; known: env_steps, episodes"),
        ({"points": "many"}, "points: it must be a whole number."),
        ({"points": "1"}, "points: 1 is not possible; it must be between 2 and 2000."),
        ({"run": ["b"] * 101}, "run: 101 runs is not possible; it must be at most 100."),
    ],
)
def test_impossible_requests_are_refused_in_words(app, query, said):
    answer = request(app, "/api/curves", {"run": "b", **query})
    assert answer.status == 400
    assert answer.json["error"].startswith(said)
