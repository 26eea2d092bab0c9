"""The trained agent of a run, as the studio has it act: any checkpoint, budget and c."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from save_rl.agents import get_agent
from save_rl.envs import GYM, make_simulator
from save_rl.errors import InputError
from save_rl.policy import Policy, load
from save_rl.search.draw import tree_nodes
from save_rl.studio.places import Step
from save_rl.studio.records import Decision, decision_record
from save_rl.studio.watched import Watched
from save_rl.training.host.actor import hardest_level, has_levels
from save_rl.training.run.checkpoint import numbers
from save_rl.training.run.run_directory import BEST
from save_rl.training.run.trained import settings_of_run
from save_rl.training.settings import TrainSettings
from save_rl.types import Simulator, State

_LAST = "checkpoints"


class Acting:
    """The agent of a run with its simulator.

    trust: see `save_rl.load`. tick: called at every step of the simulator.
    """

    def __init__(self, folder: Path, trust: bool, tick: Callable[[], None]):
        settings = settings_of_run(folder, "run", trust)
        agent = get_agent(settings.agent)
        if agent.recurrent:
            raise InputError(
                f"'{agent.name}' remembers an episode, so the studio can't search from single "
                "states of it; save-rl watch plays it."
            )
        self.simulator: Any = Watched(_simulator(settings), tick)
        self._folder, self._settings, self._agent, self._trust = folder, settings, agent, trust
        self._policies: dict[tuple[bool, int], tuple[int, Policy]] = {}

    def choices(self) -> dict[str, Any]:
        """Return what there is to choose."""
        sim = self.simulator
        levels = hardest_level(sim) + 1 if has_levels(sim) else 0
        return {"levels": levels, "actions": sim.num_actions, "pictures": hasattr(sim, "render")}

    def policy(self, best: bool, seed: int) -> Policy:
        """Return the agent with the parameters of a checkpoint, read again if there is a newer one.

        seed: of the run.
        """
        newest = max(numbers(self._folder / (BEST if best else _LAST)), default=-1)
        known, policy = self._policies.get((best, seed), (-1, None))
        if policy is None or known != newest:
            policy = load(
                self._folder, seed=seed, last=not best, trust=self._trust, simulator=self.simulator
            )
            self._policies[best, seed] = newest, policy
        return policy

    def decide(
        self, state: State, *, seed: int, number: int, budget: int, c: float, best: bool, of: int
    ) -> tuple[dict[str, Any], Step]:
        """Search from a state; return the record of the decision, and the step that it leads to.

        seed, number: of the episode, and of the state in it; they seed the search. of: the run's
        seed.
        """
        policy = self.policy(best, of)
        self.simulator.luck.clear()
        found = policy.act(
            state, budget, c=c, simulator=self.simulator, seed=search_seed(seed, number)
        )
        rule = self._agent.test_search
        decision = Decision(
            found.action, found.prior, found.q_values, found.visits,
            tree_nodes(found.tree, 0, rule), tuple(self.simulator.luck),
        )  # fmt: skip
        chance = bool(getattr(self.simulator, "stochastic", False))
        step = Step(found.action, real_luck(seed, number) if chance else None)
        return decision_record(self.simulator, state, decision), step


def _simulator(settings: TrainSettings) -> Simulator:
    """Return the simulator of a run; Gymnasium's environments draw only if they are told so."""
    env, seed, options = settings.env, settings.seeds[0], settings.env_options
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
