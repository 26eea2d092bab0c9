"""Which form of the graph network fits rewards best: a supervised study of its variants.

Each variant learns r(s, a) of Construction from the same transitions of random play, by squared
error; transitions of held-out episodes say how well. A first run collects the transitions, a second
one trains:

    python benchmarks/graph_study.py --make-data data.npz
    python benchmarks/graph_study.py --data data.npz --out OUT

`--out` holds graph_study.json, results.csv and figure.png, rewritten after every variant.
"""

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from save_rl.envs.construction import Construction
from save_rl.envs.construction.graph import ACTIONS_PER_EDGE, AVAILABLE, NODE_FEATURES
from save_rl.errors import InputError
from save_rl.files import write_atomically
from save_rl.report.results import write_results

if multiprocessing.parent_process() is None:  # workers of --make-data only simulate
    import jax
    import jax.numpy as jnp
    import optax

    from save_rl.networks.graph import GRU, STEPS, GraphNetwork
    from save_rl.networks.mlp import MLP
    from save_rl.training.devices import compiler_options, host_options

TASKS = ("covering", "covering-hard", "connecting")
# Shares of the transitions. "deep" records a random action like "random", but where that ends the
# episode it plays another one that does not: random episodes last 1.3 to 2.2 steps.
SOURCES = {"random": 0.4, "hardest": 0.2, "deep": 0.4}
EPISODES, JOBS = 10, 64  # episodes per job, and jobs per round
TRIES = 30  # actions that "deep" tries before it gives an episode up
HELD_OUT = 0.2  # share of the episodes
BATCH = 64
EVALUATION_BATCH = 256
PROBED = 128  # held-out states whose activations are measured
SATURATED = 0.97
LEAST = 4000  # updates that --fit leaves; with fewer, later variants are left out instead
EPSILON = 1e-5  # of layer normalisation
IS_AVAILABLE = NODE_FEATURES.index("is_available")


@dataclass(frozen=True)
class Variant:
    """A form of the graph network; the defaults are the plain GraphNetwork.

    norm: layer normalisation after every encoder and core MLP: "none", "fixed" (no scale) or
    "learned" (scale and offset). mean: aggregate by means, not sums. residual: add the encoding to
    the core's output. memory_only: the core sees the encoding and the memory, not its own last
    output. width: of all latent vectors. mixed: keep edges in bfloat16.
    """

    norm: str = "none"
    mean: bool = False
    residual: bool = False
    memory_only: bool = False
    width: int = 64
    mixed: bool = False


VARIANTS = {  # the most important first
    "plain": Variant(),
    "layernorm+mean": Variant("fixed", mean=True),
    "layernorm": Variant("fixed"),
    "layernorm+scale+mean": Variant("learned", mean=True),
    "mean": Variant(mean=True),
    "layernorm+mean+residual": Variant("fixed", mean=True, residual=True),
    "layernorm+mean+memory-only": Variant("fixed", mean=True, memory_only=True),
    "layernorm+mean+128": Variant("fixed", mean=True, width=128),
    "layernorm+mean+mixed": Variant("fixed", mean=True, mixed=True),
    "layernorm+scale": Variant("learned"),
    "memory-only": Variant(memory_only=True),
    "plain+mixed": Variant(mixed=True),
    "plain+128": Variant(width=128),
}
NORMED = (
    "node_encoder", "edge_encoder", "graph_encoder", "edge_update", "node_update", "graph_update",
)  # fmt: skip
MODULES = (
    *NORMED, "node_memory", "edge_memory", "graph_memory", "edge_decoder", "graph_decoder",
    "readout",
)  # fmt: skip


# Transitions


def make_data(path, transitions, nodes, processes):
    """Write so many transitions of every task; graphs of more nodes are left out."""
    began, arrays = time.time(), {}
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for task in TASKS:
            parts = []
            for index, (source, share) in enumerate(SOURCES.items()):
                wanted, found, first = round(share * transitions), [], index * 10**7
                while len(found) < wanted:  # the same transitions for any number of processes
                    seeds = range(first, first + EPISODES * JOBS, EPISODES)
                    jobs = [(task, source, seed, nodes) for seed in seeds]
                    found += [row for rows in pool.imap(play, jobs) for row in rows]
                    first += EPISODES * JOBS
                parts += [(index, *row) for row in found[:wanted]]
            names = ("source", "episode", "nodes", "count", "sender", "receiver", "number",
                     "reward")  # fmt: skip
            columns = dict(zip(names, map(np.array, zip(*parts, strict=True)), strict=True))
            size = columns["count"].max()
            columns["nodes"] = columns["nodes"][:, :size]
            arrays |= {f"{task}/{name}": column for name, column in columns.items()}
            took = time.time() - began
            print(f"{task}: {len(parts)} transitions, {size} nodes, {took:.0f} s", flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)


