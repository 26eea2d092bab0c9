"""The graph network against the literal one, and what must not matter to it: padding, the other
graphs of a batch, the order of nodes."""

from functools import cache
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import save_rl
from save_rl import networks
from save_rl.errors import InputError
from save_rl.networks import network_maker
from save_rl.networks.graph import BUCKET, GPU_BUCKET, GraphNetwork, bucket_of, buckets, trim
from save_rl.networks.mlp import MLPNetwork
from tests.networks.graph_reference import action, reference

FEATURES = 5
BATCH = 3
TOLERANCE = 1e-4  # of the largest number

NORMAL, SUMS, PLAIN = (True, True), (True, False), (False, False)  # norm, mean
# (max_nodes, senders, per_edge, value_head, form)
sizes = pytest.mark.parametrize(
    ("max_nodes", "senders", "per_edge", "value_head", "form"),
    [
        (2, 2, 3, False, NORMAL),
        (5, 1, 1, True, PLAIN),
        (9, 4, 3, True, NORMAL),
        (7, 3, 2, False, SUMS),
        pytest.param(9, 4, 3, True, PLAIN, marks=pytest.mark.slow),
        pytest.param(7, 7, 2, True, NORMAL, marks=pytest.mark.slow),
        pytest.param(9, 9, 2, False, PLAIN, marks=pytest.mark.slow),
    ],
)


@eqx.filter_jit
def _call(network, observation):
    return network(observation)


def call(network, observation):
    """`(head, value)` as NumPy arrays."""
    return jax.tree.map(np.asarray, _call(network, observation))


@cache
def make_network(max_nodes, senders, per_edge=2, value_head=False, form=NORMAL):
    """A network that tells edges apart, and none of whose arrays is zero; fresh biases are."""
    sizes = (FEATURES, max_nodes, senders, per_edge)
    options = (jax.random.key(0), value_head, False, *form)
    return filled(eqx.filter_eval_shape(GraphNetwork, *sizes, *options))


def filled(shapes):
    """Random numbers of the size that a network has use for."""
    rng = np.random.default_rng(2)

    def fill(x):
        scale = 1.1 / np.sqrt(x.shape[0]) if x.ndim > 1 else 0.2
        return jnp.asarray(rng.normal(scale=scale, size=x.shape), jnp.float32)

    return jax.tree.map(fill, shapes)


def make_observation(rng, used):
    """Random nodes; what is in unused rows is far larger than what is in others."""
    nodes = rng.normal(size=(*used.shape, FEATURES)) * np.where(used, 3.0, 100.0)[..., None]
    return {"nodes": nodes.astype(np.float32), "node_mask": used}


def first_nodes(counts, padded):
    return np.arange(padded) < np.asarray(counts)[:, None]


def num_actions(network):
    return network.senders * (network.max_nodes - 1) * network.per_edge


def existing(used, network):
    """`[B, A]` the actions along edges between nodes in use."""
    result = np.zeros((len(used), num_actions(network)), bool)
    for row, mask in zip(result, used, strict=True):
        names = np.flatnonzero(mask)
        for s in names[names < network.senders]:
            for r in names[names != s]:
                start = action(s, r, 0, network.max_nodes, network.per_edge)
                row[start : start + network.per_edge] = True
    return result


def assert_close(actual, desired):
    """Equal, relative to the largest of the numbers."""
    assert np.all(np.isfinite(desired))
    scale = np.max(np.abs(desired), initial=0.1)
    np.testing.assert_allclose(actual, desired, rtol=0, atol=TOLERANCE * scale)


@st.composite
def used_nodes(draw, max_nodes, batch=BATCH):
    """`[batch, max_nodes]`: two nodes at least. Often, but not always, the first ones."""
    rows = []
    for _ in range(batch):
        count = draw(st.integers(2, max_nodes))
        where = draw(st.one_of(st.just(range(max_nodes)), st.permutations(range(max_nodes))))
        rows.append(np.isin(np.arange(max_nodes), where[:count]))
    return np.array(rows)


seeds = st.integers(0, 2**32 - 1)


