"""The network of all seeds as an evaluator of searches: batches in, the best actions out.

Parameters have a leading seed axis, and so have batches: new states of a group's lanes of every
seed, cut into pieces of a few sizes and filled up to these. On a GPU they are a state for every
lane, and all that a round of a search may bring, both compiled ahead. A batch goes to the device in
one array, because every transfer takes a while to start, and only what a search can use leaves it,
also in one array: the slots of each state (`search.host`). On a CPU the slots are chosen on the
host, where the rows are anyway (XLA sorts slowly there).
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import Agent
from save_rl.envs.layout import Layout
from save_rl.envs.pool import Pool
from save_rl.learning.host_replay import unpack
from save_rl.networks import cut, is_graph, trim
from save_rl.search.rules import TIE_TOLERANCE
from save_rl.search.simulators import Question, Rows, is_computed
from save_rl.search.tree_lanes import Shown
from save_rl.training.device.acting import prior_and_value
from save_rl.training.host.ahead import Ahead
from save_rl.training.host.updates import Updates
from save_rl.training.learner import Learning
from save_rl.types import Array

SMALLEST_BATCH = 8  # products of few rows round otherwise
# A call for a GPU takes the main thread 2 to 3 ms, however few states it is for.
_FEW = 2  # most small batches to make rather than a large one that is not full
_MOST = 4096  # states of all seeds in a batch: they keep a GPU busy, and more need more memory
_AT_ONCE = 4  # states per lane in the largest batch on a CPU


class Network:
    """The compiled functions of an agent's network; `NetworkEvaluator` uses them.

    slots: per node. batch: lanes per seed of the largest group of training lanes. ahead: programs
    that were compiled before. most: new states per lane in a round of a search.
    """

    def __init__(
        self, agent: Agent, learning: Learning, layout: Layout, slots: int, batch: int,
        options: dict[str, str], ahead: Ahead | None = None, most: int = 1,
    ):  # fmt: skip
        self.gpu, self.batch, self.ahead, self._most = bool(options), batch, ahead, most
        self.listed = self.gpu and slots < layout.num_actions
        self.slots, self._layout, self._learning = slots, layout, learning
        self._graphs = is_graph(layout.example())
        self._actions = layout.num_actions if layout.masked else 0
        self._structure = jax.tree.structure(
            jax.eval_shape(learning.initial, jax.random.PRNGKey(0)).params
        )

        def rows(leaves: list[Any], observation: Any, packed: Any) -> tuple[Array, Array]:
            params = jax.tree.unflatten(self._structure, leaves)
            head, value = learning.network(params)(observation)
            return prior_and_value(agent, head, value, unpack(packed, self._actions))

        def lists(leaves: list[Any], observation: Any, packed: Any, start: Any) -> Any:
            prior, value = rows(leaves, observation, packed)
            return best_slots(prior, value, start, slots), prior

        if self.gpu:
            seen = layout.example()
            shown, structure = jax.tree.flatten(seen)
            bits = np.zeros(-(-self._actions // 8), np.uint8)
            kinds = [x.dtype for x in (*shown, bits, np.int32(0))]

            def parted(program: Any) -> Any:
                """Return a program of one array, see `joined`; `shapes` are those of its parts."""

                def run(leaves: list[Any], data: Any, shapes: Any) -> Any:
                    *seen, packed, start = parts(data, kinds, shapes)
                    return program(leaves, jax.tree.unflatten(structure, seen), packed, start[0])

                def all_seeds(leaves: list[Any], data: Any, shapes: Any) -> Any:
                    return jax.vmap(partial(run, shapes=shapes))(leaves, data)

                return jax.jit(all_seeds, static_argnums=2, compiler_options=options)

            self._programs = {
                "rows": parted(lambda leaves, seen, packed, _: rows(leaves, seen, packed)),
                "lists": parted(lists),
            }
        else:
            self._programs = {"rows": jax.jit(jax.vmap(rows))}

    def run(
        self, name: str, leaves: list[Any], observation: Any, packed: np.ndarray, start: int = 0
    ) -> Any:
        """Run a program on observations `[seeds, n, ...]` and masks as bits."""
        if not self.gpu:
            return self._programs[name](leaves, observation, packed)
        ties = np.full(packed.shape[:2], start, np.int32)
        arrays = [*jax.tree.leaves(observation), packed, ties]
        shapes = tuple(x.shape[2:] for x in arrays)
        ready = self.ahead.get((name, ties.shape, shapes)) if self.ahead is not None else None
        if ready is not None:
            return ready(leaves, joined(arrays))
        return self._programs[name](leaves, joined(arrays), shapes)

    def batch_of_roots(self, each: int) -> int:
        """Return the states per seed to evaluate for `each` roots."""
        return max(self.batch, each) if self.gpu else max(each, SMALLEST_BATCH)

    def batch_sizes(self, each: int) -> tuple[int, int]:
        """Return the sizes of batches on a GPU for groups of `each` lanes per seed.

        Every size is a program that takes seconds to compile.
        """
        small = max(self.batch, each)
        most = _MOST // max(small * len(self._learning.settings.seeds), 1)
        return small, max(min(self._most, most), 1) * small

    def pieces(self, count: int, each: int) -> list[int]:
        """Return the sizes of the batches for `count` new states per seed of `each` lanes."""
        if self.gpu:
            return few_pieces(count, *self.batch_sizes(each))
        # The arithmetic of graphs takes all the time, and larger batches need more memory.
        most = max(each, SMALLEST_BATCH) * (1 if self._graphs else _AT_ONCE)
        many, left = divmod(count, most)
        return [most] * many + ([min(batch_size(left), most)] if left else [])

    def compile_ahead(self, leaves: list[Any], batch: int, size: int) -> None:
        """Compile the program for batches of training lanes, with graphs of this padded size."""
        ahead, layout = self.ahead, self._layout
        assert ahead is not None
        leaves = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
        lanes = (leaves[0].shape[0], batch)
        bits = np.zeros(-(-self._actions // 8), np.uint8)
        arrays = [*jax.tree.leaves(cut(layout.example(), size)), bits, np.zeros((), np.int32)]
        shapes = tuple(x.shape for x in arrays)
        data = jax.ShapeDtypeStruct((*lanes, sum(x.nbytes for x in arrays)), np.uint8)
        name = "lists" if self.listed else "rows"
        ahead.add((name, lanes, shapes), self._programs[name], leaves, data, shapes)

    def with_params(self, params: Any, beside: Updates | None = None) -> "NetworkEvaluator":
        """Return an evaluator with these parameters `[seeds, ...]`; beside: see there."""
        return NetworkEvaluator(self, jax.tree.leaves(params), beside)

    def scale(self, leaves: list[Any]) -> np.ndarray:
        """Return what searches divide rewards by, `[seeds]`."""
        params = jax.tree.unflatten(self._structure, leaves)
        return np.broadcast_to(np.asarray(self._learning.scale(params)), len(leaves[0]))


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return arrays `[seeds, n, ...]` side by side as bytes, `[seeds, n, bytes]`."""
    lead = arrays[0].shape[:2]
    # Reshaping copies what is not contiguous.
    flat = [np.ascontiguousarray(x.reshape(*lead, math.prod(x.shape[2:]))) for x in arrays]
    return np.concatenate([x.view(np.uint8) for x in flat], -1)


