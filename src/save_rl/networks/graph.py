"""The encode-process-decode graph network of the Construction agents, with three core steps
(Bapst et al. 2019, supplement; Battaglia et al. 2018).

A state is a fully connected graph of `N` padded nodes: `nodes [B, N, F]`, `node_mask [B, N]`. Edges
and the graph have no input features. An action is an edge and one of a few numbers (30 in
Construction), with edges ordered by sender, so Q-values are read out from the edges:

    action = (sender * (N - 1) + receiver - (receiver > sender)) * per_edge + number

If only the first few nodes can be senders of a valid action, the last recurrent update and the
read-out are computed for their edges only. The first layer of the edge update takes edge, sender,
receiver and graph; it is computed as a sum of four products, so nodes and graph are multiplied
once, not once per edge. All edges start equal, so they are a single vector until the first update.
None of this changes the function; `tests/networks/graph_reference.py` computes it literally. On a
GPU `networks.graph_fused` computes it in fewer kernels.

The outputs of all encoders and core updates are normalised (layer normalisation, without learned
scales), and edges and nodes are averaged. The `plain` form does neither and adds them up, as the
papers describe it; its activations grow with the size of the graph and from step to step
(docs/construction/training.md#the-graph-network).

With mixed precision, edges are stored and multiplied in bfloat16; nodes, graph, sums and outputs
are float32.
"""

import math
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from save_rl.networks.mlp import MLP, NORM_EPSILON
from save_rl.types import Array

LATENT = 64  # Bapst et al. 2019, supplement; of nodes, edges, graph and recurrent states
STEPS = 3  # n_rec
BUCKET = 4  # on CPUs, graphs are padded to a multiple of this many nodes
GPU_BUCKET = 8  # on GPUs, of this many, and at least two of them: each size is another program


class GRU(eqx.Module):
    """A gated recurrent unit; input and hidden state may broadcast against each other."""

    input: Array  # [inputs, 3 * hidden]: update, reset, candidate
    hidden: Array  # [hidden, 2 * hidden]: update, reset
    candidate: Array  # [hidden, hidden]
    bias: Array  # [3 * hidden]

    def __init__(self, inputs: int, hidden: int, key: Array):
        keys = jax.random.split(key, 3)
        shapes = ((inputs, 3 * hidden), (hidden, 2 * hidden), (hidden, hidden))
        self.input, self.hidden, self.candidate = (
            jax.random.truncated_normal(k, -2, 2, shape) / math.sqrt(shape[0])
            for k, shape in zip(keys, shapes, strict=True)
        )
        self.bias = jnp.zeros(3 * hidden)

    def __call__(self, x: Array, h: Array) -> Array:
        """Return the new hidden state `(1 - z) h + z tanh(W x + U (r h) + b)`."""
        size = h.shape[-1]
        from_x = _product(x, self.input) + self.bias.astype(x.dtype)
        gates = jax.nn.sigmoid(from_x[..., : 2 * size] + _product(h, self.hidden))
        update, reset = gates[..., :size], gates[..., size:]
        candidate = jnp.tanh(from_x[..., 2 * size :] + _product(reset * h, self.candidate))
        return h + update * (candidate - h)


def _product(x: Array, weight: Array) -> Array:
    """Return `x @ weight` as a product of two matrices, in the precision of `x`.

    Its gradient is faster than that of a product with more axes.
    """
    flat = x.reshape(-1, x.shape[-1]) @ weight.astype(x.dtype)
    return flat.reshape(*x.shape[:-1], weight.shape[-1])


