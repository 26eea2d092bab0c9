"""metrics.csv is read on as it grows, and from its end, without ever reading it all twice."""

import csv
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from save_rl.studio import metrics
from save_rl.studio.metrics import MetricsCache, MetricsReader, read_tail, sample_column

HEADER = "time_s,return_mean,seed\n"


def by_csv(path):
    """All whole and undamaged lines, as Python's csv module reads them."""
    whole = path.read_text(errors="replace").rpartition("\n")[0].splitlines()
    found = []
    for row in list(csv.reader(whole))[1:]:
        try:
            numbers = [float(cell) if cell else math.nan for cell in row]
        except ValueError:
            continue
        if len(numbers) == 3:
            found.append(numbers)
    return np.array(found).reshape(-1, 3)


CELL = st.sampled_from(["", "1.5", "-2", "1e-3", "nan", "inf", "x", "3"])
LINES = st.lists(st.lists(CELL, min_size=1, max_size=4).map(",".join), max_size=30)


@given(rows=LINES, cuts=st.lists(st.integers(0, 400), max_size=6), block=st.integers(64, 200))
def test_reading_on_gives_what_reading_all_gives(tmp_path_factory, rows, cuts, block):
    path = tmp_path_factory.mktemp("run") / "metrics.csv"
    data = (HEADER + "".join(f"{row}\n" for row in rows)).encode()
    path.touch()
    reader = MetricsReader(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "_BLOCK", block)
        for cut in [*sorted(cuts), len(data)]:
            with path.open("ab") as file:
                file.write(data[path.stat().st_size : cut])
            table = reader.read()
            if table.columns:
                np.testing.assert_array_equal(table.values.reshape(-1, 3), by_csv(path))
    assert table.columns


def test_a_half_written_line_waits_for_its_end(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text(HEADER + "1,0.5,0\n2,0.")
    reader = MetricsReader(path)
    assert reader.read().values.tolist() == [[1, 0.5, 0]]
    with path.open("a") as file:
        file.write("75,0\n")
    assert reader.read().values.tolist() == [[1, 0.5, 0], [2, 0.75, 0]]
    assert reader.read().damaged == 0


def test_damaged_lines_are_counted(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_bytes(HEADER.encode() + b"1,0.5,0\n\x00\xff,,\n1,2\n2,,0\n")
    table = MetricsReader(path).read()
    assert table.damaged == 2
    np.testing.assert_array_equal(table.values, [[1, 0.5, 0], [2, np.nan, 0]])


def test_a_replaced_file_is_read_anew(tmp_path):
    """A resumed run cuts its metrics back: the file is another one, or a shorter one."""
    path = tmp_path / "metrics.csv"
    path.write_text(HEADER + "1,0.5,0\n2,0.6,0\n")
    reader = MetricsReader(path)
    assert len(reader.read().values) == 2
    new = tmp_path / "new"
    new.write_text(HEADER + "1,0.5,0\n2,0.9,0\n3,1,0\n")
    new.replace(path)
    assert reader.read().column("return_mean").tolist() == [0.5, 0.9, 1]
    path.write_text(HEADER + "1,0.5,0\n")
    assert reader.read().column("return_mean").tolist() == [0.5]


def test_what_was_read_is_not_read_again(tmp_path, monkeypatch):
    path = tmp_path / "metrics.csv"
    path.write_text(HEADER + "".join(f"{i},0,0\n" for i in range(100)))
    parsed = []
    parse = metrics._numbers
    monkeypatch.setattr(metrics, "_numbers", lambda *a: parsed.append(a) or parse(*a))
    reader = MetricsReader(path)
    reader.read()
    assert len(parsed) == 100
    with path.open("a") as file:
        file.write("100,0,0\n")
    assert len(reader.read().values) == 101
    reader.read()
    assert len(parsed) == 101


def test_the_cache_forgets_what_was_not_used_lately(tmp_path):
    paths = [tmp_path / f"{i}.csv" for i in range(4)]
    for path in paths:
        path.write_text(HEADER + "1,2,3\n" * 10)  # 30 numbers
    cache = MetricsCache(most_values=70)
    for path in (paths[0], paths[1], paths[0], paths[2]):
        assert len(cache.read(path).values) == 10
    assert list(cache._readers) == [paths[0], paths[2]]


def test_columns_that_are_not_there_are_empty(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text(HEADER + "1,2,3\n")
    assert np.isnan(MetricsReader(path).read().column("level")).tolist() == [True]


@pytest.mark.parametrize("count", [0, 1, 5, 5000])
def test_the_tail_is_the_end_of_the_file(tmp_path, count):
    path = tmp_path / "metrics.csv"
    path.write_text(HEADER + "".join(f"{i},{i / 2},0\n" for i in range(count)) + "77,1")
    table = read_tail(path, 5)
    assert table.columns == ("time_s", "return_mean", "seed")
    assert table.column("time_s").tolist() == list(range(count))[-5:]
    assert table.damaged == 0


@pytest.mark.parametrize("count", [3, 40, 20_000])
def test_samples_follow_the_column(tmp_path, count):
    """The values rise by one per line, so that samples must rise from the first to the last."""
    path = tmp_path / "metrics.csv"
    path.write_text(HEADER + "".join(f"{i},{i},0\n" for i in range(count)))
    found = sample_column(path, "return_mean", 32)
    assert len(found) == min(count, 20 if count == 40 else 32)
    assert found == sorted(found)
    assert found[0] <= max(0.5, 0.01 * count)
    assert found[-1] >= 0.99 * (count - 1) - 0.5


def test_samples_of_nothing(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text(HEADER + "1,,0\n")
    assert sample_column(path, "return_mean", 8) == []
    assert sample_column(path, "level", 8) == []
