"""The convolutional network against loops, and what is taken for an image."""

from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from save_rl.errors import InputError
from save_rl.networks import conv, network_maker
from save_rl.networks.conv import Convolutions, as_pixels, features_of
from save_rl.networks.dictionary import DictNetwork
from save_rl.networks.heads import Batched
from save_rl.networks.mlp import MLPNetwork

ENV = SimpleNamespace(num_actions=4)
KEY = jax.random.PRNGKey(0)
SHOWN = np.random.default_rng(0)


def convolved(x, weights, bias):
    """A layer of 3 x 3 filters `[3, 3, C, F]` and ReLU over one image, pixel by pixel."""
    height, width, _ = x.shape
    out = np.zeros((height - 2, width - 2, len(bias)))
    for row in range(height - 2):
        for column in range(width - 2):
            for i in range(3):
                for j in range(3):
                    out[row, column] += x[row + i, column + j] @ weights[i, j]
            out[row, column] += bias
    return np.maximum(out, 0)


def dense(x, layer):
    return x @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias)


def literally(network, image):
    """The outputs of a network of MinAtar for one image, with any number of convolutions."""
    torso, x = network.one.torso, image.astype(np.float64)
    for layer in torso.convolutions.layers:
        weights = np.asarray(layer.weight, np.float64).reshape(3, 3, x.shape[-1], -1)
        x = convolved(x, weights, np.asarray(layer.bias))
    x = x.reshape(-1)
    for layer in torso.hidden.layers:
        x = np.maximum(dense(x, layer), 0)
    return dense(x, network.one.head), dense(x, network.one.value)[0]


def shape_of(name, shown, value_head=False, **options):
    """A network without numbers."""
    return eqx.filter_eval_shape(network_maker(name, shown, ENV, value_head, **options), KEY)


def filled(name, shown, **options):
    """A network with random parameters; nothing is compiled to draw them."""
    network = shape_of(name, shown, True, **options)
    random = np.random.default_rng(0)

    def fill(x):
        scale = 0.1 if x.ndim == 1 else x.shape[0] ** -0.5
        return jnp.asarray(random.normal(size=x.shape) * scale, jnp.float32)

    return jax.tree.map(lambda x: fill(x) if isinstance(x, jax.ShapeDtypeStruct) else x, network)


def call(network, seen):
    return eqx.filter_jit(lambda network, seen: network(seen))(network, seen)


@pytest.mark.parametrize(
    ("filters", "hidden", "small"), [((16,), (128,), 0), ((3, 5), (6, 7), 20), ((3, 5), (6, 7), 42)]
)
def test_it_computes_what_loops_do(monkeypatch, filters, hidden, small):
    """Images of 6 x 7 pixels, and of 4 x 5 after a layer, however they are convolved."""
    monkeypatch.setattr(conv, "SMALL_IMAGE", small)
    images = SHOWN.normal(size=(2, 6, 7, 3)).astype(np.float32)
    network = filled("conv", images[0], hidden=hidden, filters=filters)
    head, value = call(network, images)
    assert head.shape == (2, 4)
    for image, outputs, number in zip(images, head, value, strict=True):
        expected, expected_number = literally(network, image)
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(number, expected_number, rtol=1e-4, atol=1e-5)


def test_the_default_is_the_network_of_minatar():
    """Young and Tian (2019): 16 filters of 3 x 3, so 8 x 8 x 16 features of 10 x 10 pixels, then
    128 hidden units."""
    shapes = [x.shape for x in jax.tree.leaves(shape_of("auto", np.zeros((10, 10, 4))))]
    assert shapes == [(36, 16), (16,), (1024, 128), (128,), (128, 4), (4,)]
    assert features_of((10, 10, 4), (16,)) == 1024


def test_bytes_are_scaled_and_truth_values_are_numbers():
    scaled = as_pixels(jnp.array([0, 51, 255], jnp.uint8))
    np.testing.assert_allclose(scaled, [0, 0.2, 1], rtol=1e-6)
    np.testing.assert_array_equal(as_pixels(jnp.array([True, False])), [1, 0])
    np.testing.assert_array_equal(as_pixels(jnp.array([3, -4], jnp.int32)), [3, -4])