@sizes
@settings(max_examples=10)
@given(data=st.data(), seed=seeds)
def test_it_is_the_network_of_the_specification(
    max_nodes, senders, per_edge, value_head, form, data, seed
):
    network = make_network(max_nodes, senders, per_edge, value_head, form)
    used = data.draw(used_nodes(max_nodes))
    observation = make_observation(np.random.default_rng(seed), used)
    head, value = call(network, observation)
    assert head.shape == (BATCH, num_actions(network))
    assert head.dtype == np.float32
    assert np.all(np.isfinite(head))  # also where masks will lie
    exists = existing(used, network)
    for row in range(BATCH):
        expected, expected_value = reference(network, observation["nodes"][row], used[row])
        np.testing.assert_array_equal(np.isfinite(expected), exists[row])
        if exists[row].any():
            assert_close(head[row][exists[row]], expected[exists[row]])
        if value_head:
            assert_close(value[row], expected_value)
        else:
            assert value is None
            assert expected_value is None


def test_edges_and_graphs_differ():
    """Otherwise the tolerance would hide mistakes."""
    network = make_network(7, 7, value_head=True)
    observation = make_observation(np.random.default_rng(0), np.ones((BATCH, 7), bool))
    head = call(network, observation)[0].reshape(BATCH, -1, 2)
    noticed = 100 * TOLERANCE * np.max(np.abs(head))
    assert np.all(np.std(head, axis=1) > noticed)
    assert np.all(np.std(np.mean(head, axis=1), axis=0) > noticed)


def test_what_padding_holds_never_matters():
    rng = np.random.default_rng(3)
    network = make_network(12, 4, value_head=True)
    used = first_nodes([6, 2, 5], 12)
    used[2, 1] = False
    observation = make_observation(rng, used)
    head, value = call(network, observation)
    exists = existing(used, network)
    for scale in (0.0, 1.0, 1000.0):
        noise = scale * rng.normal(size=observation["nodes"].shape)
        other = np.where(used[..., None], observation["nodes"], noise).astype(np.float32)
        other_head, other_value = call(network, {"nodes": other, "node_mask": used})
        assert_close(other_head[exists], head[exists])
        assert_close(other_value, value)


@pytest.mark.parametrize("padded", [6, pytest.param(7, marks=pytest.mark.slow)])
def test_more_padding_changes_nothing(padded):
    network = make_network(12, 4, value_head=True)
    observation = make_observation(np.random.default_rng(4), first_nodes([6, 2, 5], 12))
    cut = {"nodes": observation["nodes"][:, :padded], "node_mask": first_nodes([6, 2, 5], padded)}
    exists = existing(observation["node_mask"], network)
    head, value = call(network, observation)
    cut_head, cut_value = call(network, cut)
    assert cut_head.shape == head.shape
    assert_close(cut_head[exists], head[exists])
    assert_close(cut_value, value)


def test_graphs_of_a_batch_do_not_see_each_other():
    rng = np.random.default_rng(5)
    network = make_network(12, 4, value_head=True)
    observation = make_observation(rng, first_nodes([9, 3, 6], 12))
    exists = existing(observation["node_mask"], network)
    head, value = call(network, observation)
    order = np.array([2, 0, 1])
    moved_head, moved_value = call(network, {k: v[order] for k, v in observation.items()})
    assert_close(moved_head[exists[order]], head[order][exists[order]])
    assert_close(moved_value, value[order])
    others = make_observation(rng, first_nodes([4, 12, 2], 12))
    for row in range(BATCH):
        mixed = {k: others[k].copy() for k in others}
        for k in mixed:
            mixed[k][row] = observation[k][row]
        mixed_head, mixed_value = call(network, mixed)
        assert_close(mixed_head[row][exists[row]], head[row][exists[row]])
        assert_close(mixed_value[row], value[row])
    alone, value_alone = call(network, {k: v[:1] for k, v in observation.items()})
    assert_close(alone[0][exists[0]], head[0][exists[0]])
    assert_close(value_alone[0], value[0])


