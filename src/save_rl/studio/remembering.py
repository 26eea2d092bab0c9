"""A recurrent agent, as the studio has it act: what it remembers comes from the states before."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from save_rl.envs.layout import Layout
from save_rl.rescaling import unscale
from save_rl.search.nodes import tree_nodes
from save_rl.search.simulators import Roots
from save_rl.studio.records import ShownDecision
from save_rl.training.host.actor import Actor, slots_of
from save_rl.training.r2d2.network import RecurrentEvaluator
from save_rl.training.r2d2.setup import Setup
from save_rl.training.run.trained import read_params
from save_rl.training.settings import TrainSettings
from save_rl.types import State


class Remembering:
    """The recurrent agent of a run with the parameters of a checkpoint.

    Of the searches that differ in budget and c, it keeps the last one and what it remembers.
    """

    def __init__(self, folder: Path, settings: TrainSettings, simulator: Any, best: bool):
        self._simulator = simulator
        self._setup = setup = Setup(settings, Layout.of(simulator))
        template = jax.eval_shape(setup.networks.initial, jax.random.PRNGKey(0)).params
        self._params, _ = read_params(folder, template, "run", last=not best)
        self._asked: tuple[int, float] | None = None
        self._seen: list[State] = []

    def decide(self, states: Sequence[State], budget: int, c: float, seed: int) -> ShownDecision:
        """Decide in the last of the states of an episode, which begin with its first."""
        self._prepare(budget, c)
        *past, here = states
        self._remember(past)
        setup, evaluator = self._setup, self._evaluator
        rng = np.random.default_rng(seed)
        roots, action = self._actor.decide_at(here, self._search, evaluator, rng)
        prior = np.asarray(unscale(evaluator.root_q.astype(np.float64)))
        found = roots._replace(q_values=setup.points(roots.q_values))
        values, _ = found.of_all_actions(prior)
        tree = self._actor.pool.local.trees(self._search.groups[0]) if budget > 0 else None
        root, *others = tree_nodes(tree, 0, setup.agent.test_search)
        nodes = [root] + [
            node._replace(value=self._points(node.value), prior=self._points(node.prior))
            for node in others
        ]
        return ShownDecision(action, prior[0], values[0], _visits(found, prior.shape[1]), nodes)

    def _prepare(self, budget: int, c: float) -> None:
        """Make a search with this budget and c, unless the last one was like that."""
        if self._asked == (budget, c):
            return
        setup = self._setup
        self._actor = Actor(
            replace(setup.settings, c=c), [self._simulator], plays=setup.agent, lanes=0,
            test_lanes=1, slots=slots_of(setup.agent, budget, setup.layout), space=setup.space,
        )  # fmt: skip
        self._search = self._actor.test_search(budget)
        self._evaluator = RecurrentEvaluator(setup.networks, 1, budget).use(self._params)
        self._asked, self._seen = (budget, c), []

    def _remember(self, past: list[State]) -> None:
        """Have the network see these states, in their order; not those that it has just seen."""
        known = len(self._seen)
        same = known <= len(past) and all(
            a is b for a, b in zip(self._seen, past, strict=False)
        )  # fmt: skip
        if not same:
            self._evaluator.commit_step(np.array([True]))
            known = 0
        for state in past[known:]:
            self._actor.pool.place(self._search.low, state)
            self._search.priors(self._evaluator)
            self._evaluator.commit_step(np.array([False]))
        self._seen = past

    def _points(self, value: float) -> float:
        return float(self._setup.points(np.array(value)))


def _visits(roots: Roots, actions: int) -> np.ndarray:
    """Return the visits of all actions `[A]` of the one lane."""
    if roots.actions.shape[1] == 0:
        return roots.visits[0].copy()
    visits = np.zeros(actions, np.int32)
    tried = roots.explored[0]
    visits[roots.actions[0, tried]] = roots.visits[0, tried]
    return visits