def play(job):
    """`[(episode, nodes, count, sender, receiver, number, reward)]` of a few random episodes."""
    task, source, first, limit = job
    sim = Construction(task, curriculum_sample=source != "hardest")
    rows = []
    for seed in range(first, first + EPISODES):
        rng = np.random.default_rng(seed)  # the random player's choices
        state, over = sim.reset(seed), False
        while not over:
            seen = sim.observe(state)
            count = int(seen["node_mask"].sum())
            if count > limit:
                break
            valid = np.flatnonzero(sim.action_mask(state))
            action = int(rng.choice(valid))
            after, reward, over, _ = sim.step(state, action)
            sender, receiver, offset, sticky = sim.decode(action)
            nodes = np.zeros((limit, seen["nodes"].shape[1]), np.float32)
            nodes[:count] = seen["nodes"][:count]
            number = 2 * offset + sticky
            rows.append((seed, nodes, count, sender, receiver, number, np.float32(reward)))
            if source == "deep":
                for other in rng.choice(valid, TRIES):
                    if not over:
                        break
                    after, _, over, _ = sim.step(state, int(other))
            state = after
    return rows


def load(path):
    """Return by task `(training, held-out)` transitions as arrays by name, in random order."""
    stored, tasks = np.load(path), {}
    for task in TASKS:
        prefix = f"{task}/"
        data = {k.removeprefix(prefix): stored[k] for k in stored.files if k.startswith(prefix)}
        episodes = np.unique(data["episode"])
        rng = np.random.default_rng(0)
        held_out = rng.choice(episodes, round(HELD_OUT * len(episodes)), replace=False)
        out = np.isin(data["episode"], held_out)
        parts = (rng.permutation(np.flatnonzero(rows)) for rows in (~out, out))
        tasks[task] = tuple({k: x[rows] for k, x in data.items()} for rows in parts)
    return tasks


def on_device(data):
    """Return the arrays a network needs, on the device; whole numbers as int32."""
    names = ("count", "sender", "receiver", "number")
    integers = {name: jnp.asarray(data[name], jnp.int32) for name in names}
    return {**integers, "nodes": jnp.asarray(data["nodes"]), "reward": jnp.asarray(data["reward"])}


def describe(train, held_out):
    """Return counts and variances of the transitions, and the R² of simple predictors."""
    reward = held_out["reward"].astype(np.float64)

    def r2_of_means(key):
        total, mean = train["reward"].mean(), {}
        for value in np.unique(key(train)):
            mean[value] = train["reward"][key(train) == value].mean()
        guess = np.array([mean.get(value, total) for value in key(held_out)])
        return {name: score(guess[rows], reward[rows])[0] for name, rows in subsets(held_out)}

    def edge(data):  # block, kind of receiver, offset and sticky
        receiver = data["nodes"][np.arange(len(data["receiver"])), data["receiver"]]
        kind = receiver[:, NODE_FEATURES.index("is_block") :].argmax(1)
        return (data["sender"] * 8 + kind) * ACTIONS_PER_EDGE + data["number"]

    return {
        "train": len(train["reward"]),
        "held_out": len(reward),
        "held_out_by_subset": {name: int(rows.sum()) for name, rows in subsets(held_out)},
        "nodes": int(train["nodes"].shape[1]),
        "mean_nodes": float(train["count"].mean()),
        "nonzero": float((reward != 0).mean()),
        "reward_variance": float(reward.var()),
        "train_reward_variance": float(train["reward"].astype(np.float64).var()),
        "r2_of_means_by_number": r2_of_means(lambda data: data["number"]),
        "r2_of_means_by_block_kind_and_number": r2_of_means(edge),
    }


def subsets(data):
    """Names and rows of the transitions that errors are reported for."""
    yield "all", np.ones(len(data["reward"]), bool)
    yield "nonzero", data["reward"] != 0
    for index, source in enumerate(SOURCES):
        yield source, data["source"] == index


def score(guess, reward):
    """`(R², correlation, mean squared error)`; NaN where rewards do not differ."""
    error = np.mean((guess - reward) ** 2) if len(reward) else np.nan
    if not len(reward) or reward.std() < 1e-9:
        return np.nan, np.nan, float(error)
    spread = np.std(guess) * np.std(reward)
    together = np.mean((guess - guess.mean()) * (reward - reward.mean()))
    correlation = together / spread if spread > 0 else np.nan
    return float(1 - error / reward.var()), float(correlation), float(error)


