"""The recurrent network in a search: what its nodes remember."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from save_rl.learning.r2d2 import Sequences
from save_rl.learning.r2d2_settings import NetworkSettings, SequenceSettings
from save_rl.search.rules import Rule, Space
from save_rl.search.simulators import LaneSearch
from save_rl.search.tree_lanes import tree_pool
from save_rl.training.r2d2.network import Networks, RecurrentEvaluator
from tests.training.pictures import ACTIONS, Pictures

# One worker runs them all, so that the networks are made once.
pytestmark = pytest.mark.xdist_group("recurrent-network")

LANES, BUDGET = 5, 9
BETAS = 1.0, 10.0


@pytest.fixture(scope="module")
def networks():
    return Networks(BETAS, NetworkSettings(profile="small"), SequenceSettings(), ACTIONS, {})


@pytest.fixture(scope="module")
def params(networks):
    return networks.initial(jax.random.PRNGKey(3)).params


def whole_pass(network, observations):
    """q̃ and memory after every one of some observations, one after the other."""
    zeros, found = np.zeros((1, network.lstm.hidden.shape[0])), []
    state = {"hidden": zeros, "cell": zeros}
    for seen in observations:
        seen = {k: jnp.asarray(v)[None] for k, v in seen.items()}
        q, state = _call(network, seen, state)
        found.append((np.asarray(q[0]), np.concatenate([state["hidden"], state["cell"]])))
    return found


@eqx.filter_jit
def _call(network, seen, state):
    return network(seen, state)


def new_pool():
    pool = tree_pool([Pictures()], [3, LANES - 3])
    for group, lanes in ((0, np.arange(3)), (1, np.arange(3, LANES))):
        pool.reset(group, lanes, lanes + 100)
    return pool


def search(pool, evaluator, space=Space.TRANSFORMED, budget=BUDGET):
    found = LaneSearch(pool, [0, 1], budget).run(
        evaluator, rule=Rule.SAVE, c=2.0, discount=0.9, seeds=np.arange(LANES, dtype=np.uint32),
        space=space, return_tree=True,
    )  # fmt: skip
    return found, found.tree


def test_a_node_knows_what_the_real_way_there_would_tell(networks, params):
    """Two real steps, then a search: every node equals one pass over the whole way."""
    sim, pool, network = Pictures(), new_pool(), networks.network(params)
    evaluator = RecurrentEvaluator(networks, LANES, BUDGET).use(params)
    ways = [[sim.reset(100 + lane)] for lane in range(LANES)]
    nobody = np.zeros(LANES, bool)
    for step in range(2):
        search(pool, evaluator)
        actions = (np.arange(LANES) + step) % ACTIONS
        for group in (0, 1):
            pool.advance(group, actions[pool.groups[group].lanes])
        for group in (0, 1):
            pool.receive(group)
        for lane, way in enumerate(ways):
            way.append(sim.step(way[-1], int(actions[lane]))[0])
        evaluator.commit_step(nobody)
    _, trees = search(pool, evaluator)
    memory, checked = np.asarray(evaluator._memory), 0
    for tree, low in zip(trees, (0, 3), strict=True):
        for lane in range(len(tree.parent)):
            states = {0: ways[low + lane]}
            real = whole_pass(network, map(sim.observe, states[0]))
            q, after = real[-1]
            np.testing.assert_allclose(evaluator.root_q[low + lane], q, atol=1e-5)
            np.testing.assert_allclose(memory[low + lane, 0], after, atol=1e-5)
            for node in range(1, BUDGET + 1):
                if tree.parent[lane, node] not in states or tree.terminal[lane, node]:
                    continue
                before = states[tree.parent[lane, node]]
                states[node] = [*before, sim.step(before[-1], tree.action[lane, node])[0]]
                q, after = whole_pass(network, map(sim.observe, states[node]))[-1]
                np.testing.assert_allclose(memory[low + lane, node], after, atol=1e-5)
                untried = tree.prior[lane, node] > -np.inf
                np.testing.assert_allclose(tree.prior[lane, node][untried], q[untried], atol=1e-5)
                checked += untried.sum()
    assert checked > 4 * LANES


def test_searching_changes_nothing_that_is_remembered(networks, params):
    """A lane that searches and throws the result away sees what one without any search sees."""
    roots, befores = [], []
    for budget in (0, BUDGET):
        pool, evaluator = new_pool(), RecurrentEvaluator(networks, LANES, BUDGET).use(params)
        seen = []
        for step in range(4):
            if budget:
                search(pool, evaluator)
            else:
                LaneSearch(pool, [0, 1], 0).priors(evaluator, np.ones(LANES, bool))
            seen.append(evaluator.root_q.copy())
            actions = (np.arange(LANES) * 3 + step) % ACTIONS
            for group in (0, 1):
                pool.advance(group, actions[pool.groups[group].lanes])
            for group in (0, 1):
                pool.receive(group)
            fresh = pool.arrays.terminated[:LANES].copy()
            for group in (0, 1):
                lanes = pool.groups[group].lanes
                lanes = lanes[fresh[lanes]]
                if len(lanes):
                    pool.reset(group, lanes, lanes + 200)
            evaluator.commit_step(fresh)
        roots.append(np.stack(seen))
        befores.append(np.asarray(evaluator.before)[:LANES])
    np.testing.assert_allclose(roots[0], roots[1], atol=1e-6)
    np.testing.assert_allclose(befores[0], befores[1], atol=1e-6)
    assert np.abs(befores[0]).max() > 0.01


def test_fresh_lanes_remember_nothing(networks, params):
    pool, evaluator = new_pool(), RecurrentEvaluator(networks, LANES, BUDGET).use(params)
    search(pool, evaluator)
    fresh = np.array([True, False, False, True, False])
    evaluator.commit_step(fresh)
    before = np.abs(np.asarray(evaluator.before)[:LANES]).max((1, 2))
    np.testing.assert_array_equal(before > 0, ~fresh)


def test_lanes_are_counted_from_the_first_of_the_search(networks, params):
    """As in tests, whose lanes come after those of training."""
    found = []
    for sizes, groups in (([3, 2], [0, 1]), ([4, 3, 2], [1, 2])):
        pool, evaluator = tree_pool([Pictures()], sizes), RecurrentEvaluator(networks, LANES, 3)
        first = pool.groups[groups[0]].low
        for group in groups:
            lanes = pool.groups[group].lanes
            pool.reset(group, lanes, lanes - first + 100)
        roots = LaneSearch(pool, groups, 3).run(
            evaluator.use(params), rule=Rule.SAVE, c=2.0, discount=0.9,
            seeds=np.arange(LANES, dtype=np.uint32),
        )  # fmt: skip
        evaluator.commit_step(np.zeros(LANES, bool))
        found.append((roots.q_values.copy(), evaluator.root_q.copy(), evaluator.before))
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_raw_priors_are_points(networks, params):
    """In raw and mixed space the search is given h⁻¹(q̃)."""
    found = {}
    raw = NetworkSettings(profile="small", search_space="raw")
    in_points = Networks(BETAS, raw, SequenceSettings(), ACTIONS, {})
    for name, chosen in (("transformed", networks), ("raw", in_points)):
        evaluator = RecurrentEvaluator(chosen, LANES, 0).use(params)
        roots = LaneSearch(new_pool(), [0, 1], 0).priors(evaluator, np.ones(LANES, bool))
        found[name] = roots.q_values.copy()
        np.testing.assert_allclose(evaluator.root_q, found["transformed"], atol=1e-6)
    q = found["transformed"].astype(np.float64)
    assert np.abs(q).max() > 0.01
    h = np.sign(found["raw"]) * (np.sqrt(np.abs(found["raw"]) + 1) - 1) + 1e-3 * found["raw"]
    np.testing.assert_allclose(h, q, atol=1e-5)


def made_up_batch(cut, networks):
    """Sequences of random numbers, with what a search found."""
    rng, batch = np.random.default_rng(0), 2
    steps, shape = cut.steps, (cut.steps, batch)
    memory = rng.normal(size=(2, batch, networks.hidden)).astype(np.float32)
    return Sequences(
        frames=rng.integers(256, size=(steps + 3, batch, 84, 84), dtype=np.uint8),
        previous_action=rng.integers(ACTIONS, size=shape, dtype=np.int32),
        previous_reward=rng.normal(size=shape).astype(np.float32),
        action=rng.integers(ACTIONS, size=shape, dtype=np.int32),
        reward=rng.normal(size=shape).astype(np.float32),
        discount=np.full(shape, 0.9, np.float32),
        valid=np.ones(shape, bool),
        q_mcts=rng.normal(size=(*shape, ACTIONS)).astype(np.float32),
        state={"hidden": memory[0], "cell": memory[1]},
        weight=np.ones(batch, np.float32),
    )


def test_without_its_loss_save_updates_as_plain_r2d2_bit_by_bit():
    """Two updates, the optimiser and the priorities included."""
    cut, settings = SequenceSettings(burn_in=1, train=3, period=2), NetworkSettings(profile="small")
    ends = []
    for beta_a, searched in ((0.0, True), (0.0, False), (10.0, True)):
        networks = Networks((1.0, beta_a), settings, cut, ACTIONS, {})
        learner = networks.initial(jax.random.PRNGKey(0))
        batch = made_up_batch(cut, networks)
        batch = batch if searched else batch._replace(q_mcts=None)
        leaves = jax.tree.leaves((learner.params, learner.optimiser))
        for _ in range(2):
            leaves, about = networks.update(leaves, jax.tree.leaves(learner.target), batch)
        ends.append([np.asarray(x) for x in (*leaves, about["priorities"])])
    save, plain, with_loss = ends
    for a, b in zip(save, plain, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(not np.array_equal(a, b) for a, b in zip(save, with_loss, strict=True))