class GraphNetwork(eqx.Module):
    """A network with one output per action, and optionally a state value.

    features: per node. max_nodes: padded nodes `N`, which define the action numbers. senders: only
    this many first nodes can be senders of an action. per_edge: actions per edge. mixed: store
    edges in bfloat16. norm: normalise. mean: average, instead of adding up.
    """

    node_encoder: MLP
    edge_encoder: MLP
    graph_encoder: MLP
    edge_update: MLP
    node_update: MLP
    graph_update: MLP
    node_memory: GRU
    edge_memory: GRU
    graph_memory: GRU
    edge_decoder: MLP
    graph_decoder: MLP
    readout: MLP
    value: MLP | None
    max_nodes: int = eqx.field(static=True)
    senders: int = eqx.field(static=True)
    per_edge: int = eqx.field(static=True)
    mixed: bool = eqx.field(static=True)
    norm: bool = eqx.field(static=True)
    mean: bool = eqx.field(static=True)
    latent, steps = LATENT, STEPS

    def __init__(
        self, features: int, max_nodes: int, senders: int, per_edge: int, key: Array,
        value_head: bool = False, mixed: bool = False, norm: bool = True, mean: bool = True,
    ):  # fmt: skip
        keys = iter(jax.random.split(key, 13))
        wide = 3 * LATENT  # encoded, last core output, last memory

        def mlp(inputs: int) -> MLP:
            return MLP((inputs, LATENT, LATENT), next(keys), activate_last=True)

        self.node_encoder, self.edge_encoder, self.graph_encoder = mlp(features), mlp(1), mlp(1)
        self.edge_update = mlp(4 * wide)  # edge, sender, receiver, graph
        self.node_update = mlp(wide + LATENT + wide)  # node, incoming edges, graph
        self.graph_update = mlp(wide + 2 * LATENT)  # graph, edges, nodes
        self.node_memory, self.edge_memory, self.graph_memory = (
            GRU(LATENT, LATENT, next(keys)) for _ in range(3)
        )
        self.edge_decoder, self.graph_decoder = mlp(LATENT), mlp(LATENT)
        self.readout = MLP((2 * LATENT, LATENT, LATENT, per_edge), next(keys))
        self.value = MLP((LATENT, LATENT, LATENT, 1), next(keys)) if value_head else None
        self.max_nodes, self.senders, self.per_edge = max_nodes, senders, per_edge
        self.mixed, self.norm, self.mean = mixed, norm, mean

    def __call__(self, observation: dict[str, Array]) -> tuple[Array, Array | None]:
        """Return `(head [B, A], value [B] or None)`; padding nodes are ignored.

        Actions along missing edges get an output too; the caller must mask them.
        """
        nodes, used = observation["nodes"], observation["node_mask"]
        if self.per_edge <= LATENT and runs_on_gpu() and (kernels := gpu_kernels()) is not None:
            return kernels.evaluate(self, nodes, used)
        batch, count, _ = nodes.shape
        exists = used[:, :, None] & used[:, None, :] & ~jnp.eye(count, dtype=bool)
        weight = used[..., None].astype(nodes.dtype)
        of_edges = jnp.bfloat16 if self.mixed else nodes.dtype
        edge_weight = exists[..., None].astype(of_edges)
        nothing = jnp.zeros((1,), nodes.dtype)
        of_nodes = jnp.sum(used, 1, dtype=nodes.dtype)[:, None] if self.mean else jnp.ones((1, 1))
        others = of_nodes - 1 if self.mean else of_nodes  # whose edges a node receives
        node = node_core = node_state = self.normal(self.node_encoder(nodes)) * weight
        edge = self.normal(self.edge_encoder(nothing)).astype(of_edges)  # [64]: all are equal
        edge_core = edge_state = edge
        graph = self.normal(self.graph_encoder(jnp.broadcast_to(nothing, (batch, 1))))
        graph_core = graph_state = graph
        for step in range(STEPS):
            node_in = jnp.concatenate([node, node_core, node_state], -1)
            graph_in = jnp.concatenate([graph, graph_core, graph_state], -1)
            edge_core = self._edges((edge, edge_core, edge_state), node_in, graph_in) * edge_weight
            incoming = jnp.sum(edge_core, 1, dtype=nodes.dtype)
            incoming = incoming / jnp.maximum(others, 1)[..., None]
            wide = jnp.broadcast_to(graph_in[:, None], (batch, count, graph_in.shape[-1]))
            node_core = self.node_update(jnp.concatenate([node_in, incoming, wide], -1))
            node_core = self.normal(node_core) * weight
            pooled = [jnp.sum(x, 1) / jnp.maximum(of_nodes, 1) for x in (incoming, node_core)]
            graph_core = self.graph_update(jnp.concatenate([graph_in, *pooled], -1))
            graph_core = self.normal(graph_core)
            graph_state = self.graph_memory(graph_core, graph_state)
            if step + 1 < STEPS:
                edge_state = self.edge_memory(edge_core, edge_state)
                node_state = self.node_memory(node_core, node_state)
        first = edge_state[:, : self.senders]
        edge_state = self.edge_memory(edge_core[:, : self.senders], first)
        graph = self.graph_decoder(graph_state)
        head = self._read(edge_state, graph)
        value = None
        if self.value is not None:
            value = self.value(graph)[:, 0]
        return head, value

    def _edges(self, edge: tuple[Array, Array, Array], nodes: Array, graph: Array) -> Array:
        """Return the edge update `[B, N, N, 64]`, indexed by sender, then receiver."""
        first, second = self.edge_update.layers
        of_edge, of_sender, of_receiver, of_graph = jnp.split(first.weight, 4)
        own = sum(
            _product(part, weight) for part, weight in zip(edge, jnp.split(of_edge, 3), strict=True)
        )
        x = (nodes @ of_sender)[:, :, None] + (nodes @ of_receiver)[:, None]
        x = x + (graph @ of_graph)[:, None, None] + (own + first.bias)
        hidden = jax.nn.relu(x).astype(edge[0].dtype)
        x = jax.nn.relu(_product(hidden, second.weight) + second.bias.astype(hidden.dtype))
        return self.normal(x)

    def normal(self, x: Array) -> Array:
        """Normalise the last axis, in float32; the plain form does not."""
        if not self.norm:
            return x
        # Without the barrier XLA's GPU compiler (JAX 0.11) fuses this into what comes before it,
        # and values are wrong by up to 10 %, gradients by 70 %; see results/graph-network-study.
        full = jax.lax.optimization_barrier(x.astype(jnp.float32))
        full = full - full.mean(-1, keepdims=True)
        full = full * jax.lax.rsqrt(jnp.mean(full**2, -1, keepdims=True) + NORM_EPSILON)
        return full.astype(x.dtype)

    def _read(self, edges: Array, graph: Array) -> Array:
        """Read out `[B, A]` from the last recurrent states `[B, n or the senders, n, 64]`."""
        for layer in self.edge_decoder.layers:
            edges = jax.nn.relu(_product(edges, layer.weight) + layer.bias.astype(edges.dtype))
        first, *rest = self.readout.layers
        of_edge, of_graph = jnp.split(first.weight, 2)
        x = _product(edges, of_edge).astype(graph.dtype)
        x = x + (graph @ of_graph + first.bias)[:, None, None]
        for layer in rest:
            x = layer(jax.nn.relu(x))
        return self.by_action(x)

    def by_action(self, x: Array) -> Array:
        """Return `[B, A]` from values of edges, `[B, n or the senders, n, per_edge]`."""
        batch, senders, count, per_edge = x.shape
        missing = (self.senders - senders, self.max_nodes - count)
        x = jnp.pad(x, ((0, 0), (0, missing[0]), (0, missing[1]), (0, 0)))
        # No node sends to itself: receivers above the sender move down by one.
        below = np.arange(self.max_nodes - 1) < np.arange(self.senders)[:, None]
        x = jnp.where(below[None, :, :, None], x[:, :, :-1], x[:, :, 1:])
        return x.reshape(batch, self.senders * (self.max_nodes - 1) * per_edge)