# The network


def initial(variant, features, key):
    """Parameters by module; those of `GraphNetwork(features, ..., key)` for the default."""
    keys, width = iter(jax.random.split(key, 13)), variant.width
    wide = (2 if variant.memory_only else 3) * width

    def mlp(inputs):
        return MLP((inputs, width, width), next(keys), activate_last=True)

    inputs = (features, 1, 1, 4 * wide, 2 * wide + width, wide + 2 * width)
    params = {name: mlp(size) for name, size in zip(NORMED, inputs, strict=True)}
    for name in ("node_memory", "edge_memory", "graph_memory"):
        params[name] = GRU(width, width, next(keys))
    params |= {name: mlp(width) for name in ("edge_decoder", "graph_decoder")}
    params["readout"] = MLP((2 * width, width, width, ACTIONS_PER_EDGE), next(keys))
    if variant.norm == "learned":
        params["norms"] = {name: (jnp.ones(width), jnp.zeros(width)) for name in NORMED}
    return params


def product(x, weight):
    """`x @ weight` as a product of two matrices, in the precision of `x`."""
    flat = x.reshape(-1, x.shape[-1]) @ weight.astype(x.dtype)
    return flat.reshape(*x.shape[:-1], weight.shape[-1])


def gru(unit, x, h):
    """`(new hidden state, candidate)`"""
    size = h.shape[-1]
    from_x = product(x, unit.input) + unit.bias.astype(x.dtype)
    gates = jax.nn.sigmoid(from_x[..., : 2 * size] + product(h, unit.hidden))
    update, reset = gates[..., :size], gates[..., size:]
    candidate = jnp.tanh(from_x[..., 2 * size :] + product(reset * h, unit.candidate))
    return h + update * (candidate - h), candidate


def normalised(params, variant, name, x):
    """The output of a module, normalised in float32 where the variant asks for it."""
    if variant.norm == "none":
        return x
    # Without the barrier XLA's GPU compiler (JAX 0.11) fuses this into what comes before it, and
    # the values are wrong by up to 10 %, the gradients by 70 %. See results/graph-network-study.
    full = jax.lax.optimization_barrier(x.astype(jnp.float32))
    full = full - full.mean(-1, keepdims=True)
    full = full * jax.lax.rsqrt(jnp.mean(full**2, -1, keepdims=True) + EPSILON)
    if variant.norm == "learned":
        scale, offset = params["norms"][name]
        full = full * scale + offset
    return full.astype(x.dtype)


def edge_update(mlp, parts, nodes, graph):
    """The edge MLP of [edge, sender, receiver, graph], `[B, N, N, width]`, first by sender."""
    first, second = mlp.layers
    of_edge, of_sender, of_receiver, of_graph = jnp.split(first.weight, 4)
    of_parts = jnp.split(of_edge, len(parts))
    own = sum(product(part, weight) for part, weight in zip(parts, of_parts, strict=True))
    x = (nodes @ of_sender)[:, :, None] + (nodes @ of_receiver)[:, None]
    x = x + (graph @ of_graph)[:, None, None] + (own + first.bias)
    hidden = jax.nn.relu(x).astype(parts[0].dtype)
    return jax.nn.relu(product(hidden, second.weight) + second.bias.astype(hidden.dtype))