@settings(max_examples=20)
@given(data=st.data(), order=st.permutations(range(7)), seed=seeds)
def test_the_order_of_nodes_orders_edges_and_nothing_else(data, order, seed):
    network = make_network(7, 7, value_head=True)
    used = data.draw(used_nodes(7))
    observation = make_observation(np.random.default_rng(seed), used)
    permuted = {k: v[:, order] for k, v in observation.items()}
    head, value = call(network, observation)
    new_head, new_value = call(network, permuted)
    number = [
        action(order[s], order[r], k, 7, 2) for s in range(7) for r in range(7) if r != s
        for k in range(2)
    ]  # fmt: skip
    exists = existing(permuted["node_mask"], network)
    assert_close(new_head[exists], head[:, np.array(number)][exists])
    assert_close(new_value, value)


@given(
    data=st.data(),
    full=st.integers(1, 60),
    lead=st.sampled_from([(), (1,), (4,), (2, 3)]),
    seed=seeds,
)
def test_trim_keeps_every_node_in_use(data, full, lead, seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, data.draw(st.integers(0, full)) + 1, size=lead)
    used = np.arange(full) < counts[..., None]
    if data.draw(st.booleans()):
        used &= rng.random(used.shape) < 0.5  # holes
    observation = make_observation(rng, used)
    (cut,) = trim(observation)
    size = cut["node_mask"].shape[-1]
    assert set(cut) == {"nodes", "node_mask"}
    assert cut["nodes"].shape == (*lead, size, FEATURES)
    np.testing.assert_array_equal(cut["nodes"], observation["nodes"][..., :size, :])
    np.testing.assert_array_equal(cut["node_mask"], used[..., :size])
    assert not used[..., size:].any()
    assert size == full or size % BUCKET == 0
    needed = np.max(np.flatnonzero(used.reshape(-1, full).any(0)), initial=-1) + 1
    assert networks.graph.sizes(observation).shape == lead
    assert networks.graph.sizes(observation).max() == needed
    assert size < needed + 2 * BUCKET
    for key in observation:  # also through the door for all observations
        np.testing.assert_array_equal(networks.trim(observation)[0][key], cut[key])


