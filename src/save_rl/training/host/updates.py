"""The updates of a lock-step, of all seeds at once, beside the simulators.

A lock-step's updates use the replay from before it, and its searches the parameters from before
these updates, so both can run at the same time. `Updates` is that overlap: the search calls `go_on`
after every batch that it hands to the device, which hands over the next pieces of the updates, and
`finish` hands over the rest. A thread hands them over where that takes as long as the updates
themselves: on a GPU they are hundreds of small kernels, and on a CPU the call of a large network
returns when it is computed.
"""

import os
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.learning import host_replay
from save_rl.learning.host_replay import HostReplay
from save_rl.learning.replay import Transition, n_step_transitions
from save_rl.networks import cut, graph, is_graph
from save_rl.training.devices import device_threads
from save_rl.training.host.ahead import Ahead, shapes
from save_rl.training.learner import Learner, Learning

# Pieces of a lock-step's updates on a GPU. A device carries out one program after the other, so the
# search waits for a piece that is under way. Handing one over takes 4 ms, however few its updates.
_PIECES = 16
_IN_A_PIECE = 2  # updates, at least


class UpdatePrograms:
    """The compiled updates of an agent.

    actions: with masks, their number; else 0. sorts: for graphs on a CPU, where a graph costs as
    much as the largest in its batch. Every batch is then sorted by size and split into this many
    parts, which threads evaluate side by side; their gradients add up to that of the batch.
    ahead: programs that were compiled before.
    """

    def __init__(
        self, learning: Learning, actions: int, options: dict[str, str], sorts: int = 0,
        ahead: Ahead | None = None,
    ):  # fmt: skip
        self.learning, self.sorts, self.gpu = learning, sorts, bool(options)
        self._ahead = ahead
        self.thread = device_threads(1, "updates") if options or sorts else None
        cores = min(sorts, os.cpu_count() or 1)
        self.parts = device_threads(cores, "parts") if sorts else None
        updates = learning.settings.updates_per_step
        pieces = max(1, min(updates // _IN_A_PIECE, _PIECES)) if options else 1
        while updates % pieces:
            pieces -= 1
        self.pieces = 1 if sorts else pieces
        self.calls = self.pieces
        """Calls of `go_on` in the last lock-step, over which the next one spreads its pieces."""
        example = jax.eval_shape(learning.initial, jax.random.PRNGKey(0))
        # Flattening modules is slow; lists of arrays are fast.
        self.structure = jax.tree.structure((example.params, example.optimiser))
        self._of_params = jax.tree.structure(example.params)
        self._actions = actions
        compiler: dict[str, Any] = {"compiler_options": options or None}

        def of_seeds(function: Any, given: int, size: int) -> Any:
            """Compile a function of one seed for all; the last `size` arguments are static."""
            static = tuple(range(given, given + size))

            def all_seeds(*arguments: Any) -> Any:
                sizes = arguments[given:]
                return jax.vmap(lambda *own: function(*own, *sizes))(*arguments[:given])

            return jax.jit(all_seeds, static_argnums=static, **compiler)

        self._compiled_update = of_seeds(self._update, 8, 2)
        self.targets = of_seeds(self._targets, 4, 1)
        self.gradient = of_seeds(self._gradient, 6, 2)
        self.step = of_seeds(self._step, 3, 0)
        self.copy = jax.jit(
            lambda params, target, which: jax.tree.map(
                lambda new, old: jnp.where(_along(which, new), new, old), params, target
            )
        )

    def close(self) -> None:
        """End the thread."""
        for threads in (self.thread, self.parts):
            if threads is not None:
                threads.shutdown()

    def update(self, *given: Any) -> Any:
        """Make the updates of a piece; the last two arguments are sizes of graphs."""
        ready = self._ahead.get(("update", *given[-2:])) if self._ahead is not None else None
        return ready(*given[:-2]) if ready else self._compiled_update(*given)

    def compile_ahead(self, learner: Learner, replay: HostReplay, size: int) -> None:
        """Compile the updates for graphs of this padded size."""
        assert self._ahead is not None
        settings = self.learning.settings
        seeds, count = len(settings.seeds), settings.updates_per_step // self.pieces
        batches = (seeds, count, settings.batch)
        given = (
            shapes(jax.tree.leaves((learner.params, learner.optimiser))),
            shapes(jax.tree.leaves(learner.target)),
            shapes(replay.data),
            jax.ShapeDtypeStruct((*batches, settings.horizon), np.int32),
            *(jax.ShapeDtypeStruct(batches, kind) for kind in (np.float32, np.bool_)),
            *(jax.ShapeDtypeStruct((seeds,), kind) for kind in (np.float32, np.bool_)),
        )
        self._ahead.add(("update", size, size), self._compiled_update, *given, size, size)

    def _batches(self, data: Transition, chains: Any, now: int, after: int) -> Transition:
        """Return transitions with targets as float32, masks as truth values, and graphs of these
        sizes."""
        taken, actions = n_step_transitions(data, chains), self._actions
        return taken._replace(
            observation=cut(taken.observation, now),
            next_observation=cut(taken.next_observation, after),
            target=host_replay.unpack_target(taken.target),
            mask=host_replay.unpack(taken.mask, actions),
            next_mask=host_replay.unpack(taken.next_mask, actions),
        )

    def _update(
        self, leaves: Any, target: Any, data: Transition, chains: Any, returns: Any, finished: Any,
        episodes: Any, active: Any, now: int, after: int,
    ) -> Any:  # fmt: skip
        learning = self.learning
        batches = self._batches(data, chains, now, after)
        of_target = jax.tree.unflatten(self._of_params, target)
        targets = learning.targets(of_target, batches, returns)
        params, optimiser = jax.tree.unflatten(self.structure, leaves)
        params, optimiser, terms = learning.descend(
            params, optimiser, batches, targets, learning.weights(finished), episodes, active
        )
        return jax.tree.leaves((params, optimiser)), terms

    def _targets(self, target: Any, data: Transition, chains: Any, returns: Any, size: int) -> Any:
        part = self._batches(data, chains, size, size)
        one = jax.tree.map(lambda x: x[None], (part, returns))
        return self.learning.targets(jax.tree.unflatten(self._of_params, target), *one)[0]

    def _gradient(
        self, leaves: Any, data: Transition, chains: Any, targets: Any, weights: Any,
        episodes: Any, now: int, after: int,
    ) -> Any:  # fmt: skip
        part = self._batches(data, chains, now, after)
        params, _ = jax.tree.unflatten(self.structure, leaves)
        betas = self.learning.betas(episodes)
        found, terms = self.learning.gradient(params, part, targets, weights, betas)
        return jax.tree.leaves(found), terms

    def _step(self, leaves: Any, found: list[Any], active: Any) -> Any:
        total, terms = jax.tree.map(lambda *each: sum(each), *found)
        params, optimiser = jax.tree.unflatten(self.structure, leaves)
        gradient = jax.tree.unflatten(self._of_params, total)
        params, optimiser = self.learning.step(
            params, optimiser, gradient, active & jnp.all(jnp.isfinite(terms))
        )
        return jax.tree.leaves((params, optimiser)), jnp.where(active, terms, 0.0)


def _along(which: Any, x: Any) -> Any:
    return which.reshape(-1, *[1] * (x.ndim - 1))


class Updates:
    """The updates of one lock-step, on transitions in `slots` `[seeds, updates, batch]`.

    The replay must not change until `finish`. active: `[seeds]` that learn; episodes: `[seeds]`.
    """

    def __init__(
        self, programs: UpdatePrograms, learner: Learner, replay: HostReplay, slots: np.ndarray,
        episodes: np.ndarray, active: np.ndarray,
    ):  # fmt: skip
        self._programs, self._learner, self._replay = programs, learner, replay
        self._chains = host_replay.chain(replay, slots, programs.learning.settings.horizon)
        self._episodes, self._active = episodes.astype(np.float32), active
        self._target = jax.tree.leaves(learner.target)
        self._leaves = jax.tree.leaves((learner.params, learner.optimiser))
        self._turn = 0 if active.any() else programs.pieces
        self._calls = 0
        self._losses: list[Any] = []  # sums of both terms `[seeds, 2]`, per piece
        self._handed: list[Future[None]] = []
        self.made = active * np.int32(slots.shape[1])
        """Number of updates `[seeds]`."""

    def go_on(self) -> None:
        """Hand over the next pieces, if some are left."""
        programs = self._programs
        self._calls += 1
        due = -(-programs.pieces * self._calls // programs.calls)
        while self._turn < min(due, programs.pieces):
            self._hand_over_next()

    def _hand_over_next(self) -> None:
        thread = self._programs.thread
        size = self._chains.shape[1] // self._programs.pieces
        chains = self._chains[:, self._turn * size : (self._turn + 1) * size]
        self._turn += 1
        if thread is None:
            self._hand_over(chains)
        else:
            self._handed.append(thread.submit(self._hand_over, chains))

    def _hand_over(self, chains: np.ndarray) -> None:
        programs = self._programs
        if programs.sorts:
            for number in range(chains.shape[1]):
                self._sorted(chains[:, number])
            return
        returns, finished = host_replay.outcomes(self._replay, chains[..., 0])
        self._leaves, terms = programs.update(
            self._leaves, self._target, self._replay.data, chains, returns, finished,
            self._episodes, self._active, *self._sizes(chains),
        )  # fmt: skip
        self._losses.append(terms)

    def _sizes(self, chains: np.ndarray) -> tuple[int, int]:
        """Return the sizes to which graphs are cut; one for both on a GPU."""
        at = np.arange(len(chains)).reshape(-1, *[1] * (chains.ndim - 1))
        sizes = np.where(chains[..., None] < 0, 0, self._replay.size[at, chains])
        # Only the last next observation is needed; room for those before it does no harm.
        most = np.array([sizes[..., 0, 0].max(), sizes[..., 1].max()])
        if self._programs.gpu:
            most[:] = most.max()
        full = _nodes(self._replay.data.observation)
        now, after = (graph.bucket_of(int(n), full, gpu=self._programs.gpu) for n in most)
        return now, after

    def _sorted(self, chains: np.ndarray) -> None:
        """Make one update `[seeds, batch]`, part by part."""
        programs, replay = self._programs, self._replay
        slots = chains[..., 0]
        returns, finished = host_replay.outcomes(replay, slots)
        weights = np.asarray(programs.learning.weights(finished))
        rows = np.arange(len(slots))[:, None]
        order = np.argsort(replay.size[rows, slots, 0], axis=1, kind="stable")
        looks_ahead = programs.learning.settings.double_q

        def gradient(which: np.ndarray) -> Any:
            part = chains[rows, which]
            now, after = self._sizes(part)
            targets = programs.targets(self._target, replay.data, part, returns[rows, which], after)
            # Else a pair of sizes means another program.
            sizes = now, after if looks_ahead else now
            return programs.gradient(
                self._leaves, replay.data, part, targets, weights[rows, which], self._episodes,
                *sizes,
            )  # fmt: skip

        assert programs.parts is not None
        found = list(programs.parts.map(gradient, np.split(order, programs.sorts, 1)))
        self._leaves, terms = programs.step(self._leaves, found, self._active)
        self._losses.append(terms)

    def finish(self, step: int) -> tuple[Learner, list[Any]]:
        """Hand over the remaining pieces of lock-step `step`; return the learner after them, and
        the sums of losses."""
        while self._turn < self._programs.pieces:
            self._hand_over_next()
        self._programs.calls = max(self._calls, 1)
        for handed in self._handed:
            handed.result()
        params, optimiser = jax.tree.unflatten(self._programs.structure, self._leaves)
        target = self._learner.target
        if self._active.any() and self._programs.learning.copies_target(step):
            target = self._programs.copy(params, target, self._active)
        return Learner(params, target, optimiser), self._losses


def _nodes(observation: Any) -> int:
    """Return the padded nodes of graphs; 0 for other observations."""
    return observation["node_mask"].shape[-1] if is_graph(observation) else 0