def runs_on_gpu() -> bool:
    """Test whether programs that are made now run on a GPU."""
    config: Any = jax.config  # its attributes are unknown to type checkers
    device = config.jax_default_device or jax.devices()[0]
    return (device if isinstance(device, str) else device.platform) in ("gpu", "cuda", "rocm")


@cache
def gpu_kernels() -> Any:
    """Return `networks.graph_fused`; None where this JAX has no Pallas kernels for it, and XLA's
    have to do. Imported on demand, because Pallas takes long."""
    try:
        from save_rl.networks import graph_fused
    except ImportError:
        return None
    return graph_fused


def sizes(observation: dict[str, Any]) -> np.ndarray:
    """Return the number of nodes of each graph in `[..., N, F]`, without trailing padding."""
    mask = observation["node_mask"]
    after = np.argmax(mask[..., ::-1], -1)
    return np.where(mask.any(-1), mask.shape[-1] - after, 0)


def bucket_of(nodes: int, full: int, gpu: bool = False) -> int:
    """Return the size to which graphs of up to this many nodes are padded, `full` at most.

    Sizes are multiples of a bucket or the full size, so that only a few programs are compiled.
    """
    bucket = GPU_BUCKET if gpu else BUCKET
    least = 2 * bucket if gpu else bucket
    size = min(full, max(least, -(-nodes // bucket) * bucket))
    return full if size + bucket // 4 >= full else size


def buckets(full: int, gpu: bool = False) -> list[int]:
    """Return all sizes that `bucket_of` can return."""
    return sorted({bucket_of(nodes, full, gpu) for nodes in range(full + 1)})


def cut(observation: Any, size: int) -> Any:
    """Return observations `[..., N, F]` with the first `size` nodes."""
    return {
        "nodes": observation["nodes"][..., :size, :],
        "node_mask": observation["node_mask"][..., :size],
    }


def trim(*observations: Any, gpu: bool = False) -> list[Any]:
    """Return NumPy observations `[..., N, F]`, cut to the size of the largest graph; see
    `bucket_of`."""
    full = observations[0]["node_mask"].shape[-1]
    most = max(int(sizes(observation).max(initial=0)) for observation in observations)
    return [cut(seen, bucket_of(most, full, gpu)) for seen in observations]
