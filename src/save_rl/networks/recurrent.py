"""The recurrent network of R2D2 (Kapturowski et al. 2019, section 2.3).

    frames / 255 ─► three convolutions ─► dense ─┐
    previous reward, one-hot previous action ────┴─► LSTM ─┬─► value     ─┐
                                                           └─► advantage ─┴─► q̃ = v + a - mean(a)

Its outputs are rescaled values q̃ = h(Q), see `save_rl.rescaling`. The inputs of a step are

    observation = {"frames": uint8 [B, 84, 84, 4], "action": int32 [B], "reward": float32 [B]}
    state = {"hidden": [B, H], "cell": [B, H]}

with the newest frame last, and the previous action and reward. At the first step of an episode,
state, action and reward are zero.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from save_rl.envs.atari_protocol import SIZE, STACK
from save_rl.errors import require, unknown_name
from save_rl.networks.mlp import MLP
from save_rl.rescaling import rescale
from save_rl.types import Array

KERNELS = ((8, 4), (4, 2), (3, 1))  # size and stride: DQN's torso
REWARD_INPUTS = ("raw", "tanh", "h")  # as in SEED RL; as in Acme; rescaled like the outputs


class Profile(NamedTuple):
    """Layer sizes. dense: before the LSTM, as in SEED RL. stream: of the dueling head."""

    channels: tuple[int, int, int]
    dense: int
    hidden: int
    stream: int


PROFILES = {
    "paper": Profile((32, 64, 64), 512, 512, 512),  # R2D2; 4.36 M parameters for 18 actions
    "small": Profile((8, 16, 16), 64, 64, 64),  # for CPUs and tests; 0.10 M
}


class Convolution(eqx.Module):
    """A convolution without padding, followed by a ReLU; initialised like `Linear`."""

    weight: Array  # [size, size, inputs, outputs]
    bias: Array  # [outputs]
    stride: int = eqx.field(static=True)

    def __init__(self, size: int, stride: int, inputs: int, outputs: int, key: Array):
        shape = (size, size, inputs, outputs)
        fan_in = size * size * inputs
        self.weight = jax.random.truncated_normal(key, -2, 2, shape) / math.sqrt(fan_in)
        self.bias = jnp.zeros(outputs)
        self.stride = stride

    def __call__(self, x: Array) -> Array:
        """Map images `[B, height, width, inputs]` to `[B, height', width', outputs]`."""
        strides = (self.stride, self.stride)
        layout = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, self.weight, strides, "VALID", dimension_numbers=layout)
        return jax.nn.relu(x + self.bias)


class LSTM(eqx.Module):
    """A long short-term memory; the bias of its forget gate starts at 1 (Keras, SEED RL)."""

    input: Array  # [inputs, 4 * hidden]: input, forget, candidate, output
    hidden: Array  # [hidden, 4 * hidden]
    bias: Array  # [4 * hidden]

    def __init__(self, inputs: int, hidden: int, key: Array):
        keys = jax.random.split(key)
        self.input, self.hidden = (
            jax.random.truncated_normal(k, -2, 2, (size, 4 * hidden)) / math.sqrt(size)
            for k, size in zip(keys, (inputs, hidden), strict=True)
        )
        self.bias = jnp.zeros(4 * hidden).at[hidden : 2 * hidden].set(1.0)

    def project(self, x: Array) -> Array:
        """Return `W x + b` `[..., 4 * hidden]`, which many steps can compute in one product."""
        return x @ self.input + self.bias

    def __call__(self, projected: Array, state: dict[str, Array]) -> dict[str, Array]:
        """Return the next state: `c' = σ(f) c + σ(i) tanh(g)`, `h' = σ(o) tanh(c')`, with
        `(i, f, g, o) = W x + b + U h`."""
        i, f, g, o = jnp.split(projected + state["hidden"] @ self.hidden, 4, -1)
        cell = jax.nn.sigmoid(f) * state["cell"] + jax.nn.sigmoid(i) * jnp.tanh(g)
        return {"hidden": jax.nn.sigmoid(o) * jnp.tanh(cell), "cell": cell}


class RecurrentNetwork(eqx.Module):
    """R2D2's network: rescaled values of all actions, and the next recurrent state.

    profile: a name in `PROFILES`. reward_input: scaling of the previous reward, one of
    `REWARD_INPUTS`.
    """

    convolutions: tuple[Convolution, ...]
    dense: MLP
    lstm: LSTM
    value: MLP
    advantage: MLP
    num_actions: int = eqx.field(static=True)
    reward_input: str = eqx.field(static=True)

    def __init__(
        self, num_actions: int, key: Array, profile: str = "paper", reward_input: str = "raw"
    ):
        if profile not in PROFILES:
            raise unknown_name("network profile", profile, PROFILES, "--r2d2.network.profile")
        allowed = f"one of {', '.join(map(repr, REWARD_INPUTS))}"
        require(
            reward_input in REWARD_INPUTS,
            "--r2d2.network.reward-input",
            repr(reward_input),
            allowed,
        )
        sizes = PROFILES[profile]
        *conv_keys, dense, lstm, value, advantage = jax.random.split(key, len(KERNELS) + 4)
        convolutions, side, channels = [], SIZE, STACK
        for (kernel, stride), outputs, k in zip(KERNELS, sizes.channels, conv_keys, strict=True):
            convolutions.append(Convolution(kernel, stride, channels, outputs, k))
            side, channels = (side - kernel) // stride + 1, outputs
        self.convolutions = tuple(convolutions)
        self.dense = MLP((side * side * channels, sizes.dense), dense, activate_last=True)
        self.lstm = LSTM(sizes.dense + 1 + num_actions, sizes.hidden, lstm)
        self.value = MLP((sizes.hidden, sizes.stream, 1), value)
        self.advantage = MLP((sizes.hidden, sizes.stream, num_actions), advantage)
        self.num_actions, self.reward_input = num_actions, reward_input

    def __call__(
        self, observation: dict[str, Array], state: dict[str, Array]
    ) -> tuple[Array, dict[str, Array]]:
        """Return `(q̃ [B, A], the state after this step)`, given the state before it."""
        state = self.lstm(self.project(observation), state)
        return self.head(state["hidden"]), state

    def project(self, observation: dict[str, Array]) -> Array:
        """Return the part of the LSTM's gates that depends on observations only, `[B, 4 * H]`."""
        x = observation["frames"].astype(jnp.float32) / 255
        for convolution in self.convolutions:
            x = convolution(x)
        reward = observation["reward"]
        if self.reward_input == "tanh":
            reward = jnp.tanh(reward)
        elif self.reward_input == "h":
            reward = rescale(reward)
        action = jax.nn.one_hot(observation["action"], self.num_actions)
        seen = [self.dense(x.reshape(len(x), math.prod(x.shape[1:]))), reward[:, None], action]
        return self.lstm.project(jnp.concatenate(seen, -1))

    def head(self, hidden: Array) -> Array:
        """Return the dueling head `v + a - mean(a)`, `[..., H]` to `[..., A]`."""
        advantage = self.advantage(hidden)
        return self.value(hidden) + advantage - jnp.mean(advantage, -1, keepdims=True)