def parts(data: Array, kinds: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return the arrays that `joined` put side by side, from bytes `[n, bytes]`, as `[n, *shape]`
    of these dtypes."""
    found, first = [], 0
    for kind, shape in zip(kinds, shapes, strict=True):
        count = math.prod(shape)
        own = data[:, first : first + count * kind.itemsize]
        first += count * kind.itemsize
        if kind == np.bool_:
            own = own.astype(bool)
        else:
            if kind.itemsize > 1:
                own = own.reshape(len(data), count, kind.itemsize)
            own = jax.lax.bitcast_convert_type(own, kind)
        found.append(own.reshape(len(data), *shape))
    return found


def best_slots(prior: Array, value: Array, start: Any, slots: int) -> Array:
    """Return what a search needs of priors `[n, A]` and values `[n]`, `[n, 2 slots + 3]` float32.

    These are priors of the slots, their actions, value, number of allowed actions, and further ties
    (see `search.slots.best_actions`); integers keep their bits.
    """
    count = prior.shape[-1]
    best, place = jax.lax.top_k(jnp.roll(prior, -start, -1), slots)
    action = (place + start) % count
    valid = jnp.sum(prior > -jnp.inf, -1, dtype=jnp.int32)
    lowest = best[:, -1:] - TIE_TOLERANCE
    more = jnp.sum(prior >= lowest, -1) - jnp.sum(best >= lowest, -1)
    more = jnp.where(valid > slots, more, 0).astype(jnp.int32)
    integers = jnp.concatenate([action.astype(jnp.int32), valid[:, None], more[:, None]], -1)
    bits = jax.lax.bitcast_convert_type(integers, jnp.float32)
    return jnp.concatenate([best, bits[:, :slots], value[:, None], bits[:, slots:]], -1)


At = tuple[Any, Any]  # where states are in a batch `[seeds, n]`: their seeds and places


class Lists(NamedTuple):
    """An evaluation from `best_slots`. at: where the states of `rows` are in it."""

    rows: np.ndarray
    at: At
    slots: int
    found: Any

    def ready(self) -> bool:
        return is_computed(self.found)

    def write(self, shown: Shown) -> None:
        rows, slots = self.rows, self.slots
        found = np.asarray(self.found)[self.at]
        integers = found.view(np.int32)
        shown.prior[rows], shown.choice[rows] = found[:, :slots], integers[:, slots:-3]
        shown.value[rows] = found[:, -3]
        shown.valid[rows], shown.more[rows] = integers[:, -2], integers[:, -1]


class SeedRows(NamedTuple):
    """An evaluation with the priors of all actions, `[seeds, n, A]`. at: see `Lists`."""

    rows: np.ndarray
    at: At
    prior: Any
    value: Any
    start: int

    def ready(self) -> bool:
        return is_computed(self.prior)

    def write(self, shown: Shown) -> None:
        prior, value = np.asarray(self.prior), np.asarray(self.value)
        Rows(self.rows, prior[self.at], value[self.at], self.start).write(shown)


class Pieces(NamedTuple):
    """An evaluation in several batches."""

    answers: list[Any]

    def ready(self) -> bool:
        return all(answer.ready() for answer in self.answers)

    def write(self, shown: Shown) -> None:
        for answer in self.answers:
            answer.write(shown)


class NetworkEvaluator:
    """Evaluates searches with the parameters of all seeds.

    beside: updates to hand to the device, a piece after every evaluation. `scale` `[seeds]` is what
    the searches divide rewards by.
    """

    def __init__(self, network: Network, leaves: list[Any], beside: Updates | None):
        self._network, self._beside = network, beside
        # Asking JAX for an array that it has already takes a while.
        self._leaves = [x if isinstance(x, jax.Array) else jnp.asarray(x) for x in leaves]
        self._seeds = len(self._leaves[0])
        self.scale = network.scale(self._leaves)
        self._rows: dict[int, Any] = {}

    def ask(self, question: Question) -> Any:
        rows, seeds = question.rows, self._seeds
        each = (question.high - question.low) // seeds  # rows of a seed
        if question.of_roots:  # all of the group, for `root_rows`
            sizes = [self._network.batch_of_roots(each)]
            table = np.arange(question.low, question.high).reshape(seeds, each)
            seed, place = np.divmod(rows - question.low, each)
            parts = [(rows, (seed, place))]
        else:
            low, high = question.pool.groups[question.group]
            counts = np.array([len(rows)])
            if seeds > 1:
                counts = np.bincount((rows - question.low) // each, minlength=seeds)
            sizes = self._network.pieces(int(counts.max()), (high - low) // seeds)
            table = np.full((seeds, sum(sizes)), rows[0])
            parts = list(_spread(rows, counts, sizes, table))
        answers, first = [], 0
        for size, part in zip(sizes, parts, strict=True):
            mine = table[:, first : first + size]
            answers.append(self._evaluate(question, mine, size, *part))
            first += size
            if self._beside is not None:
                self._beside.go_on()
        return answers[0] if len(answers) == 1 else Pieces(answers)

    def _evaluate(
        self, question: Question, table: np.ndarray, size: int, rows: np.ndarray, at: At
    ) -> Any:
        """Evaluate the states in the rows `table` `[seeds, n]`, filled up to `size` of each seed;
        answer for `rows`, which are in the places `at` of it."""
        network, missing = self._network, size - table.shape[1]
        if network.gpu and question.of_roots and not missing:  # copied by `joined`
            observation, packed = self._roots(question)
        else:
            table = np.pad(table, ((0, 0), (0, missing)), "edge") if missing else table
            observation, packed = question.observations(table), question.shown.allowed[table]
        (observation,) = trim(observation, gpu=network.gpu)
        if network.listed:
            found, priors = network.run("lists", self._leaves, observation, packed, question.start)
            found.copy_to_host_async()
            answer = Lists(rows, at, network.slots, found)
        else:
            priors, value = network.run("rows", self._leaves, observation, packed)
            if network.gpu:
                for x in (priors, value):
                    x.copy_to_host_async()
            answer = SeedRows(rows, at, priors, value, question.start)
        if question.of_roots:
            self._rows[question.group] = priors
        return answer

    def _roots(self, question: Question) -> tuple[Any, np.ndarray]:
        """Return what all lanes of a group show, `[seeds, n, ...]`, as views."""
        low, high, shown = question.low, question.high, question.shown

        def view(x: np.ndarray) -> np.ndarray:
            return x[low:high].reshape(self._seeds, (high - low) // self._seeds, *x.shape[1:])

        seen = {name: view(x) for name, x in shown.observation.items()}
        return question.pool.layout.observation_of(seen), view(shown.allowed)

    def root_rows(self, pool: Pool, groups: list[int]) -> Array:
        """Return the priors of the last roots of these groups, `[seeds, lanes, A]`; zeros for
        groups that were not asked about, because all their lanes are lost or rest."""
        parts = []
        for group in groups:
            low, high = pool.groups[group]
            each = (high - low) // self._seeds
            nothing = (self._seeds, each, pool.layout.num_actions)
            rows = self._rows.get(group)
            parts.append(jnp.zeros(nothing) if rows is None else rows[:, :each])
        return jnp.concatenate(parts, 1)


def _spread(
    rows: np.ndarray, counts: np.ndarray, sizes: list[int], table: np.ndarray
) -> Iterator[tuple[np.ndarray, At]]:
    """Enter rows, so many of each seed, into the beginnings of a table `[seeds, n]`; yield the rows
    that are in each piece of it, and where. sizes: of the pieces, columns of the table."""
    first = 0
    if len(counts) == 1:
        table[0, : len(rows)] = rows
        for size in sizes:
            mine = rows[first : first + size]
            yield mine, (0, slice(len(mine)))
            first += size
        return
    seed = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    table[seed, place] = rows
    for size in sizes:
        inside = (first <= place) & (place < first + size)
        yield rows[inside], (seed[inside], place[inside] - first)
        first += size


def batch_size(count: int) -> int:
    """Return one of a few sizes, of at least `count`, to fill a batch up to."""
    return max(SMALLEST_BATCH, 1 << (count - 1).bit_length())


def few_pieces(count: int, small: int, large: int) -> list[int]:
    """Return batches of these two sizes for `count` states: few of them, and not much to fill."""
    many, left = divmod(count, large)
    few = -(-left // small)
    return [large] * (many + 1) if few > _FEW else [large] * many + [small] * few
