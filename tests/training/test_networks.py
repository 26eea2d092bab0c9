"""Networks for images and dictionaries, and somebody's own, in training on a device and a host."""

from pathlib import Path

import jax
import numpy as np
import pytest

import save_rl
from save_rl import envs
from save_rl.errors import InputError
from save_rl.training.layer_settings import LayerSettings
from save_rl.training.run.run_directory import read_settings
from tests.networks import own_networks
from tests.training.test_resume import final_arrays, metrics_without_time

SIGNS = {"device": "tests.training.signs:JaxSigns", "host": "tests.training.signs:Signs"}
OWN = "tests.networks.own_networks"
BRIEF = {
    "agent": "q-learning", "lanes": 16, "batch": 16, "learning_rate": 1e-2, "epsilon_episodes": 200,
    "workers": 0, "device": "cpu", "checkpoint_seconds": 0, "progress": False,
}  # fmt: skip
each_path = pytest.mark.parametrize("path", SIGNS)


def train(path, out, kind="vector", **settings):
    options = {"env_options": {"kind": kind}, "out": out}
    return save_rl.train(SIGNS[path], **BRIEF | options | settings)


def mean_reward(out, **options):
    (tested,) = save_rl.evaluate(out, (0,), 30, workers=0, device="cpu", **options)
    return tested.returns.mean()


@pytest.mark.parametrize("path", [pytest.param("device", marks=pytest.mark.slow), "host"])
def test_a_network_and_an_optimizer_of_ones_own_learn(tmp_path, path, monkeypatch):
    """Also with constants, double precision and weight decay; and only with trust elsewhere."""
    out = tmp_path / "run"
    own = {"network": own_networks.small, "optimizer": own_networks.decays}
    train(path, out, steps=640, **own)
    before = read_settings(out, "DIR")
    assert (before.network, before.optimizer) == (f"{OWN}:small", f"{OWN}:decays")
    monkeypatch.setattr(envs, "_made", {SIGNS[path]})
    with pytest.raises(InputError, match=f"its network is '{OWN}:small'"):
        mean_reward(out)
    envs._made.add(f"{OWN}:small")
    with pytest.raises(InputError, match=f"its optimizer is '{OWN}:decays'"):
        mean_reward(out)
    assert mean_reward(out, trust=True) == 1


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        pytest.param("device", "dictionary", marks=pytest.mark.slow),
        pytest.param("device", "picture", marks=pytest.mark.slow),
        pytest.param("host", "dictionary", marks=pytest.mark.slow),
        pytest.param("host", "picture", marks=pytest.mark.slow),
    ],
)
def test_what_is_shown_is_learned_from(tmp_path, path, kind):
    sizes = LayerSettings(filters=(4,), hidden=(16,))
    run = train(path, tmp_path / "run", kind, steps=960, network_settings=sizes)
    learned = jax.tree.leaves(run.state.learner.params)
    assert all(np.isfinite(x).all() for x in learned)
    assert mean_reward(tmp_path / "run") == 1


def assert_resumed_is_the_same(tmp_path, path, **settings):
    once, twice = tmp_path / "once", tmp_path / "twice"
    train(path, once, steps=256, **settings)
    train(path, twice, steps=128, **settings)
    train(path, twice, steps=256, resume=True, **settings)
    arrays, others = final_arrays(once), final_arrays(twice)
    assert arrays.keys() == others.keys()
    for name in arrays:
        np.testing.assert_array_equal(arrays[name], others[name], name)
    assert metrics_without_time(once)[-1] == metrics_without_time(twice)[-1]


@pytest.mark.slow
def test_a_resumed_run_on_dictionaries_with_ones_own_optimizer_is_the_same(tmp_path):
    settings = {"seed": (3, 4), "chunk": 4, "optimizer": f"{OWN}:sgd"}
    assert_resumed_is_the_same(tmp_path, "host", kind="dictionary", **settings)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["auto", f"{OWN}:small"])
@pytest.mark.parametrize("agent", ["save", "puct"])
@each_path
def test_resumed_runs_with_policies_and_several_seeds_are_the_same(tmp_path, path, agent, network):
    settings = {"agent": agent, "budget": 2, "seed": (3, 4), "chunk": 4, "network": network}
    assert_resumed_is_the_same(tmp_path, path, kind="dictionary", **settings)
    tested = save_rl.evaluate(tmp_path / "once", (0, 4), 20, workers=0, device="cpu")
    assert [one.returns.shape for one in tested] == [(2, 20), (2, 20)]


@pytest.mark.slow
def test_ones_own_network_takes_graphs_and_nested_trees(tmp_path):
    """Graphs lose their padding on a host, and get it back; only JAX environments show trees."""
    for path, kind in (("host", "graph"), ("device", "graph"), ("device", "nested")):
        out = tmp_path / f"{path}-{kind}"
        train(path, out, kind, steps=960, network=f"{OWN}:small")
        assert mean_reward(out) == 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"network_settings": {}},
            "network_settings: {} is not possible; it must be a LayerSettings.",
        ),
        (
            {"network_settings": LayerSettings(hidden=(8, "a"))},
            "--network.hidden: (8, 'a') is not possible; it must be a whole number.",
        ),
        (
            {"network_settings": LayerSettings(filters=())},
            "--network.filters: () is not possible; it must be at least one number.",
        ),
        ({"network": 3}, "--network: 3 is not possible; it must be text."),
        (
            {"network": lambda *given: None},
            "--network: '<lambda>' has no name by which a run could find it again; give a function "
            "or class with a name of its own, or package.module:factory.",
        ),
    ],
)
def test_settings_of_networks_that_are_not_possible_from_python(settings, sentence):
    with pytest.raises(InputError) as caught:
        save_rl.train("tightrope", **settings)
    assert str(caught.value) == sentence


def test_trees_that_no_network_takes_are_refused_before_a_folder_is_made(tmp_path):
    for path, sentence in (
        ("device", "--network: 'auto' knows no network for observations that are a dict;"),
        ("host", "ENV: observe returned a of type object; it must be an array of numbers."),
    ):
        with pytest.raises(InputError, match=sentence.split(";")[0]):
            train(path, tmp_path / "run", "nested")
    assert not Path(tmp_path / "run").exists()
