"""Checkpoints without a replay: what a run keeps of itself, and how it goes on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import save_rl
from save_rl.errors import InputError
from save_rl.training.run import checkpoint

pytestmark = pytest.mark.xdist_group("evaluation")  # its programs are as small

HOW = {"env": "gym/FrozenLake-v1", "agent": "q-learning", "batch": 8, "min_replay": 16, "chunk": 4}


def train(out: Path, episodes: int, **options: Any) -> Any:
    settings = {**HOW, "lanes": 8, "replay": 2000, "episodes": episodes, **options}
    return save_rl.train(out=out, device="cpu", workers=0, progress=False, **settings)


def newest(out: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Manifest and arrays of the newest checkpoint."""
    folder = out / "checkpoints" / f"{checkpoint.numbers(out / 'checkpoints')[-1]:09d}"
    with np.load(folder / "arrays.npz") as found:
        arrays = {name: found[name] for name in found.files}
    return json.loads((folder / "manifest.json").read_text()), arrays


@pytest.mark.slow
def test_a_run_goes_on_with_an_empty_replay(tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "light"
    train(whole, 30)
    begun = train(out, 30, light_checkpoints=True)
    (manifest, arrays), (usual, expected) = newest(out), newest(whole)
    assert (manifest["light"], usual["light"]) == (True, False)
    missing = expected.keys() - arrays.keys()
    assert missing
    assert all(name.startswith(".replay") for name in missing)
    for name, array in arrays.items():  # all else is the same
        np.testing.assert_array_equal(array, expected[name])

    tests = [save_rl.evaluate(run, (0,), 4, device="cpu", workers=0)[0] for run in (out, whole)]
    np.testing.assert_array_equal(tests[0].returns, tests[1].returns)

    ended = train(out, 60, resume=True, light_checkpoints=True)
    steps, updates = (
        [int(made.metrics[-1][name]) for made in (begun, ended)]
        for name in ("env_steps", "updates")
    )
    added = [int(made.state.replay.added[0]) for made in (begun, ended)]
    assert added == [steps[0], steps[1] - steps[0]]
    assert 0 < updates[0] < updates[1]
    assert ended.metrics[-1]["episodes"] >= 60


@pytest.mark.slow
def test_a_run_may_switch(tmp_path):
    train(tmp_path, 30)
    train(tmp_path, 60, resume=True, light_checkpoints=True)
    assert newest(tmp_path)[0]["light"] is True
    ended = train(tmp_path, 90, resume=True)
    assert newest(tmp_path)[0]["light"] is False
    assert ended.metrics[-1]["episodes"] >= 90


def test_a_replay_that_can_not_be_refilled_stays(tmp_path):
    with pytest.raises(InputError, match="--light-checkpoints: it is only for simulators"):
        train(tmp_path / "run", 30, env="tightrope", light_checkpoints=True)
    assert not (tmp_path / "run").exists()
