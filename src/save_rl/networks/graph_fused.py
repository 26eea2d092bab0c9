"""The graph network of `networks.graph` on a GPU: the same function in half as many kernels.

The updates of nodes and of the graph, with their recurrent states, are one kernel each, and so are
the update of edges, that of their recurrent states, and the read-out (`networks.fused`). What a
step needs of nodes and graph, multiplied by the weights of the edge and node update, comes out of
the kernels of the step before. `tests/networks/test_graph_fused.py` compares values and gradients
with `networks.graph`.
"""

from typing import Any

import jax
import jax.numpy as jnp

from save_rl.networks.fused import RowFunction, apply_rows
from save_rl.networks.mlp import NORM_EPSILON
from save_rl.types import Array

_FEW = (16, 16)  # rows per program, where there are few


def evaluate(network: Any, nodes: Array, used: Array, interpret: bool = False) -> Any:
    """Return `(head [B, A], value [B] or None)` of a `GraphNetwork`.

    nodes: `[B, N, F]`. used: `[B, N]`. interpret: without a GPU, for tests.
    """
    n, width, kind = network, network.latent, nodes.dtype
    batch, count, _ = nodes.shape
    senders = min(n.senders, count)
    of_edges = jnp.bfloat16 if n.mixed else kind
    exists = used[:, :, None] & used[:, None, :] & ~jnp.eye(count, dtype=bool)
    exists, is_used = (x.reshape(-1, 1).astype(kind) for x in (exists, used))
    of_nodes = jnp.sum(used, 1, dtype=kind)[:, None] if n.mean else jnp.ones((1, 1))
    others = of_nodes - 1 if n.mean else of_nodes  # whose edges a node receives
    nothing = jnp.zeros((1,), kind)

    def rows(x: Array) -> Array:
        return x.reshape(-1, width)

    def by_row(body: Any, result: Any, constants: int = 0, **sizes: Any) -> RowFunction:
        return RowFunction(body, width, result, constants, interpret, **sizes)

    update_edge = by_row(_EDGE_UPDATES[n.norm], of_edges, 1)
    remember = by_row(_remember, of_edges)
    update_node = by_row(_NODE_UPDATES[n.norm], kind, 1, tile=_FEW)
    update_graph = by_row(_GRAPH_UPDATES[n.norm], kind, tile=_FEW)
    edge_weights, memory_weights, node_weights, graph_weights = _weights(n, of_edges)

    node = node_core = node_state = rows(n.normal(n.node_encoder(nodes))) * is_used
    edge = n.normal(n.edge_encoder(nothing))
    edge_core = edge_state = jnp.broadcast_to(edge.astype(of_edges), (len(exists), width))
    graph = n.normal(n.graph_encoder(jnp.broadcast_to(nothing, (batch, 1))))
    graph_core = graph_state = graph
    sender, receiver, to_edges, to_nodes, same = _first(n, node, graph, edge)
    for step in range(n.steps):
        before = sender.reshape(batch, count, 1, width) + receiver.reshape(batch, 1, count, width)
        before = before + (to_edges + same)[:, None, None]
        (edge_core,) = apply_rows(
            update_edge, (rows(before), edge_core, edge_state, exists), *edge_weights
        )
        remembered = [edge_core, edge_state]
        if step + 1 == n.steps:  # only what is read out
            shape = batch, count, count, width
            remembered = [rows(x.reshape(shape)[:, :senders]) for x in remembered]
        (edge_state,) = apply_rows(remember, remembered, *memory_weights)
        incoming = jnp.sum(edge_core.reshape(batch, count, count, width), 1, dtype=kind)
        incoming = incoming / jnp.maximum(others, 1)[..., None]
        before = jnp.broadcast_to(to_nodes[:, None], (batch, count, width))
        node_core, node_state, sender, receiver = apply_rows(
            update_node,
            (rows(before), node, node_core, node_state, rows(incoming), is_used),
            *node_weights,
        )
        pooled = [
            jnp.sum(x.reshape(batch, count, width), 1) / jnp.maximum(of_nodes, 1)
            for x in (incoming, node_core)
        ]
        graph_core, graph_state, to_edges, to_nodes = apply_rows(
            update_graph, (graph, graph_core, graph_state, *pooled), *graph_weights
        )
    graph = n.graph_decoder(graph_state)
    outputs = n.readout.layers[0]
    before = (graph @ outputs.weight[width:] + outputs.bias)[:, None]
    before = jnp.broadcast_to(before, (batch, senders * count, width))
    (head,) = apply_rows(
        by_row(_read_edges, kind), (rows(before), edge_state), *_read_out_weights(n, of_edges)
    )
    head = head[:, : n.per_edge].reshape(batch, senders, count, n.per_edge)
    return n.by_action(head), None if n.value is None else n.value(graph)[:, 0]


