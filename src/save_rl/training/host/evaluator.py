"""The network of all seeds as an evaluator of searches: batches in, the best actions out.

Parameters have a leading seed axis, and so have batches: a group's lanes of every seed that have a
new state, filled up to one of a few sizes. On a GPU these are the group and half of it, both
compiled ahead. A batch goes to the device in one array, because every transfer takes a while to
start, and only what a search can use leaves it, also in one array: the slots of each state
(`search.host`). On a CPU the slots are chosen on the host, where the rows are anyway (XLA sorts
slowly there).
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import Agent
from save_rl.envs.layout import Arrays, Layout
from save_rl.envs.pool import Pool
from save_rl.learning.host_replay import unpack
from save_rl.networks import cut, trim
from save_rl.search.rules import TIE_TOLERANCE
from save_rl.search.simulators import Question, Rows, is_computed
from save_rl.training.device.acting import prior_and_value
from save_rl.training.host.ahead import Ahead
from save_rl.training.host.updates import Updates
from save_rl.training.learner import Learning
from save_rl.types import Array

SMALLEST_BATCH = 8  # products of few rows round otherwise


class Network:
    """The compiled functions of an agent's network; `NetworkEvaluator` uses them.

    slots: per node. batch: lanes per seed of the largest group of training lanes. ahead: programs
    that were compiled before.
    """

    def __init__(
        self, agent: Agent, learning: Learning, layout: Layout, slots: int, batch: int,
        options: dict[str, str], ahead: Ahead | None = None,
    ):  # fmt: skip
        self.gpu, self.batch, self.ahead = bool(options), batch, ahead
        self.listed = self.gpu and slots < layout.num_actions
        self.slots, self._layout, self._learning = slots, layout, learning
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

    def batch_size(self, count: int, each: int) -> int:
        """Return the lanes per seed to evaluate if `count` of `each` are new."""
        if self.gpu:
            return next(size for size in batch_sizes(max(self.batch, each)) if size >= count)
        return max(each, SMALLEST_BATCH) if count == each else batch_size(count)

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


class Lists(NamedTuple):
    """An evaluation of lanes `[seeds, n]` from `best_slots`; a lane may occur several times."""

    lanes: np.ndarray
    slots: int
    found: Any

    def ready(self) -> bool:
        return is_computed(self.found)

    def write(self, arrays: Arrays) -> None:
        lanes, slots = self.lanes.reshape(-1), self.slots
        found = np.asarray(self.found).reshape(len(lanes), -1)
        integers = found.view(np.int32)
        arrays["prior"][lanes], arrays["choice"][lanes] = found[:, :slots], integers[:, slots:-3]
        arrays.value[lanes] = found[:, -3]
        arrays["valid"][lanes], arrays["more"][lanes] = integers[:, -2], integers[:, -1]


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
        answer = self._ask(question)
        if self._beside is not None:
            self._beside.go_on()
        return answer

    def _ask(self, question: Question) -> Any:
        network, pool = self._network, question.pool
        low, high = pool.groups[question.group]
        everybody = np.arange(low, high).reshape(self._seeds, -1)
        lanes = self._lanes(question, everybody)
        if network.gpu and lanes is everybody:
            observation, packed = self._shown(pool, low, high)  # copied by `joined`
        else:
            observation, packed = pool.observation(lanes), pool.arrays["allowed"][lanes]
        (observation,) = trim(observation, gpu=network.gpu)
        if network.listed:
            found, rows = network.run("lists", self._leaves, observation, packed, question.start)
            if question.node == 0:
                self._rows[question.group] = rows
            found.copy_to_host_async()
            return Lists(lanes, network.slots, found)
        prior, value = network.run("rows", self._leaves, observation, packed)
        if network.gpu:
            for x in (prior, value):
                x.copy_to_host_async()
        if question.node == 0:
            self._rows[question.group] = prior
        return SeedRows(lanes, prior, value, question.start)

    def _lanes(self, question: Question, everybody: np.ndarray) -> np.ndarray:
        """Return the lanes to evaluate `[seeds, n]`: of roots all of the group, else the new ones
        of each seed. Batches are filled up with the last or first lane of the seed."""
        each = everybody.shape[1]
        if question.node == 0:
            missing = self._network.batch_size(each, each) - each
            return np.pad(everybody, ((0, 0), (0, missing)), "edge") if missing else everybody
        seed = (question.lanes - everybody[0, 0]) // each
        counts = np.bincount(seed, minlength=self._seeds)
        size = self._network.batch_size(int(counts.max()), each)
        if size == each:
            return everybody
        lanes = np.repeat(everybody[:, :1], size, 1)
        lanes[seed, np.arange(len(seed)) - np.repeat(np.cumsum(counts) - counts, counts)] = (
            question.lanes
        )
        return lanes

    def _shown(self, pool: Pool, low: int, high: int) -> tuple[Any, np.ndarray]:
        """Return what lanes `low` to `high` show, `[seeds, n, ...]`, as views."""

        def view(x: np.ndarray) -> np.ndarray:
            return x[low:high].reshape(self._seeds, (high - low) // self._seeds, *x.shape[1:])

        arrays = pool.arrays
        seen = {name: view(x) for name, x in arrays.observation.items()}
        return pool.layout.observation_of(seen), view(arrays["allowed"])

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


class SeedRows(NamedTuple):
    """An evaluation of lanes `[seeds, n]` with the priors of all actions `[seeds, n, A]`.

    A lane may occur several times: batches are filled up.
    """

    lanes: np.ndarray
    prior: Any
    value: Any
    start: int

    def ready(self) -> bool:
        return is_computed(self.prior)

    def write(self, arrays: Arrays) -> None:
        prior, value = np.asarray(self.prior), np.asarray(self.value)
        flat = Rows(
            self.lanes.reshape(-1), prior.reshape(-1, prior.shape[-1]), value.reshape(-1),
            self.start,
        )  # fmt: skip
        flat.write(arrays)


def batch_size(count: int) -> int:
    """Return one of a few sizes, of at least `count`, to fill a batch up to."""
    return max(SMALLEST_BATCH, 1 << (count - 1).bit_length())


def batch_sizes(batch: int) -> list[int]:
    """Return the sizes of batches on a GPU: half of the largest and the largest.

    Every size is a program that takes seconds to compile.
    """
    return sorted({max(-(-batch // 2), min(SMALLEST_BATCH, batch)), batch})
