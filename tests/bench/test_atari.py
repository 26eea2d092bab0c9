"""The Atari benchmark runs, and refuses to compare loops that end in different places."""

import numpy as np
import pytest

from save_rl.bench import atari


def test_a_small_run_has_every_figure():
    report = atari.bench_atari(repeats=1)
    assert [case["game"] for case in report["cases"]] == list(atari.GAMES)
    for case in report["cases"]:
        assert set(case["simulations_per_second"]) == {"lanes", "step", "bare loop"}
        assert min(case["simulations_per_second"].values()) > 0
        assert set(case["ratio_to_bare_loop"]) == {"lanes", "step"}
    workers = report["in_workers"]
    assert min(workers["simulations_per_second"].values()) > 0
    assert workers["gain_of_a_second_worker"] > 0


def test_loops_that_disagree_are_not_compared(monkeypatch):
    monkeypatch.setattr(atari._Bare, "__call__", lambda _, core, stack, __: (core, stack, 0))
    with pytest.raises(AssertionError, match="end in different places"):
        atari._game("ms_pacman", 1)


def test_moments_differ():
    states = atari._moments(atari.Atari("ms_pacman"), 3)
    assert not np.array_equal(states[0].stack, states[2].stack)
    assert states[1].frames == states[0].frames + 80