def process(params, variant, nodes, count, probe=None):
    """`(edge output, edge memory, graph memory)` of the core, the last edge memory still to make.

    nodes: `[B, N, features]`, count: `[B]` nodes in use. probe: filled with activations by name.
    """
    batch, size, _ = nodes.shape
    used = jnp.arange(size) < count[:, None]
    exists = used[:, :, None] & used[:, None, :] & ~jnp.eye(size, dtype=bool)
    weight, of_edges = used[..., None].astype(nodes.dtype), nodes.dtype
    if variant.mixed:
        of_edges = jnp.bfloat16
    edge_weight, nothing = exists[..., None].astype(of_edges), jnp.zeros((1,), nodes.dtype)
    norm = partial(normalised, params, variant)

    def encode(name, x):
        return norm(name, params[name](x))

    def out(name, x, encoded):
        x = norm(name, x)
        return x + encoded if variant.residual else x

    def fed(*parts):  # encoding, last output, last memory
        return (parts[0], parts[2]) if variant.memory_only else parts

    def average(total, number):
        if not variant.mean:
            return total
        return total / jnp.maximum(number, 1).reshape(-1, *[1] * (total.ndim - 1))

    node = node_core = node_state = encode("node_encoder", nodes) * weight
    edge = edge_core = edge_state = encode("edge_encoder", nothing).astype(of_edges)
    graph = encode("graph_encoder", jnp.broadcast_to(nothing, (batch, 1)))
    graph_core = graph_state = graph
    for step in range(STEPS):
        node_in = jnp.concatenate(fed(node, node_core, node_state), -1)
        graph_in = jnp.concatenate(fed(graph, graph_core, graph_state), -1)
        parts = fed(edge, edge_core, edge_state)
        edge_core = edge_update(params["edge_update"], parts, node_in, graph_in)
        edge_core = out("edge_update", edge_core, edge) * edge_weight
        incoming = jnp.sum(edge_core, 1, dtype=nodes.dtype)
        wide = jnp.broadcast_to(graph_in[:, None], (batch, size, graph_in.shape[-1]))
        node_core = jnp.concatenate([node_in, average(incoming, count - 1), wide], -1)
        node_core = out("node_update", params["node_update"](node_core), node) * weight
        of_all_edges = average(jnp.sum(incoming, 1), count * (count - 1))
        of_all_nodes = average(jnp.sum(node_core, 1), count)
        graph_core = jnp.concatenate([graph_in, of_all_edges, of_all_nodes], -1)
        graph_core = out("graph_update", params["graph_update"](graph_core), graph)
        last = step + 1 == STEPS
        node_before, edge_before = node_state, edge_state
        graph_state, graph_candidate = gru(params["graph_memory"], graph_core, graph_state)
        if not last:
            edge_state, edge_candidate = gru(params["edge_memory"], edge_core, edge_state)
            node_state, node_candidate = gru(params["node_memory"], node_core, node_state)
        if probe is not None:
            if last:  # nothing else needs them
                edge_candidate = gru(params["edge_memory"], edge_core, edge_before)[1]
                node_candidate = gru(params["node_memory"], node_core, node_before)[1]
            for name, core, candidate, there in (
                ("edge", edge_core, edge_candidate, exists),
                ("node", node_core, node_candidate, used),
                ("graph", graph_core, graph_candidate, jnp.ones(batch, bool)),
            ):
                share = there[..., None] / (there.sum() * core.shape[-1])
                full = core.astype(jnp.float32), candidate.astype(jnp.float32)
                activation, saturated = jnp.abs(full[0]), jnp.abs(full[1]) > SATURATED
                probe[f"activation_{name}_{step + 1}"] = jnp.sum(activation * share)
                probe[f"saturated_{name}_{step + 1}"] = jnp.sum(saturated * share)
    return edge_core, edge_state, graph_state


def read(params, edge_core, edge_state, graph):
    """Numbers `[..., per edge]` of edges `[..., width]`; the decoded graph broadcasts."""
    edge, _ = gru(params["edge_memory"], edge_core, edge_state)
    for layer in params["edge_decoder"].layers:
        edge = jax.nn.relu(product(edge, layer.weight) + layer.bias.astype(edge.dtype))
    first, *rest = params["readout"].layers
    of_edge, of_graph = jnp.split(first.weight, 2)
    x = product(edge, of_edge).astype(graph.dtype) + (graph @ of_graph + first.bias)
    for layer in rest:
        x = layer(jax.nn.relu(x))
    return x


def all_numbers(params, variant, nodes, count, probe=None):
    """Q-values `[B, senders, N, per edge]`, receivers by node; the sender itself is among them."""
    core, state, graph = process(params, variant, nodes, count, probe)
    graph = params["graph_decoder"](graph)[:, None, None]
    return read(params, core[:, :AVAILABLE], state[:, :AVAILABLE], graph)


def taken(params, variant, batch):
    """Q-values `[B]` of the actions that were taken; no other edge is read out."""
    core, state, graph = process(params, variant, batch["nodes"], batch["count"])
    rows = jnp.arange(len(batch["count"]))
    at = (rows, batch["sender"], batch["receiver"])
    return read(params, core[at], state[at], params["graph_decoder"](graph))[rows, batch["number"]]


