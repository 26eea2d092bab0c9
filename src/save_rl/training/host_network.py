"""The network of an agent whose simulators are on the host: evaluation for searches, and updates.

Both pass NumPy arrays to the device and block as late as possible, so that updates run while the
simulators work (see `training.host` for the order).
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from save_rl.agents import Agent
from save_rl.learning import host_replay
from save_rl.learning.host_replay import HostReplay
from save_rl.learning.replay import Transition
from save_rl.networks import graph, trim
from save_rl.search.simulators import Evaluate
from save_rl.training.acting import judge
from save_rl.training.learner import Learner, Learning

_SMALLEST_BATCH = 8
_GPU_BATCH = 16  # on GPUs, batch sizes are multiples of this


class Network:
    """The agent's network as an asynchronous function of NumPy arrays.

    Batches are padded to a few sizes, so that few programs are compiled; on a GPU to the largest
    size so far. `meanwhile` is called after every dispatch.
    """

    def __init__(self, agent: Agent, learning: Learning, actions: int, options: dict[str, str]):
        structure = jax.tree.structure(
            jax.eval_shape(learning.initial, jax.random.PRNGKey(0)).params
        )

        def evaluate(leaves: list[Any], observation: Any, packed: Any) -> Any:
            head, value = learning.network(jax.tree.unflatten(structure, leaves))(observation)
            return judge(agent, head, value, unpack(packed, actions))

        self._compiled = jax.jit(evaluate, compiler_options=options or None)
        self._gpu, self._largest = bool(options), _SMALLEST_BATCH
        self.meanwhile: Callable[[], None] | None = None

    def with_params(self, params: Any) -> Evaluate:
        """Return a function that evaluates states with these parameters."""
        leaves = [jnp.asarray(x) for x in jax.tree.leaves(params)]  # copied to the device once

        def evaluate(observation: Any, mask: np.ndarray) -> tuple[Any, Any]:
            found = self.ask(leaves, observation, mask)
            if self.meanwhile is not None:
                self.meanwhile()
            return found

        return evaluate

    def ask(self, leaves: list[Any], observation: Any, mask: np.ndarray) -> tuple[Any, Any]:
        """Dispatch a batch to the device."""
        lanes = len(mask)
        size = max(_SMALLEST_BATCH, 1 << (lanes - 1).bit_length())
        if self._gpu:
            size = self._largest = max(-(-lanes // _GPU_BATCH) * _GPU_BATCH, self._largest)
        (observation,) = trim(observation, gpu=self._gpu)

        def pad(x: np.ndarray, value: Any = 0) -> np.ndarray:
            if size == lanes:
                return x
            return np.concatenate([x, np.full((size - lanes, *x.shape[1:]), value, x.dtype)])

        packed = pad(np.packbits(mask, -1), 255)
        found = self._compiled(leaves, jax.tree.map(pad, observation), packed)
        for x in found:
            x.copy_to_host_async()
        return found


def unpack(packed: Any, actions: int) -> Any:
    """Return masks `[..., actions]` from packed bits; of width 0 without action masks."""
    return jnp.unpackbits(packed, axis=-1, count=actions).astype(bool) if actions else packed


class Updates:
    """The updates of a lock-step, dispatched to the device in pieces.

    pieces: their number; 1 makes all updates in one compiled call. Call `begin`, then `go_on` at
    any time, then `finish`; none of them waits for the device. With several pieces a thread
    dispatches them: on a GPU that can take as long as the updates themselves.
    """

    def __init__(self, learning: Learning, actions: int, pieces: int, options: dict[str, str]):
        self._learning, self._pieces, self._turn = learning, pieces, pieces
        self._gpu = bool(options)
        self._thread = ThreadPoolExecutor(1, "updates") if pieces > 1 else None
        self._handed: list[Future[None]] = []
        self._size = learning.settings.updates_per_step // pieces
        self.losses: list[Any] = []  # sums of both terms, per piece
        example = jax.eval_shape(learning.initial, jax.random.PRNGKey(0))
        # Flattening modules is slow; lists of arrays are fast.
        self._structure = jax.tree.structure((example.params, example.optimiser))
        of_params = self._of_params = jax.tree.structure(example.params)

        def update(
            leaves: list[Any], target: list[Any], batches: Transition, returns: Any, finished: Any,
            episodes: Any,
        ) -> Any:  # fmt: skip
            batches = batches._replace(
                mask=unpack(batches.mask, actions), next_mask=unpack(batches.next_mask, actions)
            )
            targets = learning.targets(jax.tree.unflatten(of_params, target), batches, returns)
            params, optimiser = jax.tree.unflatten(self._structure, leaves)
            params, optimiser, terms = learning.descend(
                params, optimiser, batches, targets, learning.weights(finished), episodes
            )
            return jax.tree.leaves((params, optimiser)), terms

        self._update = jax.jit(update, compiler_options=options or None)

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown()

    def begin(self, learner: Learner, replay: HostReplay, slots: np.ndarray, episodes: Any) -> None:
        """Start the updates on transitions in `slots` `[updates, batch]`; the replay must not
        change until `finish`."""
        self._replay, self._slots, self._episodes = replay, slots, np.float32(episodes)
        self._target, self._of_target = learner.target, jax.tree.leaves(learner.target)
        self._leaves = jax.tree.leaves((learner.params, learner.optimiser))
        self._turn = 0

    def go_on(self) -> None:
        """Dispatch the next piece, if one is left."""
        if self._turn < self._pieces:
            part = self._slots[self._turn * self._size : (self._turn + 1) * self._size]
            self._turn += 1
            if self._thread is None:
                self._hand_over(part)
            else:
                self._handed.append(self._thread.submit(self._hand_over, part))

    def _hand_over(self, slots: np.ndarray) -> None:
        batches, returns, finished = host_replay.take(self._replay, slots)
        now, after = trim(batches.observation, batches.next_observation, gpu=self._gpu)
        batches = batches._replace(observation=now, next_observation=after)
        self._leaves, terms = self._update(
            self._leaves, self._of_target, batches, returns, finished, self._episodes
        )
        self.losses.append(terms)

    def finish(self, step: int) -> Learner:
        """Dispatch the remaining pieces of lock-step `step`; return the learner after them."""
        while self._turn < self._pieces:
            self.go_on()
        for handed in self._handed:
            handed.result()
        self._handed.clear()
        params, optimiser = jax.tree.unflatten(self._structure, self._leaves)
        copies = self._learning.copies_target(step)
        return Learner(params, params if copies else self._target, optimiser)


class SortedUpdates(Updates):
    """Updates for graphs on a CPU, where a graph costs as much as the largest in its batch.

    Every batch is sorted by size and split into parts, which the network evaluates one by one;
    their gradients add up to that of the batch.
    """

    def __init__(self, learning: Learning, actions: int, parts: int):
        super().__init__(learning, actions, 1, {})
        self._parts = parts
        of_params = self._of_params

        def targets(target: list[Any], part: Transition, returns: Any) -> Any:
            part = part._replace(next_mask=unpack(part.next_mask, actions))
            one = jax.tree.map(lambda x: x[None], (part, returns))
            return learning.targets(jax.tree.unflatten(of_params, target), *one)[0]

        def gradient(
            leaves: list[Any], part: Transition, targets: Any, weights: Any, episodes: Any
        ) -> Any:
            part = part._replace(mask=unpack(part.mask, actions))
            params, _ = jax.tree.unflatten(self._structure, leaves)
            found, terms = learning.gradient(
                params, part, targets, weights, learning.betas(episodes)
            )
            return jax.tree.leaves(found), terms

        def step(leaves: list[Any], found: list[Any]) -> Any:
            total, terms = jax.tree.map(lambda *each: sum(each), *found)
            params, optimiser = jax.tree.unflatten(self._structure, leaves)
            changed = learning.step(params, optimiser, jax.tree.unflatten(of_params, total))
            return jax.tree.leaves(changed), terms

        self._targets, self._gradient, self._step = map(jax.jit, (targets, gradient, step))

    def _hand_over(self, slots: np.ndarray) -> None:
        for batch in slots:
            taken, returns, finished = host_replay.take(self._replay, batch)
            weights = np.asarray(self._learning.weights(finished))
            order = np.argsort(graph.sizes(taken.observation), kind="stable")
            found = [
                self._of_part(*_rows((taken, returns, weights), which))
                for which in np.split(order, self._parts)
            ]
            self._leaves, terms = self._step(self._leaves, found)
            self.losses.append(terms)

    def _of_part(self, part: Transition, returns: np.ndarray, weights: np.ndarray) -> Any:
        """Return the gradient and the terms of the loss of a part."""
        (now,), (after,) = trim(part.observation), trim(part.next_observation)
        # Pass no unused arrays, so that each program is compiled only once per size.
        seen = part._replace(observation=now, next_observation=None, next_mask=None)
        follows = part._replace(next_observation=after, observation=None, mask=None, target=None)
        targets = self._targets(self._of_target, follows, returns)
        return self._gradient(self._leaves, seen, targets, weights, self._episodes)


def _rows(tree: Any, which: np.ndarray) -> Any:
    return jax.tree.map(lambda x: x[which], tree)
