"""The recurrent network against its equations in NumPy, and padding that must not matter."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl.errors import InputError
from save_rl.networks.recurrent import (
    KERNELS,
    LSTM,
    PROFILES,
    REWARD_INPUTS,
    Convolution,
    RecurrentNetwork,
    stack_frames,
    unroll,
)

ACTIONS = 5
STEPS = 5
BATCH = 2
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


@cache
def make_network(reward_input="raw"):
    """A network none of whose arrays is zero; fresh biases are."""
    key = jax.random.key(0)
    shapes = eqx.filter_eval_shape(RecurrentNetwork, ACTIONS, key, "small", reward_input)
    rng = np.random.default_rng(1)

    def fill(x):
        scale = 1 / np.sqrt(np.prod(x.shape[:-1])) if x.ndim > 1 else 0.1
        return np.float32(rng.normal(scale=scale, size=x.shape))

    return jax.tree.map(fill, shapes)


def make_observation(rng, *shape):
    return {
        "frames": rng.integers(256, size=(*shape, 84, 84, 4), dtype=np.uint8),
        "action": rng.integers(ACTIONS, size=shape, dtype=np.int32),
        "reward": rng.normal(scale=2, size=shape).astype(np.float32),
    }


def make_state(rng, batch=BATCH):
    shape = (batch, PROFILES["small"].hidden)
    return {name: rng.normal(size=shape).astype(np.float32) for name in ("hidden", "cell")}


@eqx.filter_jit
def call(network, observation, state):
    return network(observation, state)


@eqx.filter_jit
def unrolled(network, observations, state, valid):
    """`(gradient, (q, last state))` of a loss that looks at valid steps, each in its own way."""

    def loss(network):
        q, last = unroll(network, observations, state, valid)
        sign = jnp.cos(jnp.arange(q.size)).reshape(q.shape)
        return jnp.sum(jnp.where(valid[..., None], sign * q, 0.0)), (q, last)

    return eqx.filter_grad(loss, has_aux=True)(network)


# The equations, in float64 and with loops.


def relu(x):
    return np.maximum(x, 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def convolution_reference(picture, weight, bias, stride):
    """One picture `[height, width, inputs]`."""
    size, _, _, outputs = weight.shape
    height, width = ((side - size) // stride + 1 for side in picture.shape[:2])
    result = np.zeros((height, width, outputs))
    for y in range(height):
        for x in range(width):
            top, left = y * stride, x * stride
            patch = picture[top : top + size, left : left + size]
            for o in range(outputs):
                result[y, x, o] = np.sum(patch * weight[..., o]) + bias[o]
    return relu(result)


def lstm_reference(lstm, x, hidden, cell):
    """One step of one lane: x `[inputs]`, hidden and cell `[H]`."""
    size = len(hidden)
    new_hidden, new_cell = np.zeros(size), np.zeros(size)
    for unit in range(size):
        i, f, g, o = (
            x @ lstm.input[:, k] + hidden @ lstm.hidden[:, k] + lstm.bias[k]
            for k in (unit, size + unit, 2 * size + unit, 3 * size + unit)
        )
        new_cell[unit] = sigmoid(f) * cell[unit] + sigmoid(i) * np.tanh(g)
        new_hidden[unit] = sigmoid(o) * np.tanh(new_cell[unit])
    return new_hidden, new_cell


def mlp_reference(mlp, x, activate_last=False):
    *first, last = mlp.layers
    for layer in first:
        x = relu(x @ layer.weight + layer.bias)
    x = x @ last.weight + last.bias
    return relu(x) if activate_last else x


def reward_reference(reward, reward_input):
    if reward_input == "tanh":
        return np.tanh(reward)
    if reward_input == "h":
        return np.sign(reward) * (np.sqrt(abs(reward) + 1) - 1) + 0.001 * reward
    return reward


def network_reference(network, observation, state, lane):
    """`(q [A], hidden [H], cell [H])` of one lane."""
    reward_input = network.reward_input
    network = jax.tree.map(lambda x: np.asarray(x, np.float64), network)
    x = observation["frames"][lane] / 255
    for layer, (_, stride) in zip(network.convolutions, KERNELS, strict=True):
        x = convolution_reference(x, layer.weight, layer.bias, stride)
    x = mlp_reference(network.dense, x.reshape(-1), activate_last=True)
    one_hot = np.zeros(ACTIONS)
    one_hot[observation["action"][lane]] = 1
    reward = reward_reference(float(observation["reward"][lane]), reward_input)
    x = np.concatenate([x, [reward], one_hot])
    hidden, cell = lstm_reference(network.lstm, x, state["hidden"][lane], state["cell"][lane])
    value, advantage = (mlp_reference(m, hidden) for m in (network.value, network.advantage))
    return value[0] + advantage - sum(advantage) / ACTIONS, hidden, cell


def test_a_convolution_is_a_sum_over_patches():
    rng = np.random.default_rng(0)
    layer = Convolution(3, 2, 2, 4, jax.random.key(0))
    layer = eqx.tree_at(lambda x: x.bias, layer, np.float32([-0.5, -0.25, 0.0, 0.25]))
    pictures = rng.normal(size=(2, 8, 11, 2)).astype(np.float32)
    result = np.asarray(eqx.filter_jit(layer)(pictures))
    assert result.shape == (2, 3, 5, 4)
    for seen, picture in zip(result, pictures, strict=True):
        expected = convolution_reference(picture, np.asarray(layer.weight), layer.bias, 2)
        np.testing.assert_allclose(seen, expected, **TOLERANCE)


def test_the_forget_gate_starts_open():
    lstm = LSTM(3, 2, jax.random.key(0))
    np.testing.assert_array_equal(lstm.bias, [0, 0, 1, 1, 0, 0, 0, 0])


@pytest.mark.parametrize("reward_input", REWARD_INPUTS)
def test_the_network_is_its_equations(reward_input):
    rng = np.random.default_rng(2)
    network = make_network(reward_input)
    observation, state = make_observation(rng, BATCH), make_state(rng)
    q, after = call(network, observation, state)
    for lane in range(BATCH):
        expected = network_reference(network, observation, state, lane)
        for seen, number in zip((q, after["hidden"], after["cell"]), expected, strict=True):
            np.testing.assert_allclose(seen[lane], number, **TOLERANCE)


def test_advantages_matter_only_up_to_a_constant():
    rng = np.random.default_rng(3)
    network = make_network()
    shifted = eqx.tree_at(
        lambda x: x.advantage.layers[-1].bias, network, replace_fn=lambda bias: bias + 3.0
    )
    hidden = rng.normal(size=(4, PROFILES["small"].hidden)).astype(np.float32)
    head = eqx.filter_jit(RecurrentNetwork.head)
    np.testing.assert_allclose(head(shifted, hidden), head(network, hidden), **TOLERANCE)


masks = st.lists(st.booleans(), min_size=STEPS * BATCH, max_size=STEPS * BATCH).map(
    lambda bits: np.reshape(bits, (STEPS, BATCH))
)


@settings(max_examples=12)
@given(masks, st.integers(0, 99))
def test_an_unroll_is_step_by_step_and_padding_is_not_a_step(valid, seed):
    rng = np.random.default_rng(seed)
    network, state = make_network(), make_state(rng)
    observations = make_observation(rng, STEPS, BATCH)
    _, (q, last) = unrolled(network, observations, state, valid)
    for t in range(STEPS):
        step = {name: x[t] for name, x in observations.items()}
        expected, after = call(network, step, state)
        state = {name: np.where(valid[t][:, None], after[name], old) for name, old in state.items()}
        np.testing.assert_allclose(q[t][valid[t]], expected[valid[t]], **TOLERANCE)
    for name, x in last.items():
        np.testing.assert_allclose(x, state[name], **TOLERANCE)


@settings(max_examples=12)
@given(masks, st.integers(0, 99))
def test_what_is_in_padding_changes_no_bit(valid, seed):
    rng = np.random.default_rng(seed)
    network, state = make_network(), make_state(rng)
    clean = make_observation(rng, STEPS, BATCH)
    other = make_observation(rng, STEPS, BATCH)
    other["action"] += ACTIONS - 1
    other["reward"] = np.where(seed % 2, np.nan, 1e30 * other["reward"])
    dirty = {
        name: np.where(valid.reshape(STEPS, BATCH, *(1,) * (x.ndim - 2)), x, other[name])
        for name, x in clean.items()
    }
    dirty = {name: x.astype(clean[name].dtype) for name, x in dirty.items()}
    runs = [unrolled(network, seen, state, valid) for seen in (clean, dirty)]
    jax.tree.map(np.testing.assert_array_equal, *runs)


def test_an_episode_that_begins_late_begins_from_zero():
    rng = np.random.default_rng(4)
    network = make_network()
    observations = make_observation(rng, STEPS, BATCH)
    valid = np.array([[0, 1], [0, 1], [1, 1], [1, 1], [1, 1]], bool)
    zeros = {name: np.zeros_like(x) for name, x in make_state(rng).items()}
    _, (q, _) = unrolled(network, observations, zeros, valid)
    first = {name: x[2] for name, x in observations.items()}
    expected, _ = call(network, first, zeros)
    np.testing.assert_allclose(q[2, 0], expected[0], **TOLERANCE)
    assert np.abs(q[2, 1] - expected[1]).max() > 1e-3


@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (4, 3)])
def test_stacks_are_the_last_four_frames(steps, batch):
    rng = np.random.default_rng(steps)
    frames = rng.integers(256, size=(steps + 3, batch, 3, 2), dtype=np.uint8)
    stacks = np.asarray(jax.jit(stack_frames)(frames))
    assert stacks.shape == (steps, batch, 3, 2, 4)
    assert stacks.dtype == np.uint8
    for t in range(steps):
        for lane in range(batch):
            for age in range(4):
                newest = t + 3
                np.testing.assert_array_equal(
                    stacks[t, lane, ..., 3 - age], frames[newest - age][lane]
                )


@pytest.mark.parametrize(("profile", "count"), [("paper", 4_357_299), ("small", 104_123)])
def test_the_profiles_have_the_documented_sizes(profile, count):
    shapes = eqx.filter_eval_shape(RecurrentNetwork, 18, jax.random.key(0), profile)
    assert sum(x.size for x in jax.tree.leaves(shapes)) == count


def test_unknown_names_are_refused():
    with pytest.raises(
        InputError, match=r"network.profile: there is no network profile 'smal'.*'small'"
    ):
        RecurrentNetwork(ACTIONS, jax.random.key(0), "smal")
    with pytest.raises(InputError, match=r"network.reward-input: 'clip' is not possible"):
        RecurrentNetwork(ACTIONS, jax.random.key(0), "small", "clip")
