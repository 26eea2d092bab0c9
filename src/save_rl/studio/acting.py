"""The trained agent of a run, as the studio has it act: any checkpoint, budget and c."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from save_rl.agents import get_agent
from save_rl.envs import GYM, make_simulator
from save_rl.errors import InputError
from save_rl.policy import load
from save_rl.search.nodes import tree_nodes
from save_rl.studio.places import Step
from save_rl.studio.records import ShownDecision, decision_record
from save_rl.studio.watched import Watched
from save_rl.training.host.levels import hardest_level, has_levels
from save_rl.training.run.checkpoint import numbers
from save_rl.training.run.run_directory import BEST
from save_rl.training.run.trained import settings_of_run
from save_rl.training.settings import TrainSettings
from save_rl.types import Simulator, State

_LAST = "checkpoints"
# Decides in the last of an episode's states, with this budget, c and seed.
Decide = Callable[[Sequence[State], int, float, int], ShownDecision]


class Acting:
    """The agent of a run with its simulator.

    trust: see `save_rl.load`. tick: called at every step of the simulator.
    """

    def __init__(self, folder: Path, trust: bool, tick: Callable[[], None]):
        settings = settings_of_run(folder, "run", trust)
        self.simulator: Any = Watched(_simulator(settings), tick)
        self._folder, self._settings, self._trust = folder, settings, trust
        self._agents: dict[tuple[bool, int], tuple[int, Any]] = {}

    def choices(self) -> dict[str, Any]:
        """Return what there is to choose."""
        sim = self.simulator
        levels = hardest_level(sim) + 1 if has_levels(sim) else 0
        return {"levels": levels, "actions": sim.num_actions, "pictures": hasattr(sim, "render")}

    def decide(
        self, states: Sequence[State], *, seed: int, budget: int, c: float, best: bool, of: int
    ) -> tuple[dict[str, Any], Step]:
        """Search from the last of the states of an episode, which begin with its first.

        Returns the record of the decision, and the step that it leads to. seed: of the episode; it
        seeds the search. of: the run's seed.
        """
        number, sim = len(states) - 1, self.simulator
        agent = self._agent(best, of)
        sim.luck.clear()
        decision = agent(states, budget, c, search_seed(seed, number))
        decision = decision._replace(luck=tuple(sim.luck))
        chance = bool(getattr(sim, "stochastic", False))
        step = Step(decision.action, real_luck(seed, number) if chance else None)
        return decision_record(sim, states[-1], decision), step

    def _agent(self, best: bool, seed: int) -> Decide:
        """Return the agent with the parameters of a checkpoint, read again if there is a newer one.

        seed: of the run.
        """
        newest = max(numbers(self._folder / (BEST if best else _LAST)), default=-1)
        known, agent = self._agents.get((best, seed), (-1, None))
        if agent is None or known != newest:
            agent = self._load(best, seed)
            self._agents[best, seed] = newest, agent
        return agent

    def _load(self, best: bool, seed: int) -> Decide:
        settings, sim = self._settings, self.simulator
        if get_agent(settings.agent).recurrent:
            from save_rl.studio.remembering import Remembering

            return Remembering(self._folder, settings, sim, best).decide
        policy = load(
            self._folder, seed=seed, last=not best, trust=self._trust, simulator=sim
        )  # fmt: skip

        def decide(states: Sequence[State], budget: int, c: float, seed: int) -> ShownDecision:
            found = policy.act(states[-1], budget, c=c, simulator=sim, seed=seed)
            arrays = None if found.tree is None else found.tree.arrays
            nodes = tree_nodes(arrays, 0, policy.agent.test_search)
            return ShownDecision(found.action, found.prior, found.q_values, found.visits, nodes)

        return decide


def _simulator(settings: TrainSettings) -> Simulator:
    """Return the simulator of a run; Gymnasium's environments draw only if they are told so."""
    env, seed, options = settings.env, settings.seeds[0], settings.all_env_options
    if env.startswith(GYM) and "render_mode" not in options:
        with contextlib.suppress(InputError):  # this one does not draw
            return make_simulator(env, seed, render_mode="rgb_array", **options)
    return make_simulator(env, seed, **options)


def search_seed(seed: int, number: int) -> int:
    """Return the seed of the search at a state of an episode."""
    return int(np.random.default_rng((seed, number)).integers(2**31))


def real_luck(seed: int, number: int) -> int:
    """Return the luck of a real step, in a simulator with chance."""
    return int(np.random.default_rng((seed, number, 1)).integers(2**31))
