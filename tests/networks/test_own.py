"""Networks and optimizers of other people: those that fit are used, the others are refused."""

import sys
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from save_rl import envs
from save_rl.errors import InputError
from save_rl.networks import network_maker, with_heads
from save_rl.networks.own import parameters
from save_rl.training.networks import make_optimizer

OWN = "tests.networks.own_networks"
KEY = jax.random.PRNGKey(0)


class Simulator:
    """Shows double precision, which is sent as single precision."""

    num_actions = 3

    def __init__(self, shown):
        self._shown = shown

    def reset(self, seed):
        return seed

    def observe(self, state):
        return self._shown


VECTOR = Simulator(np.array([1.0, 2.0]))


def maker(name, shown=None, env=VECTOR, value_head=False):
    shown = np.zeros(2, np.float32) if shown is None else shown
    return network_maker(f"{OWN}:{name}", shown, env, value_head)


def test_it_maps_batches_as_it_maps_one_observation():
    make = maker("small", value_head=True)
    network = make(KEY)
    seen = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    head, value = eqx.filter_jit(network)(seen)
    assert (head.shape, value.shape) == ((4, 3), (4,))
    one, number = network.one(seen[2])
    np.testing.assert_allclose(head[2], one, rtol=1e-5)
    np.testing.assert_allclose(value[2], number, rtol=1e-5)


def test_floating_point_arrays_are_learned_and_whole_numbers_are_not():
    learned = parameters(maker("small")(KEY))
    assert {x.shape for x in jax.tree.leaves(learned)} == {
        (32, 2), (32,), (32, 32), (2,), (32, 3), (3,)
    }  # fmt: skip
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(learned))
    assert learned.one.torso.order is None


def test_heads_are_linear_and_see_the_torso_only():
    network = with_heads(lambda x: x * 2, 3, 4, True, KEY)
    x = jnp.array([1.0, -2.0, 3.0])
    head, value = network(x)
    np.testing.assert_allclose(head, 2 * x @ np.asarray(network.head.weight), rtol=1e-5)
    np.testing.assert_allclose(value, 2 * x @ np.asarray(network.value.weight)[:, 0], rtol=1e-5)
    assert with_heads(abs, 3, 4, False, KEY)(x).shape == (4,)


def test_outputs_become_single_precision():
    head, value = maker("half")(KEY)(np.ones((2, 2), np.float32))
    assert head.dtype == jnp.float32
    assert value is None


def test_a_graph_without_its_padding_is_padded_again():
    """The trainer cuts padding off; somebody's network sees what the simulator shows."""
    graph = {"nodes": np.ones((5, 2), np.float32), "node_mask": np.arange(5) < 3}
    make = maker("small", graph, Simulator(graph))
    network = make(KEY)
    full = {name: x[None] for name, x in graph.items()}
    full["nodes"] = np.where(graph["node_mask"][:, None], graph["nodes"], 0)[None]
    cut = {name: x[:, :3] for name, x in full.items()}
    np.testing.assert_array_equal(network(cut)[0], network(full)[0])


def test_the_factory_sees_the_first_observation_of_a_jax_environment(monkeypatch):
    env = SimpleNamespace(num_actions=3, reset=lambda key: key, observe=lambda key: (key % 7) / 7)
    seen = []
    from tests.networks import own_networks

    def spy(observation, *rest):
        seen.append(observation)
        return own_networks.small(observation, *rest)

    monkeypatch.setattr(own_networks, "spy", spy, raising=False)
    maker("spy", jax.eval_shape(lambda key: (key % 7) / 7, KEY), env)
    np.testing.assert_allclose(seen[0], np.asarray(KEY) % 7 / 7)
    assert isinstance(seen[0], np.ndarray)


def assert_refused(option, sentence, call):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(f"{option}: ")
    assert sentence in message
    assert "\n" not in message
    assert message.endswith(".")