@pytest.mark.parametrize("full", [1, 7, 8, 9, 16, 17, 41])
def test_trim_leaves_few_sizes(full):
    nodes = np.zeros((2, full, 1), np.float32)
    left = set()
    for count in range(full + 1):
        (cut,) = trim({"nodes": nodes, "node_mask": first_nodes([count, count // 2], full)})
        left.add(cut["node_mask"].shape[-1])
    assert max(left) == full
    assert len(left) <= -(-full // BUCKET)


@given(full=st.integers(1, 200), gpu=st.booleans(), data=st.data())
def test_a_padded_size_has_room_and_is_one_of_a_few(full, gpu, data):
    nodes = data.draw(st.integers(0, full))
    bucket, size = GPU_BUCKET if gpu else BUCKET, bucket_of(nodes, full, gpu)
    least = 2 * bucket if gpu else bucket
    assert nodes <= size <= full
    assert size == full or size % bucket == 0
    assert size - max(nodes, least) < bucket + bucket // 4
    sizes = buckets(full, gpu)
    assert sizes == sorted(set(sizes))
    assert size in sizes
    assert sizes[-1] == full
    assert len(sizes) <= -(-full // bucket)
    # Graphs of these sizes stay as they are: nothing else is ever compiled.
    assert [bucket_of(each, full, gpu) for each in sizes] == sizes
    example = {"nodes": np.zeros((full, 2), np.float32), "node_mask": np.ones(full, bool)}
    assert networks.padded_sizes(example, gpu) == sizes


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_what_is_cut_off_is_behind_the_size(lead):
    rng = np.random.default_rng(0)
    observation = make_observation(rng, rng.random((*lead, 9)) < 0.5)
    for one in (observation, jax.tree.map(jnp.asarray, observation)):
        cut = networks.cut(one, 4)
        assert set(cut) == {"nodes", "node_mask"}
        np.testing.assert_array_equal(cut["nodes"], observation["nodes"][..., :4, :])
        np.testing.assert_array_equal(cut["node_mask"], observation["node_mask"][..., :4])
    frames = np.zeros((2, 5))
    assert networks.cut(frames, 3) is frames
    assert networks.padded_sizes(frames) == [0]


@pytest.mark.parametrize(
    ("counts", "gpu", "size"),
    [
        ((3, 9), False, 12),
        ((9, 3), False, 12),
        ((3, 9), True, 16),
        ((3, 17), True, 24),
        ((25, 3), True, 32),
        ((33, 3), True, 42),
    ],
)
def test_observations_are_trimmed_alike(counts, gpu, size):
    nodes = np.zeros((1, 42, 1), np.float32)
    seen = [{"nodes": nodes, "node_mask": first_nodes([count], 42)} for count in counts]
    for cut, count in zip(networks.trim(*seen, gpu=gpu), counts, strict=True):
        assert cut["nodes"].shape == (1, size, 1)
        assert cut["node_mask"].shape == (1, size)
        assert cut["node_mask"].sum() == count


def test_other_observations_are_not_trimmed():
    for observation in (np.zeros((2, 3)), {"nodes": np.zeros((2, 3)), "other": np.zeros(2)}):
        assert networks.trim(observation)[0] is observation


@pytest.mark.parametrize(
    ("most", "size", "senders"),
    [
        (9, 12, 18),
        *(  # test_more_padding_changes_nothing has fewer senders than nodes
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [(8, 8, 7), (8, 8, 18), (9, 12, 7), (17, 18, 7), (17, 18, 18)]
        ),
    ],
)
def test_trimmed_observations_give_the_same_numbers(most, size, senders):
    network = make_network(18, senders, value_head=True)
    used = first_nodes([most, 2], 18)
    observation = make_observation(np.random.default_rng(6), used)
    (cut,) = trim(observation)
    assert cut["nodes"].shape[1] == size
    head, value = call(network, observation)
    cut_head, cut_value = call(network, cut)
    assert cut_head.shape == head.shape
    exists = existing(used, network)
    assert_close(cut_head[exists], head[exists])
    assert_close(cut_value, value)


@eqx.filter_jit
@eqx.filter_grad
def gradients(inputs, used, exists):
    """Of all numbers of existing edges, and the values: by arrays of the network, and by nodes."""
    network, nodes = inputs
    head, value = network({"nodes": nodes, "node_mask": used})
    return jnp.sum(jnp.where(exists, head, 0) ** 2) + jnp.sum(value**2)


@pytest.mark.parametrize("fresh", [False, True])
def test_gradients_reach_all_that_is_used(fresh):
    network = make_network(6, 3, value_head=True)
    if fresh:
        network = jax.tree.map(lambda x: x if x.ndim > 1 else jnp.zeros_like(x), network)
    used = first_nodes([6, 3, 2, 0], 6)  # and one graph without nodes
    nodes = make_observation(np.random.default_rng(7), used)["nodes"]
    exists = existing(used, network)
    found = gradients((network, jnp.asarray(nodes)), used, exists)
    of_network, of_nodes = jax.tree.map(np.asarray, found)
    np.testing.assert_array_equal(of_nodes[~used], 0)
    assert np.all(np.isfinite(of_nodes))
    assert np.all(np.any(of_nodes[used] != 0, axis=-1))
    # Edges and graph have no features, so these weights multiply zeros.
    idle = {".edge_encoder.layers[0].weight", ".graph_encoder.layers[0].weight"}
    for path, gradient in jax.tree_util.tree_leaves_with_path(of_network):
        name = jax.tree_util.keystr(path)
        assert np.all(np.isfinite(gradient)), name
        if not fresh:
            assert np.any(gradient != 0) == (name not in idle), name


def graph_shown(nodes=6, features=4):
    return {"nodes": np.zeros((nodes, features), np.float32), "node_mask": np.ones(nodes, bool)}


def made(*arguments, **options):
    """What a maker makes, with shapes in place of arrays."""
    return eqx.filter_eval_shape(network_maker(*arguments, **options), jax.random.key(0))


def test_auto_takes_the_network_that_fits():
    env = SimpleNamespace(num_actions=3 * 5 * 2, actions_per_edge=2)
    network = made("auto", graph_shown(), env)
    assert isinstance(network, GraphNetwork)
    assert (network.max_nodes, network.senders, network.per_edge) == (6, 3, 2)
    assert network.value is None
    assert made("auto", graph_shown(), env, value_head=True).value is not None
    assert isinstance(made("auto", np.zeros((3, 4)), env), MLPNetwork)


@pytest.mark.parametrize(
    ("name", "form"),
    [("auto", NORMAL), ("graph", NORMAL), ("graph-sum", SUMS), ("graph-plain", PLAIN)],
)
def test_the_forms_of_the_graph_network_have_names(name, form):
    env = SimpleNamespace(num_actions=3 * 5 * 2, actions_per_edge=2)
    network = made(name, graph_shown(), env)
    assert (network.norm, network.mean) == form


def test_shapes_are_enough_and_an_edge_is_an_action_by_default():
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), graph_shown())
    network = made("graph", shapes, SimpleNamespace(num_actions=30))
    assert (network.max_nodes, network.senders, network.per_edge) == (6, 6, 1)


@pytest.mark.parametrize(
    ("name", "observation", "actions", "words"),
    [
        ("graph", np.zeros((6, 4)), 30, ["'graph'", "'nodes'", "'node_mask'", "'mlp'"]),
        ("graph", {"nodes": np.zeros((6, 4))}, 30, ["'graph'", "'node_mask'"]),
        ("mlp", graph_shown(), 30, ["'mlp'", "single array", "nodes, node_mask", "'graph' fits"]),
        ("table", graph_shown(), 30, ["'table'", "single array", "'graph' fits"]),
        ("mlp", {"a": np.zeros(2), "b": np.zeros(2)}, 30, ["single array", "a, b", "'dict' fits"]),
        ("dict", graph_shown(), 30, ["'dict'", "nodes, node_mask", "'graph' fits"]),
        ("graph", graph_shown(), 31, ["6 nodes", "actions_per_edge (2)", "31 actions"]),
        ("auto", graph_shown(), 15, ["6 nodes", "15 actions"]),  # edges, but not all numbers
        ("graph", graph_shown(), 70, ["6 nodes", "70 actions"]),  # seven senders
        ("graph", graph_shown(), 0, ["6 nodes", "0 actions"]),
        ("graph", graph_shown(nodes=1), 2, ["'graph'", "2 actions"]),  # no edge at all
        ("forest", graph_shown(), 30, ["'forest'", "auto", "graph"]),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(name, observation, actions, words):
    env = SimpleNamespace(num_actions=actions, actions_per_edge=2)
    with pytest.raises(InputError) as caught:
        network_maker(name, observation, env)
    message = str(caught.value)
    assert message.startswith("--network: ")
    assert message.endswith(".")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_covering():
    env = save_rl.make("covering")
    state = env.reset(0)
    observation = env.observe(state)
    network = filled(made("auto", observation, env))
    assert isinstance(network, GraphNetwork)
    assert (network.max_nodes, network.senders, network.per_edge) == (env.max_nodes, 7, 30)
    assert num_actions(network) == env.num_actions
    batch = {k: v[None] for k, v in observation.items()}
    head, _ = call(network, batch)
    short, _ = call(network, trim(batch)[0])
    allowed = env.action_mask(state)
    assert head.shape == short.shape == (1, env.num_actions)
    assert not np.any(allowed & ~existing(batch["node_mask"], network)[0])
    assert_close(short[0][allowed], head[0][allowed])
    # The environment numbers actions as the network does.
    for number in np.random.default_rng(0).integers(env.num_actions, size=200):
        sender, receiver, offset, sticky = env.decode(int(number))
        assert action(sender, receiver, 2 * offset + sticky, env.max_nodes, 30) == number


def test_mixed_precision_is_near_and_leaves_results_in_single_precision():
    exact = make_network(12, 4, 2, True)
    shapes = eqx.filter_eval_shape(
        GraphNetwork, FEATURES, 12, 4, 2, jax.random.key(0), True, mixed=True
    )
    mixed = jax.tree.unflatten(jax.tree.structure(shapes), jax.tree.leaves(exact))
    used = first_nodes([12, 9, 5], 12)
    observation = make_observation(np.random.default_rng(0), used)
    (head, value), (rough, rough_value) = call(exact, observation), call(mixed, observation)
    assert rough.dtype == rough_value.dtype == np.float32
    here = existing(used, exact)
    error = np.sqrt(np.mean((head - rough)[here] ** 2)) / np.std(head[here])
    assert 1e-4 < error < 0.1
    assert np.abs(value - rough_value).max() / np.abs(value).max() < 0.1
