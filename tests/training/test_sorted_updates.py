"""Updates on graphs that are sorted by size do what updates on whole batches do."""

from contextlib import closing
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from save_rl.envs import make_simulator
from save_rl.envs.construction.graph import ACTIONS_PER_EDGE, AVAILABLE
from save_rl.training.devices import compiler_options
from save_rl.training.host import Program
from save_rl.training.host_network import SortedUpdates, Updates
from save_rl.training.settings import TrainSettings

TRANSITIONS = 64

pytestmark = pytest.mark.xdist_group("sorted-updates")  # one worker compiles the program


@pytest.fixture(scope="module")
def program(request):
    settings = TrainSettings(env="covering", agent=request.param, lanes=8, min_replay=16, batch=8)
    with closing(Program(settings, [make_simulator("covering")])) as program:
        yield program


def graphs(rng, seen, masks):
    """Fill in graphs of several sizes; actions are allowed along edges that exist, half of them."""
    used = rng.integers(AVAILABLE, 13, TRANSITIONS)
    seen["nodes"][:TRANSITIONS] = rng.normal(size=seen["nodes"][:TRANSITIONS].shape)
    nodes = seen["node_mask"].shape[1]
    seen["node_mask"][:TRANSITIONS] = np.arange(nodes) < used[:, None]
    sender, receiver = np.divmod(np.arange(AVAILABLE * (nodes - 1)), nodes - 1)
    last = np.maximum(sender, receiver + (receiver >= sender))
    exists = np.repeat(last < used[:, None], ACTIONS_PER_EDGE, -1)
    allowed = exists & (rng.random(exists.shape) < 0.5)
    masks[:TRANSITIONS] = np.packbits(allowed, -1)
    return allowed


def replayed(program):
    """A seed with transitions in its replay, some of unfinished episodes."""
    seed, rng = program._blank(0), np.random.default_rng(0)
    replay = seed.replay
    data = replay.data
    allowed = graphs(rng, data.observation, data.mask)
    graphs(rng, data.next_observation, data.next_mask)
    data.action[:TRANSITIONS] = allowed.argmax(-1)
    data.reward[:TRANSITIONS] = rng.normal(size=TRANSITIONS)
    data.discount[:TRANSITIONS] = 0.9
    if program.agent.amortization_loss == "visits":
        data.target[:TRANSITIONS] = allowed / allowed.sum(-1, keepdims=True)
    elif program.agent.amortization_loss != "none":
        data.target[:TRANSITIONS] = np.where(allowed, rng.normal(size=allowed.shape), -np.inf)
    replay.returns[:TRANSITIONS] = rng.normal(size=TRANSITIONS)
    replay.unfinished[:TRANSITIONS] = rng.random(TRANSITIONS) < 0.5
    replay.added[...] = TRANSITIONS
    return seed


@pytest.mark.parametrize(
    "program", ["save", pytest.param("puct", marks=pytest.mark.slow)], indirect=True
)
def test_parts_of_a_sorted_batch_add_up_to_the_batch(program):
    seed, actions = replayed(program), program.pool.layout.num_actions
    slots = np.random.default_rng(1).integers(TRANSITIONS, size=(2, 8))
    learners, losses = [], []
    for updates in (
        Updates(program.learning, actions, 1, {}),
        SortedUpdates(program.learning, actions, 4),
    ):
        updates.begin(seed.learner, seed.replay, slots, 1e4)
        learners.append(updates.finish(99))
        losses.append(np.sum([np.asarray(terms) for terms in updates.losses], 0))
    # Adam makes steps of one size of gradients of any size, so its averages of them are compared.
    whole, in_parts = (jax.tree.leaves(learner.optimiser[0].mu) for learner in learners)
    largest = max(float(np.abs(x).max()) for x in whole)
    assert largest > 0
    for a, b in zip(whole, in_parts, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-3 * largest)
    for learner in learners:
        pairs = zip(*map(jax.tree.leaves, (learner.params, seed.learner.params)), strict=True)
        assert max(float(np.abs(a - b).max()) for a, b in pairs) > 1e-4
    assert np.all(np.isfinite(losses))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


@pytest.mark.parametrize("program", ["save"], indirect=True)
def test_only_a_program_for_a_cpu_sorts_graphs(program):
    assert isinstance(program.updates, SortedUpdates)
    options = compiler_options(SimpleNamespace(platform="gpu"))
    with closing(Program(program.settings, [make_simulator("covering")], options=options)) as other:
        assert not isinstance(other.updates, SortedUpdates)