REFUSED = {
    "missing": "module 'tests.networks.own_networks' has no 'missing'",
    "not_a_factory": "is not a function or class.",
    "raises": "can't make a network: KeyError: 'depth' (tests/networks/own_networks.py:",
    "takes_less": "must take (observation, num_actions, value_head, key): too many positional "
    "arguments.",
    "nothing": "returned None, which is not a network; it must be callable.",
    "function": "returned something of type function, which holds no floating-point arrays to "
    "learn; return an equinox.Module.",
    "ordinary": "returned something of type Ordinary, which holds no floating-point arrays",
    "complex_one": "returned a network with complex numbers to learn; they must be real.",
    "lucky": "returned two different networks for one key; draw numbers only from the key.",
    "branches": "returned two networks of different structure for one key",
    "counts_keys": "can't be compiled for several seeds: ConcretizationTypeError",
    "looks": "made a network that fails on an observation: TracerBoolConversionError",
    "too_short": "made a network that maps one observation to float32 [1], not to one number per "
    "action, float32 [3].",
    "whole": "maps one observation to int32 [3], not to one number per action",
    "pair": "maps one observation to (float32 [3], float32 []), not to one number per action",
    "a_list": "maps one observation to something of type list, not to one number per action",
    "infinite": "made a network whose output on the first observation is not finite.",
}


@pytest.mark.parametrize(("name", "sentence"), REFUSED.items())
def test_a_network_that_does_not_fit_is_refused_in_a_sentence(name, sentence):
    assert_refused("--network", sentence, lambda: maker(name))


def test_an_agent_with_a_policy_needs_a_value():
    with pytest.raises(InputError, match=r"maps one observation to float32 \[3\], not to \(logits"):
        maker("good", value_head=True)
    head, value = maker("pair", value_head=True)(KEY)(np.ones((2, 2), np.float32))
    np.testing.assert_array_equal(head[:, 0], value)


def test_a_module_that_fails_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "failing_network.py").write_text("1 / 0\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"can't be imported: ZeroDivisionError.*\(failing_net"):
        network_maker("failing_network:net", np.zeros(2), VECTOR)


PARAMS = {"weight": jnp.ones((2, 3)), "rest": None}


@pytest.mark.parametrize("name", ["sgd", "decays"])
def test_an_optimizer_of_ones_own_is_used(name):
    made = make_optimizer(f"{OWN}:{name}", 0.1, PARAMS)
    gradient = {"weight": jnp.full((2, 3), 0.01), "rest": None}
    changes, _ = made.update(gradient, made.init(PARAMS), PARAMS)
    # The first step of Adam is one learning rate, and the decay is 0.1 of it.
    expected = -0.1 * (0.01 if name == "sgd" else 1 + 0.1)
    np.testing.assert_allclose(changes["weight"], np.full((2, 3), expected), rtol=1e-4)


def test_adam_is_the_default():
    made, usual = make_optimizer("adam", 0.3, PARAMS), optax.adam(0.3)
    steps = [one.update(PARAMS, one.init(PARAMS), PARAMS)[0]["weight"] for one in (made, usual)]
    np.testing.assert_array_equal(*steps)


NO_OPTIMIZERS = {
    "missing": "has no 'missing'.",
    "raises": "must take (learning_rate): missing a required argument: 'num_actions'.",
    "breaks": "can't make an optimizer: ZeroDivisionError: float division by zero (tests/networks/",
    "no_optimizer": "returned 0.1, not an optax.GradientTransformation.",
    "fails": "made an optimizer that fails: ValueError: no update (tests/networks/own_networks.py:",
    "forgets": "made an optimizer that changes the structure, shapes or types of its state.",
    "explodes": "made an optimizer whose first update is not finite.",
}


@pytest.mark.parametrize(("name", "sentence"), NO_OPTIMIZERS.items())
def test_an_optimizer_that_does_not_work_is_refused_in_a_sentence(name, sentence):
    assert_refused("--optimizer", sentence, lambda: make_optimizer(f"{OWN}:{name}", 0.1, PARAMS))


def test_what_the_user_named_is_trusted_afterwards(monkeypatch):
    monkeypatch.setattr(envs, "_made", set())
    for what in ("network", "optimizer"):
        with pytest.raises(InputError, match=f"its {what} is '{OWN}:good'"):
            envs.require_trust(f"{OWN}:good", "runs/x", False, "DIR", what)
    maker("good")
    envs.require_trust(f"{OWN}:good", "runs/x", False, "DIR", "network")
