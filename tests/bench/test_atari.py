"""The Atari benchmark runs, and refuses to compare loops that end in different places."""

import numpy as np
import pytest

from save_rl.bench import atari
from save_rl.cli.bench import print_bench
from save_rl.errors import RunError


@pytest.mark.slow
def test_a_small_run_has_every_figure(monkeypatch):
    monkeypatch.setattr(atari, "GAMES", ("ms_pacman",))
    monkeypatch.setattr(atari, "LANES", 8)
    report = atari.bench_atari(repeats=1)
    print_bench(report, as_json=False)  # a table can be made of it
    assert [case["game"] for case in report["cases"]] == ["ms_pacman"]
    for case in report["cases"]:
        assert set(case["simulations_per_second"]) == {"lanes", "step", "bare loop"}
        assert min(case["simulations_per_second"].values()) > 0
        assert set(case["ratio_to_bare_loop"]) == {"lanes", "step"}
    workers = report["in_workers"]
    rates = workers["simulations_per_second"]
    assert set(rates) == {"one worker", "workers", "one bare loop", "bare loops"}
    assert workers["workers"] == 2
    gains = [rates[f"{what}s"] / rates[f"one {what}"] for what in ("worker", "bare loop")]
    found = [workers[f"gain_of_{what}"] for what in ("workers", "bare_loops")]
    assert found == pytest.approx(gains, abs=0.02)
    share = rates["workers"] / rates["bare loops"]
    assert workers["share_of_what_is_possible"] == pytest.approx(share, abs=0.02)


def test_loops_that_disagree_are_not_compared(monkeypatch):
    monkeypatch.setattr(atari._Bare, "__call__", lambda _, core, stack, __: (core, stack, 0))
    with pytest.raises(AssertionError, match="end in different places"):
        atari._game("ms_pacman", 1)


def test_a_bare_loop_that_ends_is_not_taken_for_a_fast_one(capfd):
    with atari._bare_loops("no_such_game", 1) as ask, pytest.raises(RunError, match="has ended"):
        ask(1)
    assert "no Atari game 'no_such_game'" in capfd.readouterr().err


def test_moments_differ():
    states = atari._moments(atari.Atari("ms_pacman"), 3)
    assert not np.array_equal(states[0].stack, states[2].stack)
    assert states[1].frames == states[0].frames + 80
