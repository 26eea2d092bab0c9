"""Agents with tables instead of networks, on Tightrope (paper, B.2).

One call of `run` is one seed: it trains for some episodes, then tests, all inside compiled code
with the kernels of `search.trees`. It releases the GIL, so many seeds run in threads.

| agent | table | after each episode |
|---|---|---|
| Q-learning | Q = 0 | a pass over the replay in random order: `Q(s,a) += 0.01 (target - Q(s,a))` |
| SAVE | Q = 0 | the same, with `Q(s,·) += softmax(Q_MCTS) - softmax(Q(s,·))` |
| PUCT | V = 0, π uniform | V(s) moves halfway to the episode's return; π(s) = visit frequencies |
| UCT | none | nothing |
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from save_rl.agents import ACTS, Agent
from save_rl.compiled import njit
from save_rl.envs import tightrope
from save_rl.errors import InputError
from save_rl.search import noise as root_noise
from save_rl.search import trees as kernels
from save_rl.search.rules import Rule, Space
from save_rl.training.host.acting import act

_transition = njit(tightrope.transition)
_UCT, _PUCT = int(Rule.UCT), int(Rule.PUCT)
_PLAIN = int(Space.PLAIN)


@dataclass(frozen=True)
class TabularSettings:
    """Settings of the tabular experiments."""

    episodes: int = 500  # paper B.2
    test_episodes: int = 100  # paper B.2
    c: float = 0.1  # paper B.2
    epsilon: float = 0.1  # paper B.2
    discount: float = 1.0  # our choice; the paper does not say
    learning_rate_q: float = 0.01  # paper B.2, β_Q
    learning_rate_a: float = 1.0  # paper B.2, β_A
    replay: int = 1000  # paper B.2
    value_step: float = 0.5  # paper B.2, α


class _Env(NamedTuple):
    fatal: np.ndarray
    step_reward: float
    goal_reward: float
    first_goal: int


class _Tables(NamedTuple):
    """q: `[S, A]` Qθ, or π for PUCT. value: `[S]`, PUCT's V."""

    q: np.ndarray
    value: np.ndarray


class _Replay(NamedTuple):
    """Transitions; `target` `[R, A]` is softmax(Q_MCTS)."""

    state: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_state: np.ndarray
    terminal: np.ndarray
    target: np.ndarray


@njit(refcounts=True)
def softmax(row, out):
    """Write the softmax of `[A]` to `out`."""
    top = row.max()
    total = 0.0
    for a in range(row.shape[0]):
        out[a] = np.exp(row[a] - top)
        total += out[a]
    for a in range(row.shape[0]):
        out[a] /= total


@njit(refcounts=True)
def update_q(q, state, action, target, rate_q, policy, rate_a, scratch):
    """Take a gradient step on β_Q ½(target - Q(s,a))² + β_A L_A, both evaluated at the same Q."""
    error = target - q[state, action]
    if rate_a > 0:
        softmax(q[state], scratch)
        for a in range(q.shape[1]):
            q[state, a] += rate_a * (policy[a] - scratch[a])
    q[state, action] += rate_q * error


@njit(refcounts=True)
def _rollout(env, position, goal, discount):
    """Return the discounted return of a uniformly random policy to the end of the episode."""
    total, weight, over = 0.0, 1.0, False
    while not over:
        action = np.random.randint(env.fatal.shape[1])
        position, reward, over = _transition(
            env.fatal, env.step_reward, env.goal_reward, position, goal, action
        )
        total += weight * reward
        weight *= discount
    return total


@njit(refcounts=True)
def _search(trees, positions, env, tables, prior, rule, goal, budget, c, discount):
    """Search from `positions[0]` with this root prior; the tree is in lane 0."""
    every = trees.choice[0, 0]  # of width 0: every action has a slot
    kernels.plant(trees, 0, prior, every, -1, 0)
    seed = np.random.randint(2**31 - 1)
    for k in range(budget):
        node, action = kernels.select(trees, 0, k, rule, _PLAIN, c, seed)
        value = 0.0
        if action >= 0:
            position, reward, over = _transition(
                env.fatal, env.step_reward, env.goal_reward, positions[node], goal, action
            )
            positions[k + 1] = position
            row = tables.q[position]
            node = kernels.expand(trees, 0, k, node, action, reward, over, row, every, -1, 0)
            if not over:
                if rule == _UCT:
                    value = _rollout(env, position, goal, discount)
                elif rule == _PUCT:
                    value = tables.value[position]
                else:
                    value = row.max()
        kernels.backup(trees, 0, node, value, discount, _PLAIN)


