"""Updates on graphs that are sorted by size do what updates on whole batches do, for all seeds."""

from contextlib import closing
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from save_rl.envs import make_simulator
from save_rl.envs.construction.graph import ACTIONS_PER_EDGE, AVAILABLE
from save_rl.learning import host_replay
from save_rl.networks import graph
from save_rl.networks.graph import sizes
from save_rl.training.devices import compiler_options
from save_rl.training.host.learner import HostLearner
from save_rl.training.host.trainer import HostTrainer
from save_rl.training.host.updates import UpdatePrograms, Updates
from save_rl.training.settings import TrainSettings

TRANSITIONS, SEEDS = 64, (0, 1)

pytestmark = pytest.mark.xdist_group("sorted-updates")  # one worker compiles the programs


@pytest.fixture(scope="module")
def trainer(request):
    given = request.param if isinstance(request.param, dict) else {"agent": request.param}
    settings = TrainSettings(
        env="covering", lanes=8, min_replay=16, batch=8, seeds=SEEDS, replay=TRANSITIONS,
        network="graph-plain", **given,
    )  # fmt: skip
    simulators = [make_simulator("covering", seed) for seed in SEEDS]
    with pytest.MonkeyPatch.context() as patch, closing(HostTrainer(settings, simulators)) as made:
        patch.setattr(graph, "STEPS", 2)  # two thirds of the network, and of its compilation
        yield made


def graphs(rng, seen, least):
    """Graphs of several sizes, and masks: along edges that exist, half of the actions."""
    shape = seen["node_mask"].shape[:2]
    used = rng.integers(least, 13, shape)
    nodes = seen["node_mask"].shape[2]
    seen = {
        "nodes": rng.normal(size=seen["nodes"].shape).astype(np.float32),
        "node_mask": np.arange(nodes) < used[..., None],
    }
    sender, receiver = np.divmod(np.arange(AVAILABLE * (nodes - 1)), nodes - 1)
    last = np.maximum(sender, receiver + (receiver >= sender))
    exists = np.repeat(last < used[..., None], ACTIONS_PER_EDGE, -1)
    return seen, exists & (rng.random(exists.shape) < 0.5)


def replayed(trainer):
    """A state of seeds with transitions in their replays, some of unfinished episodes."""
    state, rng = trainer.blank(), np.random.default_rng(0)
    shape, data = (len(SEEDS), TRANSITIONS), state.replay.data
    seen, allowed = graphs(rng, data.observation, AVAILABLE)
    after, next_allowed = graphs(rng, data.next_observation, 9)  # of one padded size
    target, rows = np.zeros((*shape, 0)), (0, 0)
    if trainer.agent.amortization_loss == "visits":
        target, rows = allowed / allowed.sum(-1, keepdims=True), (0, 1)
    elif trainer.agent.amortization_loss != "none":
        target, rows = np.where(allowed, rng.normal(size=allowed.shape), -np.inf), (1, 1)
    data = data._replace(
        observation=seen,
        action=allowed.argmax(-1).astype(np.int32),
        reward=rng.normal(size=shape).astype(np.float32),
        discount=np.full(shape, 0.9, np.float32),
        next_observation=after,
        target=host_replay.pack_target(target.astype(np.float32), *rows),
        mask=np.packbits(allowed, -1),
        next_mask=np.packbits(next_allowed, -1),
    )
    replay = state.replay._replace(
        data=jax.tree.map(jnp.asarray, data),
        size=np.stack([sizes(seen), sizes(after)], -1),
        returns=rng.normal(size=shape).astype(np.float32),
        unfinished=rng.random(shape) < 0.5,
        added=np.full(len(SEEDS), TRANSITIONS),
    )
    if replay.following is not None:  # pairs of transitions
        following = np.where(np.arange(TRANSITIONS) % 2, -1, np.arange(TRANSITIONS) + 1)
        replay = replay._replace(following=np.tile(following, (len(SEEDS), 1)))
    return state._replace(replay=replay, episodes=np.full(len(SEEDS), 10_000))


