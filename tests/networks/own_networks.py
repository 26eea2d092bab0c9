"""Networks and optimizers of somebody, for `tests.networks.own_networks:name`: some good, some
not."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from save_rl.networks import with_heads


class Torso(eqx.Module):
    """Layers in a list; numbers of NumPy in double precision, which are learned; whole numbers,
    which are not."""

    layers: list
    scale: np.ndarray
    order: jax.Array

    def __init__(self, features, width, key):
        first, second = jax.random.split(key)
        self.layers = [
            eqx.nn.Linear(features, width, key=first),
            eqx.nn.Linear(width, width, key=second),
        ]
        self.scale = np.full(features, 2.0)
        self.order = jnp.arange(features)[::-1]

    def __call__(self, observation):
        parts = [jnp.ravel(x).astype(jnp.float32) for x in jax.tree.leaves(observation)]
        x = (jnp.concatenate(parts) * self.scale)[self.order]
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return x


def small(observation, num_actions, value_head, key):
    """Takes any tree of arrays."""
    torso_key, head_key = jax.random.split(key)
    features = sum(np.size(x) for x in jax.tree.leaves(observation))
    torso = Torso(features, 32, torso_key)
    return with_heads(torso, 32, num_actions, value_head, head_key)


class Plain(eqx.Module):
    weight: jax.Array
    output: object = eqx.field(static=True)

    def __call__(self, observation):
        return self.output(jnp.ravel(observation) @ self.weight)


def network(output):
    """A factory of networks that say what `output` makes of a product with weights."""

    def factory(observation, num_actions, value_head, key):
        return Plain(jax.random.normal(key, (observation.size, num_actions)), output)

    return factory


good = network(lambda x: x)
pair = network(lambda x: (x, x[0]))
too_short = network(lambda x: x[:1])
whole = network(lambda x: x.astype(jnp.int32))
a_list = network(lambda x: [x])
infinite = network(lambda x: x / 0)
half = network(lambda x: x.astype(jnp.float16))


def branches(observation, num_actions, value_head, key):
    return Plain(jnp.zeros((observation.size, num_actions)), lambda x: x if x[0] > 0 else -x)


def _looks(x):
    return x if x[0] > 0 else -x


looks = network(_looks)


def raises(observation, num_actions, value_head, key):
    raise KeyError("depth")


def takes_less(observation, num_actions):
    return None


def nothing(observation, num_actions, value_head, key):
    return None


def function(observation, num_actions, value_head, key):
    return lambda observation: jnp.zeros(num_actions)


class Ordinary:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, observation):
        return self.weight


def ordinary(observation, num_actions, value_head, key):
    return Ordinary(jnp.zeros(num_actions))


_DRAWN = np.random.default_rng(0)


def lucky(observation, num_actions, value_head, key):
    weight = jnp.asarray(_DRAWN.normal(size=(observation.size, num_actions)), jnp.float32)
    return Plain(weight, _same)


def _same(x):
    return x


def counts_keys(observation, num_actions, value_head, key):
    return Plain(jnp.zeros((observation.size, num_actions + int(key[0]))), _same)


def complex_one(observation, num_actions, value_head, key):
    return Plain(jnp.zeros((observation.size, num_actions), jnp.complex64), jnp.real)


not_a_factory = 3


def sgd(learning_rate):
    return optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(learning_rate, momentum=0.9))


def decays(learning_rate):
    """Needs the parameters."""
    return optax.adamw(learning_rate, weight_decay=0.1)


def breaks(learning_rate):
    return optax.sgd(learning_rate / 0)


def no_optimizer(learning_rate):
    return learning_rate


def fails(learning_rate):
    def update(gradient, state, params):
        raise ValueError("no update")

    return optax.GradientTransformation(lambda params: (), update)


def forgets(learning_rate):
    return optax.GradientTransformation(
        lambda params: jnp.zeros(3), lambda gradient, state, params: (gradient, jnp.zeros(2))
    )


def explodes(learning_rate):
    def update(gradient, state, params):
        return jax.tree.map(lambda x: x / 0, gradient), state

    return optax.GradientTransformation(lambda params: (), update)