@njit(refcounts=True)
def run(
    env, rule, test_rule, td, amortize, puct, how, noise, seed, budget,
    episodes, test_episodes, c, epsilon, discount, rate_q, rate_a, capacity, value_step, trees,
):  # fmt: skip
    """Train and test one seed; `rule` -1 trains without search. Return the test rewards."""
    np.random.seed(seed)
    states, actions = env.fatal.shape
    tables = _Tables(np.zeros((states, actions)), np.zeros(states))
    if puct:
        tables.q[:] = 1.0 / actions
    positions = np.zeros(budget + 1, np.int64)
    replay = _Replay(
        np.zeros(capacity, np.int64), np.zeros(capacity, np.int64), np.zeros(capacity),
        np.zeros(capacity, np.int64), np.zeros(capacity, np.bool_),
        np.zeros((capacity, actions if amortize else 1)),
    )  # fmt: skip
    order = np.zeros(capacity, np.int64)
    stored = 0
    prior, scratch, q_values = np.zeros(actions), np.zeros(actions), np.zeros(actions)
    visits = np.zeros(actions, np.int64)
    every, unmasked = trees.choice[0, 0], np.zeros(0, np.uint8)  # all actions have slots
    episode_states, episode_rewards = np.zeros(states, np.int64), np.zeros(states)
    episode_policies = np.zeros((states, actions))
    results = np.zeros(test_episodes)
    learns = td or amortize or puct
    for episode in range((0 if learns else episodes), episodes + test_episodes):
        test = episode >= episodes
        search_rule = test_rule if test else rule
        searching = search_rule >= 0 and budget > 0
        goal = np.random.randint(env.first_goal, states)
        position, over, steps = 0, False, 0
        while not over:
            visits[:] = 0
            q_values[:] = tables.q[position]
            if searching:
                if puct and not test:
                    root_noise.mix_noise(tables.q[position], noise, prior)
                else:
                    prior[:] = tables.q[position]
                positions[0] = position
                _search(
                    trees, positions, env, tables, prior, search_rule, goal, budget, c, discount
                )
                kernels.root_result(trees, 0, search_rule, q_values, visits)
            action = act(
                searching, how, c, -1.0 if test else epsilon, q_values, visits, every, unmasked,
                actions,
            )  # fmt: skip
            after, reward, over = _transition(
                env.fatal, env.step_reward, env.goal_reward, position, goal, action
            )
            if test:
                results[episode - episodes] += reward
            elif puct:
                episode_policies[steps] = visits / max(visits.sum(), 1)
            else:
                slot = stored % capacity
                replay.state[slot], replay.action[slot] = position, action
                replay.reward[slot], replay.next_state[slot] = reward, after
                replay.terminal[slot] = over
                if amortize:
                    softmax(q_values, replay.target[slot])
                stored += 1
            episode_states[steps], episode_rewards[steps] = position, reward
            position = after
            steps += 1
        if test:
            continue
        if puct:
            following = 0.0
            for t in range(steps - 1, -1, -1):
                following = episode_rewards[t] + discount * following
                s = episode_states[t]
                tables.value[s] += value_step * (following - tables.value[s])
                if searching:
                    tables.q[s] = episode_policies[t]
            continue
        size = min(stored, capacity)
        for i in range(size):  # an inside-out shuffle
            j = np.random.randint(i + 1)
            order[i] = order[j]
            order[j] = i
        for i in order[:size]:
            target = replay.reward[i]
            if not replay.terminal[i]:
                target += discount * tables.q[replay.next_state[i]].max()
            update_q(
                tables.q, replay.state[i], replay.action[i], target, rate_q if td else 0.0,
                replay.target[i], rate_a if amortize else 0.0, scratch,
            )  # fmt: skip
    return results


def check_agent(agent: Agent) -> None:
    """Raise an error for agents that the paper has no tabular version of."""
    known = agent.amortization_loss in ("cross-entropy", "visits", "none")
    known = known and agent.value_loss != "td-value"
    if not known or agent.prior == "softmax-q" or agent.recurrent:
        raise InputError(f"--agents: '{agent.name}' has no tabular version.")


def train_and_test(
    agent: Agent,
    env: tightrope.Tightrope,
    budget: int,
    seed: int,
    settings: TabularSettings = TabularSettings(),  # noqa: B008  # frozen
) -> np.ndarray:
    """Train a tabular agent on one Tightrope; return its test rewards `[test_episodes]`."""
    check_agent(agent)
    return run(
        _Env(env.fatal, float(env.step_reward), float(env.goal_reward), int(env.first_goal)),
        -1 if agent.search is None else int(agent.search),
        int(agent.test_search),
        agent.value_loss == "td",
        agent.amortization_loss == "cross-entropy",
        agent.prior == "policy",
        ACTS.index(agent.act),
        agent.root_noise,
        seed,
        budget,
        settings.episodes,
        settings.test_episodes,
        settings.c,
        settings.epsilon,
        settings.discount,
        settings.learning_rate_q,
        settings.learning_rate_a,
        settings.replay,
        settings.value_step,
        kernels.allocate(1, budget, env.num_actions, np.float64),
    )
