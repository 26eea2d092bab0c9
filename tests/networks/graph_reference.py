"""The graph network of docs/construction/training.md#the-graph-network (Bapst et al. 2019,
supplement), written out literally in float64: the tests' oracle.

One graph at a time, and only the nodes that exist. Every step computes every edge and every node
from whole concatenations; nothing is factored, shared or skipped.
"""

import jax
import numpy as np

STEPS = 3


def weights_of(network):
    """The same network with float64 NumPy arrays, to read weights from."""
    return jax.tree.map(lambda x: np.asarray(x, np.float64), network)


def action(sender, receiver, number, max_nodes, per_edge):
    """The number of an action; nobody sends to itself."""
    edge = sender * (max_nodes - 1) + (receiver - 1 if receiver > sender else receiver)
    return edge * per_edge + number


def mlp(layers, x, activate_last):
    for i, layer in enumerate(layers):
        x = x @ layer.weight + layer.bias
        if activate_last or i + 1 < len(layers):
            x = np.maximum(x, 0)
    return x


def hidden(module, *parts):
    """A module of the graph network: every layer has a ReLU."""
    assert len(module.layers) == 2
    return mlp(module.layers, np.concatenate(parts), activate_last=True)


def output(module, *parts):
    """Two hidden layers, and a linear one for the numbers."""
    assert len(module.layers) == 3
    return mlp(module.layers, np.concatenate(parts), activate_last=False)


def sigmoid(x):
    return (1 + np.tanh(x / 2)) / 2


def gru(unit, x, h):
    """Update gate z, reset gate r, candidate c."""
    of_x = np.split(unit.input, 3, axis=1)
    of_h = [*np.split(unit.hidden, 2, axis=1), unit.candidate]
    bias = np.split(unit.bias, 3)
    z = sigmoid(x @ of_x[0] + h @ of_h[0] + bias[0])
    r = sigmoid(x @ of_x[1] + h @ of_h[1] + bias[1])
    c = np.tanh(x @ of_x[2] + (r * h) @ of_h[2] + bias[2])
    return (1 - z) * h + z * c


def normal(weights, x):
    """Layer normalisation, if the network normalises."""
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) if weights.norm else x


def pooled(weights, vectors, size):
    """Their mean, or their sum if the network adds up; zero where there are none."""
    result = np.zeros(size)
    for vector in vectors:
        result = result + vector
    return result / max(len(vectors), 1) if weights.mean else result


def run(weights, objects):
    """`({(sender, receiver): numbers}, value or None)` of a graph with just these nodes."""
    nodes = range(len(objects))
    edges = [(s, r) for s in nodes for r in nodes if s != r]
    nothing = np.zeros(1)

    def core(module, *parts):
        return normal(weights, hidden(module, *parts))

    # e = E(o); o_0 = o'_0 = e.
    node = {i: core(weights.node_encoder, objects[i]) for i in nodes}
    edge = {e: core(weights.edge_encoder, nothing) for e in edges}
    graph = core(weights.graph_encoder, nothing)
    node_core, edge_core, graph_core = dict(node), dict(edge), graph
    node_state, edge_state, graph_state = dict(node), dict(edge), graph
    size = len(graph)

    for _ in range(STEPS):
        # The core sees e, its last output and the last memory.
        node_in = {i: np.concatenate([node[i], node_core[i], node_state[i]]) for i in nodes}
        edge_in = {e: np.concatenate([edge[e], edge_core[e], edge_state[e]]) for e in edges}
        graph_in = np.concatenate([graph, graph_core, graph_state])
        # o_n = G([o, o_(n-1), o'_(n-1)])
        edge_core = {
            (s, r): core(weights.edge_update, edge_in[s, r], node_in[s], node_in[r], graph_in)
            for s, r in edges
        }
        incoming = {
            i: pooled(weights, [edge_core[s, r] for s, r in edges if r == i], size) for i in nodes
        }
        node_core = {i: core(weights.node_update, node_in[i], incoming[i], graph_in) for i in nodes}
        all_edges = pooled(weights, edge_core.values(), size)
        all_nodes = pooled(weights, node_core.values(), size)
        graph_core = core(weights.graph_update, graph_in, all_edges, all_nodes)
        # o'_n = R(o_n), with the last memory as hidden state.
        node_state = {i: gru(weights.node_memory, node_core[i], node_state[i]) for i in nodes}
        edge_state = {e: gru(weights.edge_memory, edge_core[e], edge_state[e]) for e in edges}
        graph_state = gru(weights.graph_memory, graph_core, graph_state)

    # d = D(o'_n); q = M([edge, graph])
    decoded = {e: hidden(weights.edge_decoder, edge_state[e]) for e in edges}
    decoded_graph = hidden(weights.graph_decoder, graph_state)
    numbers = {e: output(weights.readout, decoded[e], decoded_graph) for e in edges}
    value = None if weights.value is None else output(weights.value, decoded_graph)[0]
    return numbers, value


def reference(network, nodes, used):
    """`(head [A], value or None)` of one graph; NaN for actions along edges that do not exist.

    nodes: `[N, F]`, used: `[N]`. Nodes that are not used are thrown away at once.
    """
    weights = weights_of(network)
    max_nodes, senders, per_edge = network.max_nodes, network.senders, network.per_edge
    names = np.flatnonzero(used)
    numbers, value = run(weights, np.asarray(nodes, np.float64)[names])
    head = np.full(senders * (max_nodes - 1) * per_edge, np.nan)
    for (s, r), of_edge in numbers.items():
        sender, receiver = names[s], names[r]
        if sender < senders:
            for number in range(per_edge):
                head[action(sender, receiver, number, max_nodes, per_edge)] = of_edge[number]
    return head, value