def check_initial():
    """Assert that the default variant begins with the parameters of GraphNetwork."""
    key, size = jax.random.key(3), (5, 12, AVAILABLE, ACTIONS_PER_EDGE)
    network = jax.jit(lambda: GraphNetwork(*size, key, norm=False, mean=False))()
    made = jax.jit(lambda: initial(Variant(), size[0], key))()
    assert made.keys() == set(MODULES)
    for name, module in made.items():
        expected = jax.tree.leaves(getattr(network, name))
        for ours, theirs in zip(jax.tree.leaves(module), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def check_plain(mixed=False, tolerance=1e-4):
    """Assert that the default variant gives the numbers of GraphNetwork, for padded graphs too."""
    features, size, padded, variant = 5, 9, 12, Variant(mixed=mixed)
    rng, key = np.random.default_rng(3), jax.random.key(0)
    network = jax.eval_shape(
        lambda: GraphNetwork(
            features, padded, AVAILABLE, ACTIONS_PER_EDGE, key, mixed=mixed, norm=False, mean=False
        )
    )

    def fill(x):  # no zeros, unlike fresh biases
        scale = 1.1 / np.sqrt(x.shape[0]) if x.ndim > 1 else 0.2
        return rng.normal(scale=scale, size=x.shape).astype(np.float32)

    network = jax.tree.map(fill, network)
    params = {name: getattr(network, name) for name in MODULES}

    @jax.jit
    def both(network, params, nodes, batch):
        used = jnp.arange(size) < batch["count"][:, None]
        head, _ = network({"nodes": nodes, "node_mask": used})
        numbers = all_numbers(params, variant, nodes, batch["count"])
        return head, numbers, taken(params, variant, {**batch, "nodes": nodes})

    count = np.array([9, 2, 6, 8])
    sender, receiver, number = np.array([6, 0, 4, 5]), np.array([8, 1, 5, 2]), 7 * count
    batch = {"count": count, "sender": sender, "receiver": receiver, "number": number % 30}
    nodes = rng.normal(size=(4, size, features)).astype(np.float32)
    nodes[np.arange(size) >= count[:, None]] *= 100  # padding
    with jax.default_matmul_precision("highest"):
        found = both(network, params, nodes, batch)
    head, numbers, of_taken = map(np.asarray, found)
    # By sender and receiver; in the head nobody sends to itself.
    head = head.reshape(4, AVAILABLE, padded - 1, ACTIONS_PER_EDGE)
    scale = np.abs(head).max()
    expected = head[np.arange(4), sender, receiver - (receiver > sender), number % 30]
    np.testing.assert_allclose(of_taken, expected, rtol=0, atol=tolerance * scale)
    for row, sender, receiver in np.ndindex(4, AVAILABLE, size):
        if sender != receiver and max(sender, receiver) < count[row]:
            ours = numbers[row, sender, receiver]
            expected = head[row, sender, receiver - (receiver > sender)]
            np.testing.assert_allclose(ours, expected, rtol=0, atol=tolerance * scale)


# Training


def probe(params, variant, nodes, count):
    """Activations and saturated candidates by core step, and what Q-values depend on."""
    found = {}
    q = all_numbers(params, variant, nodes, count, found)
    # Valid edges lead from an available block to anything that is none.
    available = nodes[..., IS_AVAILABLE] > 0.5
    bases = (jnp.arange(nodes.shape[1]) < count[:, None]) & ~available
    valid = (available[:, :AVAILABLE, None] & bases[:, None, :])[..., None]

    def spread(q):
        """Over actions within a state, and over states."""
        share = valid / jnp.maximum(valid.sum((1, 2, 3), keepdims=True) * q.shape[-1], 1)
        mean = jnp.sum(q * share, (1, 2, 3), keepdims=True)
        return jnp.sqrt(jnp.mean(jnp.sum((q - mean) ** 2 * share, (1, 2, 3)))), jnp.std(mean)

    within, between = spread(q)
    edges, _ = spread(q.mean(-1, keepdims=True))
    found |= {"q_std_actions": within, "q_std_edges": edges, "q_std_states": between}
    found |= {"q_actions_over_states": within / between, "q_edges_over_states": edges / between}
    return found


class Programs:
    """The compiled programs of a variant on a task, for all its replicas (seeds and rates)."""

    def __init__(self, variant, train, held_out, seeds, rates, every):
        began = time.perf_counter()
        self.seeds = np.repeat(seeds, len(rates))
        self.rates = np.tile(np.array(rates, np.float32), len(seeds))
        self.train, self.held_out, self.variant = train, held_out, variant
        adam = optax.scale_by_adam()  # optax.adam without the rate
        transitions, features = len(train["reward"]), train["nodes"].shape[-1]

        def begin(seed):
            params = initial(variant, features, jax.random.fold_in(jax.random.key(0), seed))
            return params, adam.init(params)

        def loss(params, batch):
            return jnp.mean((taken(params, variant, batch) - batch["reward"]) ** 2)

        def learn(state, seed, rate, first, train):
            def update(state, number):
                params, moments = state
                key = jax.random.fold_in(jax.random.fold_in(jax.random.key(1), seed), number)
                rows = jax.random.randint(key, (BATCH,), 0, transitions)
                batch = {name: x[rows] for name, x in train.items()}
                error, gradient = jax.value_and_grad(loss)(params, batch)
                change, moments = adam.update(gradient, moments)
                params = jax.tree.map(lambda x, c: x - rate * c, params, change)
                return (params, moments), error

            return jax.lax.scan(update, state, first + jnp.arange(every))

        def predict(params, held_out):
            parts = {k: x.reshape(-1, EVALUATION_BATCH, *x.shape[1:]) for k, x in held_out.items()}
            return jax.lax.map(lambda part: taken(params, variant, part), parts).reshape(-1)

        def chunk(state, seeds, rates, first, train, held_out):
            """So many updates, then predictions for all held-out transitions."""
            learned = jax.vmap(learn, (0, 0, 0, None, None))
            state, errors = learned(state, seeds, rates, first, train)
            guess = jax.vmap(predict, (0, None))(state[0], held_out)
            return state, errors.mean(1), guess

        def look(params, held_out):
            probed = partial(probe, variant=variant)
            nodes, count = held_out["nodes"][:PROBED], held_out["count"][:PROBED]
            return jax.vmap(lambda p: probed(p, nodes=nodes, count=count))(params)

        options = host_options(compiler_options(jax.devices()[0])) or None  # compiles faster
        self._begin = jax.jit(jax.vmap(begin)).lower(self.seeds).compile()
        state = jax.eval_shape(jax.vmap(begin), self.seeds)
        arguments = (state, self.seeds, self.rates, np.int32(0), train, held_out)
        self._chunk = jax.jit(chunk, donate_argnums=0).lower(*arguments).compile(options)
        self._look = jax.jit(look).lower(state[0], held_out).compile()
        self.compile_seconds = time.perf_counter() - began

    def begin(self):
        return self._begin(self.seeds)

    def advance(self, state, first):
        """`(state, mean training error [R], predictions [R, held-out])` after some updates."""
        arguments = (self.seeds, self.rates, np.int32(first), self.train, self.held_out)
        return jax.block_until_ready(self._chunk(state, *arguments))

    def check(self, state, guesses):
        """Assert that predictions `[R, held-out]` are those of a CPU, for some of the first."""
        params = jax.tree.map(lambda x: x[0], state[0])
        seen = jax.tree.map(lambda x: x[:EVALUATION_BATCH], self.held_out)
        params, seen = jax.device_put((params, seen), jax.devices("cpu")[0])
        expected = np.asarray(jax.jit(partial(taken, variant=self.variant))(params, batch=seen))
        tolerance = (0.05 if self.variant.mixed else 0.02) * np.abs(expected).max()
        found = guesses[0, : len(expected)]
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance, err_msg="wrong on GPU")

    def look(self, state):
        """`{name: [R]}`"""
        return jax.tree.map(np.asarray, self._look(state[0], self.held_out))


