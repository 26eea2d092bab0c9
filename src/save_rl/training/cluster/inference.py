"""One process that evaluates the network for all actors, on the learner's GPU if it has one.

Requests that arrive within half a millisecond form one batch.
"""

import asyncio
from typing import Any

import jax
import numpy as np

from save_rl.training import host
from save_rl.training.run_directory import settings_from_json

_GATHER = 5e-4  # seconds to wait for further requests


class Inference:
    """Evaluates the network for actors; its methods may be called concurrently.

    settings: of the run, in plain values. device: see `select_device`.
    """

    def __init__(self, settings: dict[str, Any], device: str):
        from save_rl.envs import make_all
        from save_rl.training.devices import compiler_options, select_device

        made, self._device = settings_from_json(settings), select_device(device)
        envs = make_all(made.env, made.seeds, **made.env_options)
        with jax.default_device(self._device):
            self._program = host.Program(
                made, envs, train=False, test_lanes=1, options=compiler_options(self._device)
            )
        self._waiting: list[tuple[Any, np.ndarray, asyncio.Future[Any]]] = []
        self._working: asyncio.Task[None] | None = None

    async def use(self, leaves: list[Any]) -> None:
        """Use these parameters from now on."""
        with jax.default_device(self._device):
            self._evaluate = self._program.acting(leaves)

    async def evaluate(self, observation: Any, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate the states of an actor, see `search.simulators.Evaluate`."""
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
        observation = jax.tree.map(lambda *x: np.concatenate(x), *(one[0] for one in asked))
        mask = np.concatenate([one[1] for one in asked])
        with jax.default_device(self._device):
            prior, value = (np.asarray(x) for x in self._evaluate(observation, mask))
        ends = np.cumsum([len(one[1]) for one in asked])
        starts = [0, *ends[:-1]]
        return [
            (np.array(prior[a:b]), np.array(value[a:b])) for a, b in zip(starts, ends, strict=True)
        ]
