"""The network of all seeds as an evaluator of searches: batches in, the best actions out.

Parameters have a leading seed axis, and so have batches: a group's lanes of every seed. On a GPU
the whole group is one batch of fixed shape, and only what a search can use leaves the device: the
slots of each state (`search.host`), in one array. On a CPU only new states are evaluated, and the
slots are chosen on the host, where the rows are anyway (XLA sorts slowly there).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import Agent
from save_rl.envs.pool import Pool
from save_rl.envs.worker import Arrays, Layout
from save_rl.learning.host_replay import unpack
from save_rl.networks import cut, trim
from save_rl.search.rules import TIE_TOLERANCE
from save_rl.search.simulators import Question, Rows
from save_rl.training.device.acting import prior_and_value
from save_rl.training.host.ahead import Ahead
from save_rl.training.host.updates import Updates
from save_rl.training.learner import Learning
from save_rl.types import Array

_SMALLEST_BATCH = 8


class Network:
    """The compiled functions of an agent's network; `NetworkEvaluator` uses them.

    slots: per node. batch: lanes per seed of the largest group of training lanes. whole: evaluate
    whole groups and choose the slots on the device. ahead: programs that were compiled before.
    """

    def __init__(
        self, agent: Agent, learning: Learning, layout: Layout, slots: int, batch: int,
        options: dict[str, str], ahead: Ahead | None = None,
    ):  # fmt: skip
        self.whole, self.batch, self.ahead = bool(options), batch, ahead
        self.listed = self.whole and slots < layout.num_actions
        self.slots, self._layout = slots, layout
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

        self._programs = {
            name: jax.jit(program, compiler_options=options or None)
            for name, program in (
                ("rows", jax.vmap(rows)), ("lists", jax.vmap(lists, (0, 0, 0, None))),
            )
        }  # fmt: skip

    def run(self, name: str, leaves: list[Any], observation: Any, *given: Any) -> Any:
        """Run a program on observations `[seeds, n, ...]`."""
        shown = tuple(x.shape for x in jax.tree.leaves(observation))
        ready = self.ahead.get((name, shown)) if self.ahead is not None else None
        return (ready or self._programs[name])(leaves, observation, *given)

    def compile_ahead(self, leaves: list[Any], size: int) -> None:
        """Compile the program of training lanes, for graphs of this padded size."""
        ahead, layout = self.ahead, self._layout
        assert ahead is not None
        leaves = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
        lanes = (leaves[0].shape[0], self.batch)
        packed = jax.ShapeDtypeStruct((*lanes, -(-self._actions // 8)), np.uint8)
        seen = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((*lanes, *x.shape), x.dtype),
            cut(layout.example(), size),
        )
        shown = tuple(x.shape for x in jax.tree.leaves(seen))
        given = (leaves, seen, packed)
        if self.listed:
            start = jax.ShapeDtypeStruct((), np.int32)
            ahead.add(("lists", shown), self._programs["lists"], *given, start)
        else:
            ahead.add(("rows", shown), self._programs["rows"], *given)

    def with_params(self, params: Any, beside: Updates | None = None) -> "NetworkEvaluator":
        """Return an evaluator with these parameters `[seeds, ...]`; beside: see there."""
        return NetworkEvaluator(self, jax.tree.leaves(params), beside)


def best_slots(prior: Array, value: Array, start: Any, slots: int) -> Array:
    """Return what a search needs of priors `[n, A]` and values `[n]`, `[n, 2 slots + 3]` float32.

    These are priors of the slots, their actions, value, number of allowed actions, and further ties
    (see `search.host.best_actions`); integers keep their bits.
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
    """The evaluation of a whole group, from `best_slots`; it may have more rows than lanes."""

    low: int
    high: int
    slots: int
    found: Any

    def write(self, arrays: Arrays) -> None:
        found = np.asarray(self.found)
        each = (self.high - self.low) // len(found)
        found = np.ascontiguousarray(found[:, :each]).reshape(self.high - self.low, -1)
        mine, slots = slice(self.low, self.high), self.slots
        integers = found.view(np.int32)
        arrays["prior"][mine], arrays["choice"][mine] = found[:, :slots], integers[:, slots:-3]
        arrays.value[mine] = found[:, -3]
        arrays["valid"][mine], arrays["more"][mine] = integers[:, -2], integers[:, -1]


class NetworkEvaluator:
    """Evaluates searches with the parameters of all seeds.

    beside: updates to hand to the device, a piece after every evaluation.
    """

    def __init__(self, network: Network, leaves: list[Any], beside: Updates | None):
        self._network, self._beside = network, beside
        self._leaves = [jnp.asarray(x) for x in leaves]
        self._seeds = len(self._leaves[0])
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
        each = everybody.shape[1]
        # Groups of a GPU are all as large as the largest. Products of few rows round otherwise.
        least = network.batch if network.whole else _SMALLEST_BATCH
        lanes = everybody
        if not network.whole and question.node > 0:
            lanes = _new_lanes(question.lanes, everybody)
        elif each < least:
            lanes = np.pad(everybody, ((0, 0), (0, least - each)), "edge")
        if network.whole and each >= least:
            # No copy: a worker changes what its lanes show only when this evaluation is over.
            observation, packed = self._shown(pool, low, high)
        else:
            observation, packed = pool.observation(lanes), pool.arrays["allowed"][lanes]
        (observation,) = trim(observation, gpu=network.whole)
        if network.listed:
            start = np.int32(question.start)
            found, rows = network.run("lists", self._leaves, observation, packed, start)
            if question.node == 0:
                self._rows[question.group] = rows
            found.copy_to_host_async()
            return Lists(low, high, network.slots, found)
        prior, value = network.run("rows", self._leaves, observation, packed)
        for x in (prior, value):
            x.copy_to_host_async()
        if question.node == 0:
            self._rows[question.group] = prior
        return SeedRows(lanes, prior, value, question.start)

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

    def write(self, arrays: Arrays) -> None:
        prior, value = np.asarray(self.prior), np.asarray(self.value)
        flat = Rows(
            self.lanes.reshape(-1), prior.reshape(-1, prior.shape[-1]), value.reshape(-1),
            self.start,
        )  # fmt: skip
        flat.write(arrays)


def batch_size(count: int) -> int:
    """Return one of a few sizes, of at least `count`, to fill a batch up to."""
    return max(_SMALLEST_BATCH, 1 << (count - 1).bit_length())


def _new_lanes(lanes: np.ndarray, everybody: np.ndarray) -> np.ndarray:
    """Return the lanes to evaluate, `[seeds, n]`, filled up to one of a few sizes."""
    seeds, each = everybody.shape
    seed = (lanes - everybody[0, 0]) // each
    counts = np.bincount(seed, minlength=seeds)
    filled = np.repeat(everybody[:, :1], batch_size(int(counts.max())), 1)
    filled[seed, np.arange(len(lanes)) - np.repeat(np.cumsum(counts) - counts, counts)] = lanes
    return filled