def unroll(
    network: RecurrentNetwork, observations: dict[str, Array], state: dict[str, Array], valid: Array
) -> tuple[Array, dict[str, Array]]:
    """Return `(q̃ [T, B, A], last state)` for observations `[T, B, ...]`, from the initial state.

    valid: `[T, B]`, false at padding, which leaves the state unchanged.
    """
    steps, batch = valid.shape
    # Padding must not reach a gradient, not even as zero times infinity.
    seen = observations | {"reward": jnp.where(valid, observations["reward"], 0.0)}
    flat = jax.tree.map(lambda x: x.reshape(steps * batch, *x.shape[2:]), seen)
    projected = network.project(flat)
    projected = projected.reshape(steps, batch, projected.shape[-1])

    def step(state, inputs):
        x, is_valid = inputs
        new = network.lstm(x, state)
        state = jax.tree.map(lambda n, old: jnp.where(is_valid[:, None], n, old), new, state)
        return state, state["hidden"]

    state, hidden = jax.lax.scan(step, state, (projected, valid))
    return network.head(hidden), state


def stack_frames(frames: Array) -> Array:
    """Return stacks `[T, B, 84, 84, 4]`, newest frame last, from frames `[T + 3, B, 84, 84]`.

    The first three frames precede the first step; they are black at the start of an episode.
    """
    steps = len(frames) - STACK + 1
    return jnp.stack([frames[i : i + steps] for i in range(STACK)], -1)