def _first(network: Any, node: Array, graph: Array, edge: Array) -> Any:
    """Return what the first step needs of nodes and graph, whose encoding, core and memory are
    still equal, and what all steps need of the encoded edges, which are all equal."""
    into_edges, into_nodes = network.edge_update.layers[0], network.node_update.layers[0]
    of_edge, *others = jnp.split(into_edges.weight, 4)
    of_sender, of_receiver, of_graph, of_nodes = (
        sum(jnp.split(x, 3)) for x in (*others, into_nodes.weight[-3 * network.latent :])
    )
    sender, receiver = jnp.split(node @ jnp.concatenate([of_sender, of_receiver], 1), 2, 1)
    to_edges, to_nodes = jnp.split(graph @ jnp.concatenate([of_graph, of_nodes], 1), 2, 1)
    same = edge @ of_edge[: network.latent]
    return sender, receiver, to_edges + into_edges.bias, to_nodes + into_nodes.bias, same


def _weights(network: Any, of_edges: Any) -> list[tuple[Array, Array]]:
    """Return the weights and biases of the updates of edges, their memory, nodes and graph."""
    n, width = network, network.latent

    def parts(weight: Array) -> list[Array]:
        """Return a weight `[k * 64, m * 64]` as k * m squares, those of the first rows first."""
        return [
            square
            for rows in jnp.split(weight, weight.shape[0] // width)
            for square in jnp.split(rows, weight.shape[1] // width, 1)
        ]

    def memory(gru: Any) -> list[Array]:
        return [*parts(gru.input), *parts(gru.hidden), gru.candidate]

    of_edge, of_sender, of_receiver, of_graph = jnp.split(n.edge_update.layers[0].weight, 4)
    into_nodes = n.node_update.layers[0]
    wide = 3 * width
    weights = (
        [*parts(of_edge)[1:], n.edge_update.layers[1].weight],
        memory(n.edge_memory),
        [
            *parts(into_nodes.weight[:-wide]), n.node_update.layers[1].weight,
            *memory(n.node_memory), *parts(of_sender), *parts(of_receiver),
        ],
        [
            *parts(n.graph_update.layers[0].weight), n.graph_update.layers[1].weight,
            *memory(n.graph_memory), *parts(of_graph), *parts(into_nodes.weight[-wide:]),
        ],
    )  # fmt: skip
    biases = (
        [n.edge_update.layers[1].bias],
        [n.edge_memory.bias],
        [n.node_update.layers[1].bias, n.node_memory.bias],
        [
            *(layer.bias for layer in n.graph_update.layers), n.graph_memory.bias,
            n.edge_update.layers[0].bias, into_nodes.bias,
        ],
    )  # fmt: skip
    kinds = of_edges, of_edges, into_nodes.weight.dtype, into_nodes.weight.dtype
    return [
        (jnp.concatenate(w).astype(kind), jnp.concatenate(b))
        for w, b, kind in zip(weights, biases, kinds, strict=True)
    ]


def _read_out_weights(network: Any, kind: Any) -> tuple[Array, Array]:
    """Return the weights and biases of `_read_edges`."""
    decoder, (first, second, third) = network.edge_decoder.layers, network.readout.layers
    missing = network.latent - network.per_edge
    weights = [
        *(layer.weight for layer in decoder), first.weight[: network.latent], second.weight,
        jnp.pad(third.weight, ((0, 0), (0, missing))),
    ]  # fmt: skip
    biases = [*(layer.bias for layer in decoder), second.bias, jnp.pad(third.bias, (0, missing))]
    return jnp.concatenate(weights).astype(kind), jnp.concatenate(biases)


def _read_edges(affine: Any, before: Array, edge: Array) -> tuple[Array]:
    """Decode a recurrent state and read out its Q-values; before: what comes from the graph."""
    x = jax.nn.relu(affine([(edge, 0)], 0))
    x = jax.nn.relu(affine([(x, 1)], 1))
    x = jax.nn.relu(before + affine([(x, 2)]))
    x = jax.nn.relu(affine([(x, 3)], 2))
    return (affine([(x, 4)], 3),)


def _remember(affine: Any, core: Array, state: Array) -> tuple[Array]:
    """Return the new recurrent state of an edge."""
    return (_gru(affine, core, state, 0, 0),)


def _gru(affine: Any, x: Array, h: Array, weight: int, bias: int) -> Array:
    """Return the new state of a `GRU` whose weights and biases start at these numbers."""
    update = jax.nn.sigmoid(affine([(x, weight), (h, weight + 3)], bias))
    reset = jax.nn.sigmoid(affine([(x, weight + 1), (h, weight + 4)], bias + 1))
    candidate = jnp.tanh(affine([(x, weight + 2), (reset * h, weight + 5)], bias + 2))
    return h + update * (candidate - h)


def _updates(norm: bool) -> tuple[Any, Any, Any]:
    """Return the updates of edges, nodes and graph."""

    def normal(x: Array) -> Array:
        if not norm:
            return x
        x = x - jnp.mean(x, -1, keepdims=True)
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + NORM_EPSILON)

    def edge_update(affine: Any, before: Array, core: Array, state: Array, exists: Array) -> Any:
        hidden = jax.nn.relu(before + affine([(core, 0), (state, 1)]))
        return (normal(jax.nn.relu(affine([(hidden, 2)], 0))) * exists,)

    def node_update(
        affine: Any, before: Array, node: Array, core: Array, state: Array, incoming: Array,
        used: Array,
    ) -> Any:  # fmt: skip
        pairs = [(node, 0), (core, 1), (state, 2), (incoming, 3)]
        hidden = jax.nn.relu(before + affine(pairs))
        core = normal(jax.nn.relu(affine([(hidden, 4)], 0))) * used
        state = _gru(affine, core, state, 5, 1)
        sender = affine([(node, 11), (core, 12), (state, 13)])
        receiver = affine([(node, 14), (core, 15), (state, 16)])
        return core, state, sender, receiver

    def graph_update(
        affine: Any, graph: Array, core: Array, state: Array, edges: Array, nodes: Array
    ) -> Any:
        pairs = [(graph, 0), (core, 1), (state, 2), (edges, 3), (nodes, 4)]
        core = normal(jax.nn.relu(affine([(jax.nn.relu(affine(pairs, 0)), 5)], 1)))
        state = _gru(affine, core, state, 6, 2)
        to_edges = affine([(graph, 12), (core, 13), (state, 14)], 5)
        to_nodes = affine([(graph, 15), (core, 16), (state, 17)], 6)
        return core, state, to_edges, to_nodes

    return edge_update, node_update, graph_update


_EDGE_UPDATES, _NODE_UPDATES, _GRAPH_UPDATES = zip(_updates(False), _updates(True), strict=True)
