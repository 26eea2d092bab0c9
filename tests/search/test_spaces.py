"""Search where a network predicts rescaled values, and where its nodes carry a memory."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from save_rl.rescaling import rescale, unscale
from save_rl.search import host
from save_rl.search.rules import Rule, Space
from save_rl.search.simulators import LaneSearch, Rows
from tests.search import mdps
from tests.search.table_simulators import TableSimulator
from tests.search.test_simulators import CONSTANTS, evaluator, lanes, pool_at

SCALE = 300.0  # rewards large enough for h to bend them


def h(x):
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x


def inverse(x):
    """By bisection: h rises."""
    low, high = -1e7, 1e7
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if h(middle) < x else (low, middle)
    return (low + high) / 2


def literal(mdp, root, space, budget, c, discount):
    """Apply the equations of docs/experiments/atari.md#values-in-the-search to dictionaries; None
    where a choice is close.

    `mdp.prior` is what the network predicts, in rescaled units.
    """
    start = (lambda q: q) if space == Space.TRANSFORMED else inverse
    counted = h if space == Space.TRANSFORMED else (lambda x: x)
    compared = h if space == Space.MIXED else (lambda x: x)
    nodes = {(): root}
    sums, counts = {}, {}

    def actions(path):
        return np.flatnonzero(mdp.mask[nodes[path]])

    def value(path, a):
        total, count = sums.get((path, a), 0.0), counts.get((path, a), 1)
        return (start(mdp.prior[nodes[path], a]) + total) / count

    ended = set()
    for _ in range(budget):
        path, steps, leaf = (), [], 0.0
        while True:
            spread = math.log(sum(counts.get((path, a), 1) for a in actions(path)))
            scores = sorted(
                (
                    compared(value(path, a)) + c * math.sqrt(spread / counts.get((path, a), 1)),
                    int(a),
                )
                for a in actions(path)
            )
            if len(scores) > 1 and scores[-1][0] - scores[-2][0] < 1e-3:
                return None
            action = scores[-1][1]
            steps.append((path, action))
            state, path = nodes[path], (*path, action)
            if path in ended:
                break
            if path not in nodes:
                nodes[path] = mdp.next_state[state, action]
                if mdp.terminal[state, action]:
                    ended.add(path)
                else:
                    leaf = inverse(max(mdp.prior[nodes[path], a] for a in actions(path)))
                break
        for path, action in reversed(steps):
            leaf = mdp.reward[nodes[path], action] + discount * leaf
            sums[path, action] = sums.get((path, action), 0.0) + counted(leaf)
            counts[path, action] = counts.get((path, action), 1) + 1
    found = {int(a): (value((), a), counts.get(((), a), 1) - 1) for a in actions(())}
    return found


def run(mdp, root, space, budget, c, discount):
    prior = np.where(mdp.mask, mdp.prior, -np.inf)
    value = unscale(prior.max(1))
    if space != Space.TRANSFORMED:
        prior = np.where(mdp.mask, unscale(mdp.prior), -np.inf)
    states = [root]

    def step(nodes, actions, new):
        before, action = states[nodes[0]], max(int(actions[0]), 0)
        after = mdp.next_state[before, action]
        states.append(after)
        return tuple(
            np.array([x])
            for x in (mdp.reward[before, action], mdp.terminal[before, action], prior[after],
                      value[after])
        )  # fmt: skip

    return host.search(
        prior[[root]].astype(np.float64), step, rule=Rule.SAVE, budget=budget, c=c,
        discount=discount, seeds=np.array([0], np.uint32), space=space,
    )  # fmt: skip


@pytest.mark.parametrize("space", list(Space), ids=lambda space: space.name)
@given(data=st.data(), budget=st.integers(1, 12), root=st.integers(0, mdps.STATES - 1))
@settings(max_examples=40)
def test_what_the_equations_say(space, data, budget, root):
    mdp = data.draw(mdps.mdps(Rule.SAVE))
    mdp = mdp._replace(prior=4 * mdp.prior, reward=SCALE * mdp.reward)
    outcome = literal(mdp, root, space, budget, 2.0, 0.997)
    assume(outcome is not None)
    result = run(mdp, root, space, budget, 2.0, 0.997)
    for action, (value, visits) in outcome.items():
        assert result.visits[0, action] == visits
        assert result.q_values[0, action] == pytest.approx(value, rel=1e-5, abs=1e-5)


def test_by_hand():
    """Three simulations in transformed space; the third comes to an end that is known.

    h(99) = 9 + 0.099 = 9.099, h(3) = 1 + 0.003 = 1.003. Two actions, priors 2 and 1, γ = 1, c = 0.
    1. Action 0 (2 > 1), pays 99 and ends: Q(0) = (2 + 9.099) / 2 = 5.5495.
    2. Action 0 again, a known end that pays the same: (2 + 2 × 9.099) / 3 = 6.7326667.
    3. The same: (2 + 3 × 9.099) / 4 = 7.32425. In plain space it would be (2 + 3 × 99) / 4 = 74.75.
    """
    prior = np.array([[2.0, 1.0]])
    asked = []

    def step(nodes, actions, new):
        asked.append(int(actions[0]))
        return np.array([99.0]), np.array([True]), prior, np.zeros(1)

    for space, expected in ((Space.TRANSFORMED, 7.32425), (Space.PLAIN, 74.75)):
        asked.clear()
        result = host.search(
            prior, step, rule=Rule.SAVE, budget=3, c=0.0, discount=1.0,
            seeds=np.zeros(1, np.uint32), space=space,
        )  # fmt: skip
        assert result.q_values[0] == pytest.approx([expected, 1.0])
        assert result.visits[0].tolist() == [3, 0]
        assert asked == [0, -1, -1]


@given(x=st.floats(-1e6, 1e6))
def test_rescaling(x):
    assert rescale(x) == pytest.approx(h(x), rel=1e-9, abs=1e-9)
    assert unscale(rescale(x)) == pytest.approx(x, rel=1e-9, abs=1e-9)
    y = np.float32(x)
    assert unscale(rescale(y)) == pytest.approx(y, rel=2e-5, abs=1e-6)


class Remembering:
    """Looks states up, and remembers for every state by which others it was reached."""

    def __init__(self, mdp, rule):
        self._look, self.paths = evaluator(mdp, rule), {}

    def ask(self, question):
        assert question.first == 0
        rows = question.lanes, question.serials, question.parents, question.observation
        for lane, serial, parent, state in zip(*(x.tolist() for x in rows), strict=True):
            before = self.paths[lane, parent] if serial > 0 else ()
            self.paths[lane, serial] = (*before, int(state))
        found = self._look(question.observation, question.mask)
        return Rows(question.rows, *found, question.start)


@given(data=st.data(), lanes=lanes(), budget=st.integers(0, 20))
@settings(max_examples=40)
def test_a_memory_is_told_where_a_node_comes_from(data, lanes, budget):
    mdp = data.draw(mdps.mdps(Rule.SAVE))
    sizes, roots, seeds, active = lanes
    pool = pool_at(TableSimulator(mdp), roots, sizes, seats=1)
    search = LaneSearch(pool, range(len(sizes)), budget)
    evaluate = Remembering(mdp, Rule.SAVE)
    arguments = {"rule": Rule.SAVE, "seeds": seeds, "lanes": active, "return_tree": True}
    trees = search.run(evaluate, **arguments, **CONSTANTS).tree
    trees = trees if isinstance(trees, list) else [trees]
    first = np.concatenate([[0], np.cumsum(sizes)])
    seen = 0
    for tree, low in zip(trees, first, strict=False):
        for lane in range(len(tree.parent)):
            if not active[low + lane]:
                continue
            assert evaluate.paths[low + lane, 0] == (roots[low + lane],)
            seen += 1
            made = set()
            stack = [0]
            while stack:
                node = stack.pop()
                child = tree.first_child[lane, node]
                while child:
                    made.add(int(child))
                    stack.append(int(child))
                    child = tree.sibling[lane, child]
            serials = {0: 0} | {node: serial for serial, node in enumerate(sorted(made), 1)}
            for node, serial in list(serials.items())[1:]:
                if tree.terminal[lane, node]:
                    assert (low + lane, serial) not in evaluate.paths
                    continue
                parent, action = tree.parent[lane, node], tree.action[lane, node]
                before = evaluate.paths[low + lane, serials[int(parent)]]
                after = mdp.next_state[before[-1], action]
                assert evaluate.paths[low + lane, serial] == (*before, after)
                seen += 1
    assert seen == len(evaluate.paths)