@pytest.fixture(scope="module")
def programs(trainer):
    """Updates on whole batches, and on four parts of them."""
    actions = trainer.pool.layout.num_actions
    return [UpdatePrograms(trainer.learning, actions, {}, parts) for parts in (0, 4)]


SLOTS = np.random.default_rng(1).integers(TRANSITIONS, size=(len(SEEDS), 2, 8))
ALL = np.ones(len(SEEDS), bool)


def updated(programs, state, active=ALL):
    """The learner after two updates, and the sums of losses."""
    updates = Updates(programs, state.learner, state.replay, SLOTS, state.episodes, active)
    learner, losses = updates.finish(99)
    return learner, np.sum([np.asarray(terms) for terms in losses], 0)


def of_seed(tree, i):
    return [np.asarray(x[i]) for x in jax.tree.leaves(tree)]


def is_same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "trainer", ["save", pytest.param("puct", marks=pytest.mark.slow)], indirect=True
)
def test_parts_of_a_sorted_batch_add_up_to_the_batch(trainer, programs):
    check_parts(trainer, programs)


def check_parts(trainer, programs):
    state = replayed(trainer)
    learners, losses = zip(*(updated(each, state) for each in programs), strict=True)
    for i in range(len(SEEDS)):
        # Adam makes steps of one size of gradients of any size, so its averages are compared.
        whole, in_parts = (of_seed(learner.optimiser[0].mu, i) for learner in learners)
        largest = max(float(np.abs(x).max()) for x in whole)
        assert largest > 0
        for a, b in zip(whole, in_parts, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-3 * largest)
        for learner in learners:
            pairs = zip(of_seed(learner.params, i), of_seed(state.learner.params, i), strict=True)
            assert max(float(np.abs(a - b).max()) for a, b in pairs) > 1e-4
    assert losses[0].shape == (len(SEEDS), 2)
    assert np.all(np.isfinite(losses))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert not np.allclose(losses[0][0], losses[0][1])


@pytest.mark.parametrize("trainer", ["save"], indirect=True)
def test_a_seed_that_does_not_learn_yet_stays_as_it_is(trainer, programs):
    state = replayed(trainer)
    for each in programs:
        both, _ = updated(each, state)
        one, losses = updated(each, state, np.array([True, False]))
        assert losses[1].tolist() == [0, 0]
        assert is_same(of_seed(one, 1), of_seed(state.learner, 1))
        assert is_same(of_seed(one, 0), of_seed(both, 0))


@pytest.mark.parametrize("trainer", ["save"], indirect=True)
def test_a_loss_that_is_not_finite_changes_nothing(trainer, programs):
    """Nor does it in part: one transition of the second batch is enough."""
    state = replayed(trainer)
    data = state.replay.data
    first, second = (set(batch) for batch in SLOTS[1].tolist())
    slot = min(second - first)
    huge = state._replace(
        replay=state.replay._replace(data=data._replace(reward=data.reward.at[1, slot].set(1e30)))
    )
    for each in programs:
        sound, _ = updated(each, state)
        learner, losses = updated(each, huge)
        assert is_same(of_seed(learner, 0), of_seed(sound, 0))
        assert np.all(np.isfinite(losses[0]))
        assert not np.isfinite(losses[1, 0])
        assert learner.optimiser[0].count.tolist() == [2, 1]
        assert all(np.isfinite(x).all() for x in of_seed(learner, 1))


@pytest.mark.parametrize("trainer", ["save"], indirect=True)
def test_only_a_program_for_a_cpu_sorts_graphs(trainer):
    assert trainer.learner.programs.sorts == 4
    options = compiler_options(SimpleNamespace(platform="gpu"))
    layout = trainer.pool.layout
    with closing(HostLearner(trainer.learning, trainer.settings, layout, True, options)) as other:
        assert other.programs.sorts == 0
    with closing(HostLearner(trainer.learning, trainer.settings, layout, False, {})) as other:
        assert other.programs.sorts == 0