def padded(data):
    """Transitions repeated up to whole batches of evaluation."""
    size = len(data["reward"])
    rows = np.arange(-(-size // EVALUATION_BATCH) * EVALUATION_BATCH) % size
    return {name: x[rows] for name, x in data.items()}


def fit(programs, held_out, variance, updates, every, deadline):
    """Train all replicas and return one record per replica, and the seconds of each chunk."""
    state = programs.begin()
    records = [
        {"seed": int(seed), "rate": float(f"{rate:g}"), "curve": []}
        for seed, rate in zip(programs.seeds, programs.rates, strict=True)
    ]
    look, seconds = programs.look(state), []
    for i, record in enumerate(records):
        record["start"] = {name: float(x[i]) for name, x in look.items()}
    for first in range(0, updates, every):
        began = time.perf_counter()
        state, errors, guesses = programs.advance(state, first)
        seconds.append(time.perf_counter() - began)
        errors, guesses = np.asarray(errors), np.asarray(guesses, np.float64)
        for i, record in enumerate(records):
            point = {"updates": first + every, "train_r2": float(1 - errors[i] / variance)}
            for name, rows in subsets(held_out):
                found = score(guesses[i, : len(rows)][rows], held_out["reward"][rows])
                for metric, value in zip(("r2", "correlation", "error"), found, strict=True):
                    point[metric if name == "all" else f"{metric}_{name}"] = value
            record["curve"].append(point)
        if time.time() > deadline:
            break
    programs.check(state, guesses)
    look = programs.look(state)
    for i, record in enumerate(records):
        record["end"] = {name: float(x[i]) for name, x in look.items()}
    return records, seconds


def affordable(programs, variants, updates, every, seconds):
    """Return how many updates, `updates` at most, should let all variants end in time.

    programs: those of the first variant, by task, to measure with.
    """
    cost = 0.0
    for program in programs:
        state, _, _ = program.advance(program.begin(), 0)
        began = time.perf_counter()
        program.advance(state, 0)
        cost += time.perf_counter() - began
    # Guesses: normalised edges take a quarter longer, doubling the width three times as long.
    parts = [3.0 if v.width > 64 else 1.25 if v.norm != "none" else 1 for v in variants]
    chunks = int(seconds / (cost * sum(parts)))
    return min(updates, max(every * chunks, LEAST))


# Results


def finite(tree):
    """The same with None for numbers that are not finite: JSON has none."""
    if isinstance(tree, dict):
        return {k: finite(x) for k, x in tree.items()}
    if isinstance(tree, list | tuple):
        return [finite(x) for x in tree]
    return None if isinstance(tree, float) and not np.isfinite(tree) else tree


def long_form(report):
    """Yield the rows of results.csv."""
    for result in report["results"]:
        for record in result["replicas"]:
            same = {"experiment": "graph-study", "agent": result["variant"], "seed": record["seed"],
                    "task": result["task"], "rate": record["rate"]}  # fmt: skip
            last = record["curve"][-1]["updates"]
            points = [{"updates": 0, **record["start"]}, *record["curve"]]
            points.append({"updates": last, **record["end"]})
            for point in points:
                now = {**same, "updates": point["updates"]}
                for metric in sorted(point.keys() - {"updates"}):
                    yield {**now, "metric": metric, "value": point[metric]}


def table(results):
    """Yield lines: medians over seeds [lowest–highest]; activations of fresh networks."""
    yield (
        "| variant | task | rate | updates | R² | R², best | R², nonzero | correlation "
        "| R², training | graph, by step | edges, by step | saturated edges "
        "| Q: edges / states | s / 1,000 |"
    )
    yield "|" + "---|" * 14
    for result in results:
        for rate in sorted({record["rate"] for record in result["replicas"]}):
            records = [record for record in result["replicas"] if record["rate"] == rate]
            curves = [record["curve"] for record in records]
            start = {
                name: np.median([record["start"][name] for record in records])
                for name in records[0]["start"]
            }

            def last(metric, curves=curves):
                return interval([curve[-1][metric] for curve in curves])

            def steps(name, digits, start=start):
                values = [start[f"{name}_{step + 1}"] for step in range(STEPS)]
                return " ".join(f"{value:.{digits}g}" for value in values)

            best = interval([np.max([x["r2"] for x in curve]) for curve in curves])
            yield (
                f"| {result['variant']} | {result['task']} | {rate:g} | {curves[0][-1]['updates']} "
                f"| {last('r2')} | {best} "
                f"| {last('r2_nonzero')} | {last('correlation')} | {last('train_r2')} "
                f"| {steps('activation_graph', 3)} | {steps('activation_edge', 3)} "
                f"| {steps('saturated_edge', 2)} | {start['q_edges_over_states']:.2g} "
                f"| {result['seconds_per_1000_updates']:.1f} |"
            )


def interval(numbers):
    return f"{np.median(numbers):.3f} [{np.min(numbers):.3f}–{np.max(numbers):.3f}]"


def write(report, out):
    """Write all results so far; a run that is stopped loses little."""
    write_atomically(out / "graph_study.json", json.dumps(finite(report), indent=1) + "\n")
    write_results(out / "results.csv", long_form(report))
    write_atomically(out / "table.md", "\n".join(table(report["results"])) + "\n")


def draw(out):
    """Draw figure.png from graph_study.json: a row of panels per rate, a column per task."""
    from save_rl.report.canvas import LARGE, SMALL, clean, empty_figure, save_png

    results = json.loads((out / "graph_study.json").read_text())["results"]
    rates = sorted({record["rate"] for result in results for record in result["replicas"]})
    tasks = [task for task in TASKS if any(result["task"] == task for result in results)]
    names = list(dict.fromkeys(result["variant"] for result in results))
    figure = empty_figure(4.0 * len(tasks), 3.2 * len(rates) + 1.2)
    panels = figure.subplots(len(rates), len(tasks), squeeze=False, sharex=True, sharey="col")
    for i, rate in enumerate(rates):
        for j, task in enumerate(tasks):
            for result in results:
                if result["task"] != task:
                    continue
                curves = [r["curve"] for r in result["replicas"] if r["rate"] == rate]
                error = [[np.nan if x["r2"] is None else 1 - x["r2"] for x in c] for c in curves]
                index = names.index(result["variant"])
                panels[i, j].plot(
                    [point["updates"] for point in curves[0]], np.median(error, 0),
                    color=f"C{index % 10}", linestyle="--" if index >= 10 else "-",
                    label=result["variant"],
                    marker=".",
                )  # fmt: skip
            panels[i, j].set_yscale("log")
            panels[i, j].set_title(f"{task}, rate {rate:g}", fontsize=LARGE)
            panels[-1, j].set_xlabel("Updates", fontsize=LARGE)
            clean(panels[i, j])
        panels[i, 0].set_ylabel("Held-out error / variance", fontsize=LARGE)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(tasks), frameon=False,
                  fontsize=SMALL)  # fmt: skip
    save_png(figure, out / "figure.png")


def study(arguments):
    """Train the variants one after the other, within the seconds given."""
    began = time.time()
    check_initial()
    check_plain()
    check_plain(mixed=True, tolerance=0.03)
    print(f"plain is GraphNetwork ({time.time() - began:.0f} s)", flush=True)
    tasks, names = load(arguments.data), arguments.variants
    every, updates = arguments.every, arguments.updates
    settings = {k: str(x) if isinstance(x, Path) else x for k, x in vars(arguments).items()}
    device = jax.devices()[0]
    report = {
        "settings": settings,
        "device": device.device_kind,
        "jax": jax.__version__,
        "data": {task: describe(*parts) for task, parts in tasks.items()},
        "results": [],
        "not_run": [],
    }
    print(json.dumps(finite(report["data"])), flush=True)
    stored = {t: (on_device(train), on_device(padded(out))) for t, (train, out) in tasks.items()}
    options = (arguments.seeds, arguments.rates, every)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.compilers) as pool:  # compiles while others train
        compiled = {
            (name, task): pool.submit(Programs, VARIANTS[name], *stored[task], *options)
            for name in names
            for task in arguments.tasks
        }
        if arguments.fit:
            first = [compiled[names[0], task].result() for task in arguments.tasks]
            left = arguments.seconds - (time.time() - began)
            updates = affordable(first, [VARIANTS[name] for name in names], updates, every, left)
            print(f"{updates} updates ({time.time() - began:.0f} s)", flush=True)
        report["updates"] = updates
        for name in names:
            if time.time() - began > arguments.seconds:
                report["not_run"].append(name)
                for task in arguments.tasks:
                    compiled[name, task].cancel()
                continue
            for task in arguments.tasks:
                programs = compiled.pop((name, task)).result()
                variance, held_out = report["data"][task]["train_reward_variance"], tasks[task][1]
                # A variant that has begun may take a little longer, but no more than that.
                deadline = began + 1.1 * arguments.seconds
                records, seconds = fit(programs, held_out, variance, updates, every, deadline)
                report["results"].append({
                    "variant": name, "task": task, **asdict(VARIANTS[name]),
                    "compile_seconds": programs.compile_seconds,
                    "seconds_per_1000_updates": float(np.median(seconds)) / every * 1000,
                    "replicas": records,
                })  # fmt: skip
                print(list(table(report["results"][-1:]))[-1], flush=True)
            write(report, arguments.out)
        report["seconds"] = time.time() - began
        write(report, arguments.out)
    print("\n".join(table(report["results"])))
    print(f"{report['seconds']:.0f} s; not run: {', '.join(report['not_run']) or 'none'}")
    try:
        draw(arguments.out)
    except ModuleNotFoundError as error:
        print(f"no figure here ({error}); elsewhere: graph_study.py --draw {arguments.out}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--make-data", type=Path, metavar="FILE", help="collect transitions, and end")
    what.add_argument("--data", type=Path, metavar="FILE", help="transitions to learn from")
    what.add_argument("--draw", type=Path, metavar="OUT", help="draw figure.png again, and end")
    parser.add_argument("--transitions", type=int, default=20_000, help="per task")
    parser.add_argument("--nodes", type=int, default=20, help="of the largest graphs to collect")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT"), help="default $OUT")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--updates", type=int, default=8000)
    parser.add_argument("--every", type=int, default=500, help="updates between evaluations")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-4, 1e-3])
    parser.add_argument("--seconds", type=float, default=480, help="start no variant after these")
    parser.add_argument("--fit", action="store_true", help="fewer updates where time is short")
    parser.add_argument("--compilers", type=int, default=2, help="threads that compile ahead")
    arguments = parser.parse_args()
    if arguments.make_data:
        make_data(arguments.make_data, arguments.transitions, arguments.nodes, arguments.processes)
    elif arguments.draw:
        draw(arguments.draw)
    elif arguments.out is None:
        raise InputError("--out: it is not given, and $OUT is not set.")
    else:
        arguments.out = Path(arguments.out)
        study(arguments)


if __name__ == "__main__":
    main()