def test_convolutions_take_any_number_of_leading_axes():
    layers = Convolutions((5, 6, 2), (4,), KEY)
    images = SHOWN.normal(size=(2, 3, 5, 6, 2)).astype(np.float32)
    found = layers(images)
    assert found.shape == (2, 3, 3 * 4 * 4)
    np.testing.assert_allclose(found[1, 2], layers(images[1, 2]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shown", "kind"),
    [
        (np.zeros((5, 5, 1)), Batched),
        (np.zeros((10, 10, 119), bool), Batched),
        (np.zeros((4, 5, 3)), MLPNetwork),  # too small
        (np.zeros((3, 84, 84)), MLPNetwork),  # channels first
        (np.zeros((5, 5)), MLPNetwork),
        (np.zeros(100), MLPNetwork),
        (np.zeros((), np.int32), MLPNetwork),
        (np.zeros((2, 5, 5, 1)), MLPNetwork),
        ({"board": np.zeros((8, 8))}, DictNetwork),
        ({"a": jax.ShapeDtypeStruct((2,), np.float32)}, DictNetwork),
    ],
)
def test_auto_chooses_by_what_is_shown(shown, kind):
    assert isinstance(shape_of("auto", shown), kind)


def test_auto_needs_pixels_for_all_convolutions():
    """A fourth layer of an image of 8 x 8 would have nothing to look at."""
    filters = (4, 4, 4, 4)
    assert isinstance(shape_of("auto", np.zeros((9, 9, 1)), filters=filters), Batched)
    with pytest.raises(InputError, match="has no effect on the network 'mlp'"):
        network_maker("auto", np.zeros((8, 9, 1)), ENV, filters=filters)
    with pytest.raises(InputError, match="at least 9 x 9 pixels"):
        network_maker("conv", np.zeros((8, 9, 1)), ENV, filters=filters)


def test_small_images_can_be_asked_for():
    assert isinstance(shape_of("conv", np.zeros((3, 3, 1))), Batched)


def test_widths_of_the_mlp_are_those_of_its_torso():
    network = shape_of("mlp", np.zeros(7), True, hidden=(9, 8, 5))
    widths = [layer.weight.shape for layer in network.torso.layers]
    assert widths == [(7, 9), (9, 8), (8, 5)]
    heads = [
        [layer.weight.shape for layer in head.layers] for head in (network.head, network.value)
    ]
    assert heads == [[(5, 64), (64, 64), (64, 4)], [(5, 64), (64, 64), (64, 1)]]


DICTIONARY = {
    "picture": np.zeros((6, 5, 2), np.uint8),
    "clue": np.zeros((), np.int32),
    "table": np.zeros((2, 3), np.float32),
    "flags": np.zeros(4, bool),
}


def batch(seed=1, size=3):
    random = np.random.default_rng(seed)
    return {
        name: random.integers(0, 2 if x.dtype == bool else 9, (size, *x.shape)).astype(x.dtype)
        for name, x in DICTIONARY.items()
    }


def test_a_dictionary_is_encoded_entry_by_entry_and_joined_by_name():
    network = filled("dict", DICTIONARY, filters=(3,), hidden=(7,))
    seen = batch()
    head, value = call(network, dict(reversed(seen.items())))
    for i in range(3):
        (layer,) = network.images["picture"].layers
        weights = np.asarray(layer.weight, np.float64).reshape(3, 3, 2, 3)
        features = [
            [seen["clue"][i]],
            seen["flags"][i],
            convolved(seen["picture"][i] / 255, weights, np.asarray(layer.bias)).ravel(),
            seen["table"][i].ravel(),
        ]
        expected = call(network.mlp, jnp.asarray(np.concatenate(features)[None], jnp.float32))
        np.testing.assert_allclose(head[i], expected[0][0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(value[i], expected[1][0], rtol=1e-4, atol=1e-5)


def test_gradients_reach_every_entry():
    """Each entry changes the outputs, and the encoders of images learn."""
    network = filled("dict", DICTIONARY)
    numbers = {name: x.astype(np.float32) + 0.5 for name, x in batch().items()}

    def total(network, seen):
        head, value = network(seen)
        return jnp.sum(head**2) + jnp.sum(value**2)

    learned, rest = eqx.partition(network, eqx.is_array)
    of_network, of_seen = jax.jit(
        jax.grad(lambda learned, seen: total(eqx.combine(learned, rest), seen), (0, 1))
    )(learned, numbers)
    assert all(np.abs(x).sum() > 0 for x in jax.tree.leaves(of_seen))
    assert set(of_seen) == set(DICTIONARY)
    assert all(np.abs(x).sum() > 0 for x in jax.tree.leaves(of_network))


@pytest.mark.parametrize(
    ("shown", "options", "sentence"),
    [
        ({"a": np.zeros(3)}, {"filters": (8,)}, "no effect on the network 'dict' without images"),
        ({"a": {"b": np.zeros(3)}}, {}, "no network for observations that are a dict;"),
        ({3: np.zeros(3)}, {}, "no network for observations that are a dict;"),
        ((np.zeros(3), np.zeros(3)), {}, "no network for observations that are a tuple;"),
        (np.zeros(3), {"mixed": True}, "--mixed-precision: true is not possible"),
    ],
)
def test_what_no_network_takes_is_refused_with_what_to_do(shown, options, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        network_maker("auto", shown, ENV, **options)
    assert "\n" not in str(caught.value)
