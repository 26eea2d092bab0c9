"""The kernels of graph networks, interpreted without a GPU: the same values and gradients as the
network that XLA compiles, and rows of any number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from save_rl.networks import graph, graph_fused
from save_rl.networks.fused import RowFunction, apply_rows
from tests.networks.test_graph import NORMAL, PLAIN, SUMS, first_nodes, make_network

WIDTH = 16


def two_layers(affine, x, y, scale):
    """Products that share inputs, weights and biases, and one with a row's own factor."""
    hidden = jnp.tanh(affine([(x, 0), (y, 1)], 0))
    return affine([(hidden, 2), (x, 1)], 1) * scale, affine([(hidden, 0)]) + y


def literally(arrays, weights, biases):
    x, y, scale = arrays
    w, b = weights.reshape(-1, WIDTH, WIDTH), biases.reshape(-1, WIDTH)
    hidden = jnp.tanh(x @ w[0] + y @ w[1] + b[0])
    return (hidden @ w[2] + x @ w[1] + b[1]) * scale, hidden @ w[0] + y


@pytest.mark.parametrize("rows", [1, 16, 37])  # tiles have 16 and 8
def test_a_function_of_rows_has_the_values_and_gradients_of_its_definition(rows):
    rng = np.random.default_rng(rows)

    def random(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    seeds = 2
    arrays = [random(seeds, rows, n) for n in (WIDTH, WIDTH, 1)]
    weights, biases = random(seeds, 3 * WIDTH, WIDTH) / 4, random(seeds, 2 * WIDTH)
    out = [random(seeds, rows, WIDTH) for _ in range(2)]
    function = RowFunction(
        two_layers, WIDTH, jnp.float32, constants=1, interpret=True, tile=(16, 8)
    )

    def loss(run, x, y, weights, biases):
        found = jax.vmap(run)((x, y, arrays[2]), weights, biases)
        return sum(jnp.sum(jnp.sin(a) * b) for a, b in zip(found, out, strict=True))

    given = (*arrays[:2], weights, biases)
    fused, plain = (
        jax.value_and_grad(lambda *given, run=run: loss(run, *given), (0, 1, 2, 3))(*given)
        for run in (lambda *x: apply_rows(function, *x), literally)
    )
    for a, b in zip(jax.tree.leaves(fused), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()))


@pytest.mark.slow  # whole networks of kernels take long to emulate
@pytest.mark.parametrize("form", [NORMAL, PLAIN, SUMS])
def test_values_and_gradients_of_a_network(form):
    network = make_network(9, 4, 3, True, form)
    rng = np.random.default_rng(0)
    nodes = jnp.asarray(rng.normal(size=(3, 9, 5)), jnp.float32)
    used = first_nodes([9, 4, 1], 9)
    used[0, 5] = False  # a gap
    factor = rng.normal(size=(3, 4 * 8 * 3)).astype(np.float32)

    def loss(network, evaluate):
        head, value = evaluate(network)
        return jnp.sum(head * factor) + jnp.sum(value), (head, value)

    fused, plain = (
        jax.jit(jax.value_and_grad(lambda n, run=run: loss(n, run), has_aux=True))(network)
        for run in (
            lambda n: graph_fused.evaluate(n, nodes, used, interpret=True),
            lambda n: n({"nodes": nodes, "node_mask": used}),
        )
    )
    for a, b in zip(jax.tree.leaves(fused), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * float(np.abs(b).max()))


@pytest.mark.slow
def test_mixed_precision_is_off_by_the_rounding_of_bfloat16():
    network = make_network(9, 4, 3, True, NORMAL)
    mixed = jax.tree.unflatten(
        jax.tree.structure(graph.GraphNetwork(5, 9, 4, 3, jax.random.key(0), True, mixed=True)),
        jax.tree.leaves(network),
    )
    nodes = jnp.asarray(np.random.default_rng(1).normal(size=(3, 9, 5)), jnp.float32)
    used = first_nodes([9, 4, 6], 9)
    exact, _ = network({"nodes": nodes, "node_mask": used})
    rounded, _ = graph_fused.evaluate(mixed, nodes, used, interpret=True)
    error = np.abs(rounded - exact).max() / np.abs(exact).max()
    assert 1e-5 < error < 0.05


def test_kernels_are_for_gpus_alone(monkeypatch):
    network = make_network(5, 1, 1, True, PLAIN)
    seen = {"nodes": jnp.ones((1, 5, 5)), "node_mask": first_nodes([3], 5)}
    used = []
    monkeypatch.setattr(graph_fused, "evaluate", lambda *_: used.append(1))
    network(seen)
    assert not used
    monkeypatch.setattr(graph, "runs_on_gpu", lambda: True)
    network(seen)
    assert used == [1]
    monkeypatch.setattr(graph, "gpu_kernels", lambda: None)  # a JAX without them
    head, _ = network(seen)
    assert head.shape == (1, 4)
    assert used == [1]
