"""One process that evaluates the network for all actors, on the learner's GPU if it has one.

Requests that arrive within half a millisecond form one batch.
"""

import asyncio
from typing import Any

import jax
import numpy as np

from save_rl.agents import get_agent
from save_rl.envs.layout import Layout
from save_rl.envs.pool import Pool
from save_rl.networks import trim
from save_rl.search.simulators import Evaluate, Question, Rows
from save_rl.training.host.evaluator import Network, batch_size
from save_rl.training.host.learner import make_learning
from save_rl.training.run.run_directory import settings_from_json

_GATHER = 5e-4  # seconds to wait for further requests


class RemoteEvaluator:
    """Evaluates the searches of an actor in another process.

    ask: maps observations and packed masks `[n, ...]` to priors and values, as
    `Inference.evaluate` does.
    """

    def __init__(self, ask: Evaluate):
        self._ask = ask
        self._rows: dict[int, np.ndarray] = {}  # of the last roots, by group

    def ask(self, question: Question) -> Rows:
        """Evaluate some states; see `search.simulators.Evaluator`."""
        prior, value = self._ask(question.observation, question.shown.allowed[question.rows])
        if question.of_roots:
            rows = self._rows[question.group] = _no_rows(question.pool, question.group)
            rows[question.rows - question.low] = prior
        return Rows(question.rows, prior, value, question.start)

    def root_rows(self, pool: Pool, groups: list[int]) -> np.ndarray:
        """Return the priors of the last roots of these groups, `[1, lanes, A]`."""
        parts = [self._rows.get(group, _no_rows(pool, group)) for group in groups]
        return np.concatenate(parts)[None]


def _no_rows(pool: Pool, group: int) -> np.ndarray:
    low, high = pool.groups[group]
    return np.zeros((high - low, pool.layout.num_actions), np.float32)


class Inference:
    """Evaluates the network for actors; its methods may be called concurrently.

    settings: of the run, in plain values. device: see `select_device`.
    """

    def __init__(self, settings: dict[str, Any], device: str):
        from save_rl.envs import make_all
        from save_rl.training.devices import compiler_options, select_device

        made, self._device = settings_from_json(settings), select_device(device)
        (simulator,) = make_all(made.env, made.seeds, **made.all_env_options)
        layout, options = Layout.of(simulator), compiler_options(self._device)
        with jax.default_device(self._device):
            learning = make_learning(made, simulator)
            self._network = Network(
                get_agent(made.agent), learning, layout, layout.num_actions, 0, options
            )
        self._largest = 0  # batch so far
        self._waiting: list[tuple[Any, np.ndarray, asyncio.Future[Any]]] = []
        self._working: asyncio.Task[None] | None = None

    async def use(self, leaves: list[Any]) -> None:
        """Use these parameters `[1, ...]` from now on."""
        self._leaves = jax.device_put(leaves, self._device)

    async def evaluate(self, observation: Any, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return priors and values of the states of an actor; mask: as packed bits."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((observation, mask, answer))
        if self._working is None:
            self._working = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        while self._waiting:
            await asyncio.sleep(_GATHER)
            asked, self._waiting = self._waiting, []
            try:
                answers = self._answer(asked)
            except Exception as error:  # raised in the actors that asked
                answers = [error] * len(asked)
            for (_, _, future), answer in zip(asked, answers, strict=True):
                if future.cancelled():
                    continue
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)
        self._working = None

    def _answer(self, asked: list[Any]) -> list[Any]:
        ends = np.cumsum([len(one[1]) for one in asked])
        size = batch_size(int(ends[-1]))
        if self._network.gpu:  # compiling for a GPU is slow
            size = self._largest = max(size, self._largest)
        seen, mask = jax.tree.map(
            lambda *parts: _filled(np.concatenate(parts), size), *(one[:2] for one in asked)
        )
        (seen,) = trim(seen, gpu=self._network.gpu)
        with jax.default_device(self._device):
            prior, value = (
                np.asarray(x)[0] for x in self._network.run("rows", self._leaves, seen, mask)
            )
        starts = [0, *ends[:-1]]
        return [
            (np.array(prior[a:b]), np.array(value[a:b])) for a, b in zip(starts, ends, strict=True)
        ]


def _filled(x: np.ndarray, size: int) -> np.ndarray:
    """Return a batch `[n, ...]` as `[1, size, ...]`, filled up with its first row."""
    return np.concatenate([x, np.repeat(x[:1], size - len(x), 0)])[None]
