"""SAVE on R2D2 from the command line, on an Atari game: train, stop, go on, test, watch."""

import csv
import json
import shlex

import jax
import numpy as np
import pytest
from PIL import Image

from save_rl.cli import main
from save_rl.training.r2d2.network import to_batch
from save_rl.training.run import checkpoint
from save_rl.training.run.run_directory import read_settings
from save_rl.training.run.trainers import make_trainer
from save_rl.watch import watch

# One worker runs them all, so that the run is made once.
pytestmark = pytest.mark.xdist_group("r2d2")

SETTINGS = (
    "train atari/MsPacman --agent r2d2-save --lanes 4 --budget 3 --chunk 8 --device cpu "
    "--env-options max_frames=2000 --r2d2.network.profile small "
    "--r2d2.network.learning-rate 3e-4 --r2d2.sequences.burn-in 4 --r2d2.sequences.train 10 "
    "--r2d2.sequences.period 5 --r2d2.replay.capacity 400 --r2d2.replay.minimum 20 "
    "--r2d2.replay.batch 8 --r2d2.target-period 20"
)


def run(command):
    main(shlex.split(command))


def rows(folder):
    with (folder / "metrics.csv").open() as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def arrays(folder):
    number = checkpoint.numbers(folder / "checkpoints")[-1]
    with np.load(folder / "checkpoints" / f"{number:09d}" / "arrays.npz") as found:
        return {name: found[name] for name in found.files}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("r2d2") / "run"
    run(f"{SETTINGS} --steps 160 --workers 0 --out {folder}")
    return folder


@pytest.mark.slow
def test_it_starts_with_the_parameters_of_another_run(trained, tmp_path):
    out = tmp_path / "run"
    run(f"{SETTINGS} --from {trained} --seed 1 --steps 8 --workers 0 --out {out}")
    first = min((out / "checkpoints").iterdir())
    with np.load(first / "arrays.npz") as found:
        start = {name: found[name] for name in found.files}
    learned = {n: x for n, x in arrays(trained).items() if n.startswith(".state.learner.params")}
    assert learned
    for name, x in learned.items():
        for place in (".state.learner.params", ".state.learner.target", ".state.acting"):
            other = name.replace(".state.learner.params", place)
            np.testing.assert_array_equal(start[other], x)


@pytest.mark.slow
def test_it_learns(tmp_path):
    """On the same sequences and with the same target network, both losses are lower than those of
    the network that it began with."""
    trained = tmp_path / "run"
    run(f"{SETTINGS} --steps 1200 --workers 0 --out {trained}")
    trainer = make_trainer(read_settings(trained, "DIR"), jax.devices("cpu")[0], workers=0)
    networks = trainer.setup.networks
    start = networks.initial(jax.random.PRNGKey(0))
    found = checkpoint.load_newest(trained / "checkpoints", trainer.template(), pytest.fail)
    state = trainer.restore(found.state)
    losses = {"loss_q": [], "loss_a": []}
    for learner in (start, state.learner):
        rng = np.random.default_rng(0)
        replay = trainer.learner.replay
        batches = [to_batch(replay.unpack(replay.draw(rng)), 0.997) for _ in range(8)]
        leaves = jax.tree.leaves((learner.params, learner.optimiser))
        target = jax.tree.leaves(state.learner.target)
        about = [networks.update(leaves, target, batch)[1] for batch in batches]
        for name, values in losses.items():
            values.append(np.mean([float(one[name]) for one in about]))
    trainer.close()
    assert losses["loss_q"][1] < 0.5 * losses["loss_q"][0], losses
    assert losses["loss_a"][1] < losses["loss_a"][0] - 0.01, losses


def test_metrics_say_whether_the_search_does_anything(trained):
    found = rows(trained)
    assert found[-1]["env_steps"] == 160
    assert found[-1]["updates"] > 0
    assert all(1 <= row["explored"] <= 3 for row in found)
    assert all(0 <= row["changed"] <= 1 for row in found)
    assert 0 < np.mean([row["changed"] for row in found]) < 0.7
    assert found[0]["epsilon"] == pytest.approx(np.mean(0.4 ** np.array([1, 10 / 3, 17 / 3, 8])))
    assert (found[0]["beta_q"], found[0]["beta_a"]) == (1, 10)
    config = json.loads((trained / "config.json").read_text())
    assert config["settings"]["r2d2"]["network"]["profile"] == "small"


@pytest.mark.slow
def test_stopped_and_resumed_with_other_workers_it_is_the_same_run(trained, tmp_path):
    folder = tmp_path / "run"
    run(f"{SETTINGS} --steps 90 --workers 2 --out {folder}")
    assert rows(folder)[-1]["env_steps"] == 96  # the first chunk that ends at 90 or later
    run(f"{SETTINGS} --steps 160 --workers 0 --resume --out {folder}")
    ours, theirs = rows(trained), rows(folder)
    for row in (*ours, *theirs):
        del row["time_s"]
    assert ours == theirs
    ours, theirs = arrays(trained), arrays(folder)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def test_it_is_tested_with_and_without_search(trained, monkeypatch):
    """Also where there is no room for its replay."""
    monkeypatch.setattr("save_rl.learning.sequence_replay.machine_memory", lambda: 10**6)
    options = "--env-options max_frames=200 --workers 0 --device cpu"
    run(f"evaluate {trained} --budgets 0 3 --episodes 3 {options}")
    with (trained / "evaluation.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [(row["budget"], row["episode"]) for row in found] == [
        (budget, episode) for budget in "03" for episode in "012"
    ]
    assert all(42 <= int(row["steps"]) <= 50 for row in found)  # up to 30 frames are no-ops


def test_it_can_be_watched_beside_its_values(trained, tmp_path, capsys):
    out = tmp_path / "x.gif"
    run(f"watch {trained} --out {out} --env-options max_frames=80 --budget 2")
    assert "steps, reward" in capsys.readouterr().out
    with Image.open(out) as image:
        assert 1 < getattr(image, "n_frames", 1) <= 20
        assert image.size[0] > 252 + 100  # the picture of the game, and bars


def test_what_is_shown_beside_it_is_what_it_chose_by(trained, tmp_path):
    """Qθ, and what the search made of it, in points: where it did not look, the same."""
    episode = watch(str(trained), tmp_path / "x.gif", env_options={"max_frames": 60}, budget=3)
    changed = 0.0
    for move in episode.moves:
        prior, searched, explored, action = move.values
        assert 1 <= explored.sum() <= 3
        assert explored[prior.argmax()]  # the first simulation tries the network's favourite
        np.testing.assert_allclose(searched[~explored], prior[~explored], rtol=1e-5, atol=1e-6)
        assert action == np.where(explored, searched, -np.inf).argmax()
        assert move.state.action == action
        changed = max(changed, np.abs(searched - prior).max())
    assert changed > 0.01
