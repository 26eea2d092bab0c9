"""The physics benchmark runs, and refuses to compare loops that end in different places."""

import numpy as np
import pytest

from save_rl.bench import physics
from save_rl.envs.construction import Construction


@pytest.mark.slow
def test_a_small_run_has_every_figure():
    report = physics.bench_physics(count=3, repeats=1)
    assert report["engine"] in ("compiled", "python")
    assert [case["blocks"] for case in report["cases"]] == [0, 5, 10, 15, 25]
    for case in report["cases"]:
        assert min(case["placements_per_second"].values()) > 0
        assert case["added_by_our_layer"].endswith("%")
        assert case["speedup"] > 0
    for value in report["milliseconds"].values():
        assert 0 < value["median"] <= value["worst"]


def test_loops_that_disagree_are_not_compared(monkeypatch):
    monkeypatch.setattr(physics, "_bare", lambda *_: ([(0.0, 0.0, 0.0)], []))
    with pytest.raises(AssertionError, match="end in different places"):
        physics._placements(0, 2, 1)


def test_structures_have_as_many_blocks_as_asked_for():
    sim = Construction("covering", difficulty=2, curriculum_sample=False)
    state = physics._structure(sim, 7, np.random.default_rng(0), glue=1.0)
    assert (state.steps, state.sticky_count) == (7, 7)
