"""A trained network as a player of a Python simulator, by the host's search.

The searches of device and host give the same values, so a run of either plays as in its tests.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from save_rl import search
from save_rl.agents import Agent
from save_rl.envs.worker import allowed_actions
from save_rl.errors import InputError
from save_rl.players import Move, Player, RootValues, make_move
from save_rl.search.rules import Rule
from save_rl.training.settings import TrainSettings
from save_rl.training.trainer import NO_PLAYER
from save_rl.types import SearchResult, Simulator, State

# Maps observations `[B, ...]` to the network's output per action `[B, A]` and value `[B]` or None.
Network = Callable[[Any], tuple[Any, Any]]


def network_player(
    agent: Agent, settings: TrainSettings, with_params: Callable[[Any], Network], params: Any,
    sim: Simulator, budget: int,
) -> Player:  # fmt: skip
    """Return a player that acts as an agent does in tests, with `budget` simulations a decision.

    with_params: returns the network with these parameters. params: of all seeds, `[seeds, ...]`;
    the first one plays. Raises InputError for agents whose search needs no network.
    """
    if agent.prior == "none" or agent.test_search not in (Rule.SAVE, Rule.PUCT):
        raise InputError(NO_PLAYER)
    compiled = jax.jit(lambda params, seen: with_params(params)(seen))
    network: Network = partial(compiled, jax.tree.map(lambda x: x[0], params))

    def move(state: State, rng: np.random.Generator) -> Move:
        prior = _prior(network, sim, state)
        options: dict[str, Any] = {
            "budget": budget, "c": settings.c, "discount": settings.discount,
            "seed": int(rng.integers(2**31)),
        }  # fmt: skip
        if budget == 0:
            visits = np.zeros((1, len(prior)), np.int32)
            result = SearchResult(prior[None], visits, visits > 0)
        elif agent.test_search == Rule.SAVE:
            result = search.save(sim, [state], lambda seen: network(seen)[0], **options)
        else:
            result = search.puct(sim, [state], lambda seen: _policy_value(network, seen), **options)
        action, remark = _choose(agent, result, budget)
        made = make_move(sim, state, action, remark)
        if agent.prior != "q":  # else values before and after the search have the same units
            return made
        values = RootValues(prior, result.q_values[0], result.explored[0], action)
        return made._replace(values=values)

    return move


def _prior(network: Network, sim: Simulator, state: State) -> np.ndarray:
    """Return the network's output for a state, `[A]`, -inf where an action is masked."""
    seen = jax.tree.map(lambda x: np.asarray(x)[None], sim.observe(state))
    prior = np.asarray(network(seen)[0], np.float32)[0]
    if not hasattr(sim, "action_mask"):
        return prior
    return np.where(allowed_actions(sim, state, sim.num_actions), prior, np.float32(-np.inf))


def _policy_value(network: Network, seen: Any) -> tuple[Any, Any]:
    """Return logits and value; π = softmax(Qθ) has the highest Qθ as its value."""
    head, value = network(seen)
    return head, head.max(-1) if value is None else value


def _choose(agent: Agent, result: SearchResult, budget: int) -> tuple[int, str]:
    """Return the best action among those that were tried, and what to say about it."""
    q, visits, explored = result.q_values[0], result.visits[0], result.explored[0]
    if budget == 0:
        action = int(q.argmax())
        return action, f"Q {q[action]:.2f}" if agent.prior == "q" else ""
    score = np.where(explored, visits if agent.act == "visits" else q, -np.inf)
    action, tried = int(score.argmax()), int(explored.sum())
    plural = "" if tried == 1 else "s"
    return action, f"Q {q[action]:.2f} ({visits[action]} visits, {tried} action{plural} tried)"
