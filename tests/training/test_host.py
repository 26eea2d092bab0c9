"""Training over Python simulators: what is counted, stored, learned, saved and played."""

import csv
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import save_rl
from save_rl.envs.pool import Source
from save_rl.envs.worker import ANY_LEVEL
from save_rl.learning import host_replay
from save_rl.learning.exploration import epsilon_at_step
from save_rl.search.rules import TIE_TOLERANCE
from save_rl.search.simulators import LaneSearch
from save_rl.training.host import actor
from save_rl.training.host import trainer as host_trainer
from save_rl.training.host.actor import Actor
from save_rl.training.host.trainer import HostTrainer
from save_rl.training.run import checkpoint
from save_rl.training.settings import TrainSettings
from tests.search import mdps, reference
from tests.search.table_simulators import FOREVER, Place, TableSimulator, maze
from tests.training.test_device import BETAS, EPISODES, ROUGH, assert_same, is_same, literal_loss

LANES, BUDGET, GAMMA, C = 8, 4, 0.9, 2.0

# What a fixture made is used in the worker that made it.
WALKED = pytest.mark.xdist_group("host-walked")
UNDISTURBED = pytest.mark.xdist_group("host-undisturbed")
TESTED = pytest.mark.xdist_group("host-tested")


def settings(agent, seeds, **changes):
    """Two updates of 16 transitions after each lock-step, unless told otherwise."""
    values = {
        "lanes": LANES, "batch": 16, "replay": 64, "min_replay": LANES, "budget": BUDGET,
        "chunk": 1, "discount": GAMMA, "c": C, "learning_rate": 1e-3, "episodes": FOREVER,
    }  # fmt: skip
    chosen = TrainSettings(agent=agent, seeds=seeds, **(values | changes))
    chosen.check()
    return chosen


@pytest.fixture
def make():
    """Makes trainers over mazes, and closes them."""
    made = []

    def trainer(agent="save", seeds=(0,), env=None, how=None, **changes):
        options = env or {}
        sources = [Source("tests.search.table_simulators:maze", n, options) for n in seeds]
        mazes = [maze(seed, **options) for seed in seeds]
        made.append(HostTrainer(settings(agent, seeds, **changes), mazes, sources, **(how or {})))
        return made[-1]

    yield trainer
    for trainer in made:
        trainer.close()


def copy(trainer, state):
    """All arrays of a checkpoint; the trainer goes on writing to those of the state."""
    return jax.tree.map(lambda x: np.array(x), trainer.snapshot(state))


def history(trainer, chunks, state=None, first=0, running=None):
    """The arrays before each chunk and after the last, and the last state."""
    state = trainer.begin() if state is None else state
    running = np.ones(len(trainer.settings.seeds), bool) if running is None else running
    states = [copy(trainer, state)]
    for chunk in range(first, first + chunks):
        state = trainer.advance(state, chunk * trainer.settings.chunk, running)
        states.append(copy(trainer, state))
    return states, state


def of_seed(state, i):
    """The arrays of one seed."""
    ends = np.cumsum(state.episode_step.sum(1))
    own = state.history[ends[i] - state.episode_step[i].sum() : ends[i]]
    return jax.tree.map(lambda x: x[i], state._replace(history=()))._replace(history=own)


def unpacked(data):
    """Transitions with targets in float32."""
    return data._replace(target=np.asarray(host_replay.unpack_target(data.target)))


def assert_identical(one, other):
    """Every array has the same name, type and bits."""
    ones, others = (jax.tree_util.tree_leaves_with_path(x) for x in (one, other))
    for (path, a), (same_path, b) in zip(ones, others, strict=True):
        assert path == same_path
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))


# What is stored and counted.

STEPS = 20
LIMIT = 4


class Walk(NamedTuple):
    """A run of which everything is still in the replay."""

    agent: str
    simulator: TableSimulator
    trainer: HostTrainer
    states: list  # before each lock-step and after the last
    ties: list  # [lanes] the seeds that each search broke ties with
    noisy: np.ndarray | None  # [steps, lanes, A] the priors of roots, where they are noisy
    epsilons: list  # [lanes] of each decision

    @property
    def data(self):
        """Transitions `[steps, lanes, ...]`."""
        ring = self.states[-1].replay.data
        return unpacked(jax.tree.map(lambda x: x.reshape(STEPS, LANES, *x.shape[1:]), ring))

    @property
    def places(self):
        """The state that each transition left, `[steps, lanes]`."""
        return states_of(self.simulator, self.data.observation)

    @property
    def times(self):
        """How many steps its episode had made before, `[steps, lanes]`."""
        return np.stack([state.episode_step for state in self.states[:-1]])

    @property
    def over(self):
        """Whether a transition ended its episode, `[steps, lanes]`."""
        ends = self.simulator.mdp.terminal[self.places, self.data.action]
        return ends | (self.times + 1 >= self.simulator.limit)


def states_of(simulator, observations):
    """Which states were seen; only whole observations are known."""
    found = np.abs(observations[..., None, :] - simulator.features).sum(-1).argmin(-1)
    np.testing.assert_array_equal(observations, simulator.features[found])
    return found


WALKS = {
    # agent, ε, simulator
    "save": ("save", 1.0, {"masked": True}),
    "puct": ("puct", 0.0, {"masked": True}),
    "q-learning": ("q-learning", 0.5, {}),
    # Trees know the best actions alone; in the second there are fewer than they could know.
    "listed": ("save", 0.3, {"masked": True, "actions": 100}),
    "few": ("save", 0.3, {"masked": True, "actions": 100, "allowed": 0.05}),
}
LONG_WALKS = {
    "greedy": ("save", 0.0, {}),
    "save-puct": ("save-puct", 0.0, {"masked": True}),
    "explored": ("save-explored", 0.3, {"masked": True}),
    "explored-listed": ("save-explored", 0.3, {"masked": True, "actions": 100, "allowed": 0.05}),
    "weighted": ("save-visit-weighted", 0.3, {"masked": True}),
    "weighted-listed": ("save-visit-weighted", 0.3, {"masked": True, "actions": 100}),
}


@pytest.fixture(
    scope="module",
    params=[*WALKS, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG_WALKS)],
)
def walk(request):
    agent, epsilon, env = (WALKS | LONG_WALKS)[request.param]
    ties, noisy, epsilons = [], [], []
    run, mix, act = LaneSearch.run_by_group, actor.mix_noise_all, actor.act_all

    def spied_run(self, *arguments, **options):
        ties.append(options["seeds"].copy())
        return run(self, *arguments, **options)

    def spied_mix(seeds, share, priors):
        mix(seeds, share, priors)
        assert share == 0.25
        noisy.append(priors.copy())

    def spied_act(*arguments):
        epsilons.append(arguments[5])
        act(*arguments)

    simulator = maze(3, ends=0.2, limit=LIMIT, **env)
    chosen = settings(
        agent, (0,), replay=STEPS * LANES, epsilon_start=epsilon, epsilon_end=epsilon / 2,
        epsilon_episodes=50,
    )  # fmt: skip
    trainer = HostTrainer(chosen, [simulator])
    slots = trainer.pool.arrays["choice"].shape[1]
    assert slots == (16 if "actions" in env else 0)
    if request.param == "few":
        assert simulator.mdp.mask.sum(1).max() < slots
    simulator.calls.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LaneSearch, "run_by_group", spied_run)
        patch.setattr(actor, "mix_noise_all", spied_mix)
        patch.setattr(actor, "act_all", spied_act)
        states, _ = history(trainer, STEPS)
    rows = np.concatenate(noisy).reshape(STEPS, LANES, -1) if noisy else None
    states = [of_seed(state, 0) for state in states]
    return Walk(agent, simulator, trainer, states, ties, rows, epsilons)


@WALKED
def test_stored_transitions_are_those_of_the_simulator(walk):
    mdp, data, places = walk.simulator.mdp, walk.data, walk.places
    at, actions = (places, data.action), walk.simulator.num_actions
    assert mdp.mask[at].all()
    np.testing.assert_array_equal(data.reward, mdp.reward[at].astype(np.float32))
    np.testing.assert_allclose(data.discount, np.where(mdp.terminal[at], 0.0, GAMMA), rtol=1e-6)
    reached = states_of(walk.simulator, data.next_observation)
    np.testing.assert_array_equal(reached, mdp.next_state[at])
    if hasattr(walk.simulator, "action_mask"):
        np.testing.assert_array_equal(np.unpackbits(data.mask, -1, actions), mdp.mask[places])
        allowed = mdp.mask[reached] | mdp.terminal[at][..., None]
        np.testing.assert_array_equal(np.unpackbits(data.next_mask, -1, actions), allowed)
        assert not mdp.mask[places].all()
    else:
        assert data.mask.shape == data.next_mask.shape == (STEPS, LANES, 0)
    # All of it happened: ends, time limits, and many places.
    assert mdp.terminal[at].any()
    assert (walk.over & ~mdp.terminal[at]).any()
    assert len(np.unique(places)) == 6


@WALKED
def test_lanes_go_on_where_they_were_and_begin_where_their_seed_says(walk):
    reached = states_of(walk.simulator, walk.data.next_observation)
    begin = np.stack([state.episode_seed for state in walk.states]) % 6
    np.testing.assert_array_equal(walk.places[0], begin[0])
    expected = np.where(walk.over[:-1], begin[1:-1], reached[:-1])
    np.testing.assert_array_equal(walk.places[1:], expected)
    assert len(np.unique(begin)) == 6


@WALKED
def test_a_checkpoint_leads_to_where_every_lane_is(walk):
    """An episode's seed and actions are all that is kept of it."""
    for t in range(1, STEPS + 1):
        state = walk.states[t]
        np.testing.assert_array_equal(
            state.episode_step, np.where(walk.over[t - 1], 0, walk.times[t - 1] + 1)
        )
        assert len(state.history) == state.episode_step.sum()
        parts = np.split(state.history, np.cumsum(state.episode_step)[:-1])
        for lane, part in enumerate(parts):
            np.testing.assert_array_equal(part, walk.data.action[t - len(part) : t, lane])
            place, total = Place(int(state.episode_seed[lane]) % 6, 0), 0.0
            for action in part:
                place, reward, _, _ = walk.simulator.step(place, int(action))
                total += reward
            assert state.episode_return[lane] == pytest.approx(total, abs=1e-5)
            if t < STEPS:
                assert place.state == walk.places[t, lane]


@WALKED
def test_steps_episodes_and_returns_add_up(walk):
    state, over, returns = walk.states[-1], walk.over, []
    running = np.zeros(LANES)
    for reward, ends in zip(walk.data.reward, over, strict=True):
        running += reward
        returns += running[ends].tolist()
        running[ends] = 0.0
    assert state.steps == state.stats.steps == STEPS
    assert state.env_steps == STEPS * LANES
    assert state.episodes == state.stats.episodes == len(returns) == over.sum()
    np.testing.assert_allclose(state.stats.return_sum, sum(returns), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(state.stats.return_min, min(returns), rtol=1e-5)
    np.testing.assert_allclose(state.stats.return_max, max(returns), rtol=1e-5)
    assert state.restarts == 0
    # Nothing is learned in the first lock-step, before which nothing was replayed.
    assert state.updates == state.stats.updates == 2 * (STEPS - 1)
    assert state.learner.optimiser[0].count == state.updates
    lengths = (walk.times + 1)[over]
    assert lengths.min() <= state.length <= lengths.max()


def values_of(trainer, params, simulator):
    """Qθ of all states `[6, A]`, -inf where masked."""
    head, _ = trainer.learning.network(params)(jnp.asarray(simulator.features))
    return np.where(simulator.mdp.mask, np.asarray(head, np.float64), -np.inf)


def reference_model(walk, t):
    """The simulator's tables, with what the network of lock-step t says of all states."""
    simulator, params = walk.simulator, walk.states[t].learner.params
    prior = values_of(walk.trainer, params, simulator)
    value = prior.max(1)
    if walk.agent in ("save-puct", "puct"):
        prior = np.exp(prior) / np.exp(prior).sum(1, keepdims=True)
    if walk.agent == "puct":
        value = walk.trainer.learning.network(params)(jnp.asarray(simulator.features))[1]
    prior = np.where(simulator.mdp.mask, prior, 0.0)
    return simulator.mdp._replace(prior=prior, value=np.asarray(value, np.float64))


def reference_search(walk, mdp, t, lane):
    """What the equations find where a lane was at lock-step t."""
    place = int(walk.places[t, lane])
    # The root is a seventh state which nothing leads back to: it alone is noisy.
    mdp = mdp._replace(
        **{name: np.concatenate([x, x[[place]]]) for name, x in mdp._asdict().items()}
    )
    if walk.noisy is not None:
        mdp.prior[6] = walk.noisy[t, lane]
    rule = "puct" if walk.agent in ("puct", "save-puct") else "save"
    return reference.search(
        mdp, 6, rule, BUDGET, C, GAMMA, mdps.prefer(int(walk.ties[t][lane])), TIE_TOLERANCE
    )


@WALKED
def test_targets_are_what_a_search_from_the_state_finds(walk):
    """And without ε, what was done is the best explored action, or one that was visited."""
    data, simulated = walk.data, 0
    if walk.agent == "q-learning":
        assert data.target.shape == (STEPS, LANES, 0)
        assert not walk.ties
        assert walk.states[-1].simulator_steps == 0
        return
    assert (walk.noisy is not None) == (walk.agent in ("puct", "save-puct"))
    for t in range(STEPS):
        mdp = reference_model(walk, t)
        for lane in range(LANES):
            found, action = reference_search(walk, mdp, t, lane), data.action[t, lane]
            target = {
                "puct": found.visits / BUDGET,
                "save-explored": np.where(found.explored, found.q_values, -np.inf),
                "save-visit-weighted": np.concatenate([found.q_values, found.visits]),
            }.get(walk.agent, found.q_values)
            # float16 has an error of 2^-11 of a gap or of a frequency; visits are exact.
            gap = np.ptp(found.q_values[found.q_values > -np.inf])
            within = 1e-4 + 2**-11 * max(gap, 1)
            np.testing.assert_allclose(data.target[t, lane], target, atol=within)
            simulated += found.simulator_calls
            if walk.agent == "puct":
                assert found.explored[action]
            elif walk.trainer.settings.epsilon_start == 0:
                best = np.where(found.explored, found.q_values, -np.inf)
                assert best[action] == pytest.approx(best.max(), abs=1e-4)
        assert simulated == walk.states[t + 1].simulator_steps


@WALKED
def test_epsilon_is_that_of_the_moment_of_training_and_of_the_episode(walk):
    assert len(walk.epsilons) == STEPS
    mean = walk.trainer.settings.epsilon
    for epsilon, state in zip(walk.epsilons, walk.states[:-1], strict=True):
        for lane in range(LANES):
            at = int(state.episode_step[lane])
            expected = epsilon_at_step(mean.at(float(state.episodes)), np.int32(at), state.length)
            assert epsilon[lane] == pytest.approx(float(expected), abs=1e-5)


# What is learned.


# The others learn by the same equations.
FEW_UPDATES = ("save", "puct")


@pytest.mark.parametrize(
    "name",
    [
        *FEW_UPDATES,
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in BETAS
            if name not in (*FEW_UPDATES, "gumbel")  # which needs JAX environments
        ),
    ],
)
def test_an_update_is_a_step_of_adam_on_the_loss_of_what_was_sampled(make, monkeypatch, name):
    made = make(name, env={"masked": True, "limit": 6}, batch=8, replay_ratio=1, target_period=2)
    assert made.settings.updates_per_step == 1
    drawn, draw = [], host_replay.draw

    def spied(*arguments):
        drawn.append(draw(*arguments))
        return drawn[-1]

    monkeypatch.setattr(host_replay, "draw", spied)
    state = made.begin()._replace(episodes=np.array([EPISODES]))
    states, _ = history(made, 4, state)
    before, after = (of_seed(state, 0) for state in states[-2:])
    (slots,) = drawn[-1][0]  # of one seed, one update
    batch, ring = jax.tree.map(lambda x: x[slots], unpacked(before.replay.data)), before.replay
    returns, finished = ring.returns[slots], ~ring.unfinished[slots]
    mask, next_mask = (np.unpackbits(x, -1, 5).astype(bool) for x in (batch.mask, batch.next_mask))
    batch = batch._replace(mask=mask, next_mask=next_mask)
    assert batch.action.shape == (8,)
    assert 0 < finished.sum() < 8 or name != "puct"
    learning = made.learning
    loss_gradient = jax.value_and_grad(
        lambda params: literal_loss(
            name, learning.network(params), learning.network(before.learner.target), batch,
            returns, finished, BETAS[name],
        ),
        has_aux=True,
    )  # fmt: skip
    (_, (loss_q, loss_a)), gradient = jax.jit(loss_gradient)(before.learner.params)
    changes, optimiser = optax.adam(1e-3).update(gradient, before.learner.optimiser)
    params = optax.apply_updates(before.learner.params, changes)

    assert not is_same(before.learner.target, before.learner.params)  # copied an update ago
    assert is_same(after.learner.target, after.learner.params)  # and now
    assert after.stats.loss_q - before.stats.loss_q == pytest.approx(float(loss_q), rel=1e-3)
    assert after.stats.loss_a - before.stats.loss_a == pytest.approx(float(loss_a), rel=1e-3)
    # A few episodes have ended since EPISODES, which moves save-l2's β_A by less than 1e-3.
    assert_same(after.learner.optimiser, jax.tree.map(np.asarray, optimiser), rtol=2e-3, atol=1e-7)
    # A step is at most about the learning rate, 1e-3; compare to a hundredth of it.
    within = ROUGH.get(name, 1e-5)
    assert_same(after.learner.params, jax.tree.map(np.asarray, params), rtol=0, atol=within)
    assert not is_same(after.learner.params, before.learner.params)
    # No action that raises was taken: masked ones neither in searches nor in steps.
    assert after.restarts == 0
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after.learner))


def test_learning_begins_late_enough_and_the_target_network_follows(make):
    states, _ = history(make("q-learning", min_replay=20, target_period=3), 10)
    states = [of_seed(state, 0) for state in states]
    for before, after in pairwise(states[:4]):  # 0, 8 and 16 transitions before it
        assert is_same(before.learner, after.learner)
        assert after.updates == after.stats.updates == after.stats.loss_q == 0
    # Two updates per lock-step, counted from the first: 8, 10, 12, ... cross 9, 12, 15, 18.
    copied = [False, True, True, False, True, True, False]
    for (before, after), copies in zip(pairwise(states[3:]), copied, strict=True):
        assert after.updates == before.updates + 2
        assert after.stats.loss_q > before.stats.loss_q
        assert not is_same(after.learner.params, before.learner.params)
        expected = after.learner.params if copies else before.learner.target
        assert is_same(after.learner.target, expected)


def test_nothing_is_learned_from_an_empty_replay(make):
    """A lock-step learns from those before it; in a replay of zeros no action is allowed."""
    states, _ = history(make("save", min_replay=0, env={"masked": True}), 2)
    before, first, second = (of_seed(state, 0) for state in states)
    assert is_same(before.learner, first.learner)
    assert first.updates == first.stats.loss_q == first.stats.loss_a == 0
    assert second.updates == 2
    assert np.isfinite(second.stats.loss_a)


def test_counters_and_statistics(make):
    made = make("save", (0, 1))
    states, state = history(made, 3)
    done = made.counters(state)
    assert done.env_steps.tolist() == [3 * LANES] * 2
    assert done.updates.tolist() == done.stats.updates.tolist() == [4, 4]
    assert done.simulator_steps.tolist() == states[-1].simulator_steps.tolist()
    assert done.level.tolist() == [ANY_LEVEL] * 2
    forgotten = made.forget_stats(state)
    stats = made.counters(forgotten).stats
    assert not any(np.any(x) for x in stats._replace(return_min=0, return_max=0))
    assert stats.return_min.tolist() == [np.inf] * 2
    assert stats.return_max.tolist() == [-np.inf] * 2
    assert is_same(
        states[-1]._replace(stats=(), history=()), forgotten._replace(stats=(), history=())
    )


# A run depends on its seed and on nothing else.

MASKED = {"masked": True, "limit": 6}


@pytest.fixture(scope="module")
def programs():
    """For seeds 3 and 5, simulated in this process."""
    return {
        agent: HostTrainer(
            settings(agent, (3, 5), chunk=5), [maze(seed, **MASKED) for seed in (3, 5)],
            test_lanes=3,
        )
        for agent in ("save", "puct")
    }  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(programs):
    """Their states after 15 lock-steps."""
    return {agent: history(trainer, 3)[0][-1] for agent, trainer in programs.items()}


@UNDISTURBED
@pytest.mark.parametrize(
    ("agent", "how"),
    [
        pytest.param("save", {"workers": 2}, marks=pytest.mark.slow),
        pytest.param("save", {"workers": 3, "groups": 3}, marks=pytest.mark.slow),
        pytest.param("save", {"groups": 1}, marks=pytest.mark.slow),
        ("save", {"workers": 3, "groups": 8}),  # two lanes each: a worker has none
        pytest.param("save", {"workers": 1}, marks=pytest.mark.slow),
        pytest.param("puct", {"workers": 2}, marks=pytest.mark.slow),
        pytest.param("puct", {"groups": 5}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_it_does_not_matter_who_simulates_in_how_many_groups(
    make, monkeypatch, undisturbed, agent, how
):
    workers, groups = how.get("workers", 0), how.get("groups", 2)
    changed = {"workers": workers, "groups": groups}
    monkeypatch.setattr(
        host_trainer, "Actor", lambda *given, **more: Actor(*given, **more | changed)
    )
    made = make(agent, (3, 5), MASKED, chunk=5)
    assert made.pool.workers == workers
    assert len(made.actor.places.groups) == groups
    assert_identical(history(made, 3)[0][-1], undisturbed[agent])


@UNDISTURBED
@pytest.mark.parametrize("agent", ["save", pytest.param("puct", marks=pytest.mark.slow)])
def test_a_seed_does_not_depend_on_the_seeds_beside_it(make, undisturbed, agent):
    """Up to rounding: networks of several seeds are one batched product."""
    alone = of_seed(history(make(agent, (5,), MASKED, chunk=5), 3)[0][-1], 0)
    third, fifth = (of_seed(undisturbed[agent], i) for i in (0, 1))
    assert_same(alone, fifth, rtol=1e-3, atol=1e-4)
    assert not is_same(third.learner.params, fifth.learner.params)
    assert not np.array_equal(third.episode_seed, fifth.episode_seed)


@UNDISTURBED
def test_the_length_of_chunks_does_not_matter(make, undisturbed):
    one_by_one = history(make("save", (3, 5), MASKED, chunk=1), 15)[0][-1]
    here, there = one_by_one, undisturbed["save"]
    # Sums of losses are taken in another order.
    assert_same(here.stats, there.stats, rtol=1e-5)
    assert is_same(here._replace(stats=()), there._replace(stats=()))


@UNDISTURBED
def test_begin_begins_anew(programs, undisturbed):
    first, _ = history(programs["save"], 1)
    again, _ = history(programs["save"], 3)
    assert_identical(again[0], first[0])
    assert_identical(again[1], first[1])
    assert_identical(again[3], undisturbed["save"])


@UNDISTURBED
@pytest.mark.parametrize(
    ("agent", "workers"), [pytest.param("save", 2, marks=pytest.mark.slow), ("puct", 0)]
)
def test_a_checkpoint_goes_on_as_if_nothing_had_happened(
    make, programs, undisturbed, tmp_path, agent, workers
):
    states, _ = history(programs[agent], 2)
    assert np.all(states[-1].episode_step.max(1) > 1)  # in the middle of episodes
    checkpoint.save(tmp_path, 2, states[-1], {"time_s": 1.0})

    second = make(agent, (3, 5), MASKED, {"workers": workers}, chunk=5)
    second.begin()
    found = checkpoint.load_newest(tmp_path, second.template(), pytest.fail)
    assert_identical(found.state, states[-1])
    state = second.restore(found.state)
    assert_identical(copy(second, state), states[-1])
    (_, last), _ = history(second, 1, state, first=2)
    assert_identical(last, undisturbed[agent])


@UNDISTURBED
def test_a_program_for_tests_alone_plays_the_same_from_a_checkpoint(make, programs, tmp_path):
    made = programs["save"]
    states, state = history(made, 2)
    checkpoint.save(tmp_path, 2, states[-1], {})
    tester = make("save", (3, 5), MASKED, {"test_lanes": 3, "train": False, "workers": 1},
                  chunk=5)  # fmt: skip
    found = checkpoint.load_newest(tmp_path, tester.template(), pytest.fail)
    for here, there in zip(
        made.play(made.params(state), 7, 2, 9), tester.play(tester.params(found.state), 7, 2, 9),
        strict=True,
    ):  # fmt: skip
        assert here.shape == (2, 7)
        np.testing.assert_array_equal(here, there)


# Test episodes.


def play_greedily(simulator, trainer, params, seed, budget, longest):
    """Return and length of an episode whose every action is the best that the equations know.

    None if the simulator fails.
    """
    mdp = simulator.mdp._replace(prior=values_of(trainer, params, simulator))
    place, total, over = Place(seed % 6, 0), 0.0, False
    while not over and place.time < longest:
        q = mdp.prior[place.state]
        if budget:
            found = reference.search(
                mdp, place.state, "save", budget, C, GAMMA, lambda *tie: pytest.fail("a tie"), 1e-9
            )
            q = np.where(found.explored, found.q_values, -np.inf)
        try:
            place, reward, terminated, truncated = simulator.step(place, int(q.argmax()))
        except ValueError:
            return None
        total, over = total + reward, terminated or truncated
    return total, place.time


@pytest.fixture(scope="module")
def trained():
    """A trainer that plays three test episodes at once, and its parameters of both seeds."""
    mazes = [maze(seed, masked=True, limit=9, ends=0.1) for seed in (0, 4)]
    trainer = HostTrainer(settings("save", (0, 4)), mazes, test_lanes=3)
    _, state = history(trainer, 3)
    return trainer, trainer.params(state)


@TESTED
@pytest.mark.parametrize("budget", [0, 3])
@pytest.mark.parametrize("longest", [None, 4])
def test_test_episodes_are_those_of_the_greedy_policy(trained, monkeypatch, budget, longest):
    made, params = trained
    simulators = made.actor.simulators
    for simulator in simulators if longest else ():
        monkeypatch.setattr(simulator, "max_steps", longest, raising=False)
    for episodes in (2, 3, 8):
        for simulator in simulators:
            simulator.calls.clear()
        returns, steps = made.play(params, episodes, budget, number=episodes)
        assert returns.shape == steps.shape == (2, episodes)
        for i, simulator in enumerate(simulators):
            mine = jax.tree.map(lambda x: x[i], params)  # noqa: B023
            seeds = [call[1] for call in simulator.calls if call[0] == "reset"]
            assert len(seeds) == len(set(seeds)) == episodes
            expected = [
                play_greedily(simulator, made, mine, seed, budget, longest or FOREVER)
                for seed in seeds
            ]
            found = list(zip(returns[i], steps[i], strict=True))
            # The first episodes begin in the order of the lanes, the others as lanes come free.
            for a, b in zip(found[:3], expected[:3], strict=True):
                assert a == pytest.approx(b, abs=1e-5)
            for a, b in zip(sorted(found), sorted(expected), strict=True):
                assert a == pytest.approx(b, abs=1e-5)
    again = made.play(params, 8, budget, number=8)
    np.testing.assert_array_equal(again[0], returns)
    other = made.play(params, 8, budget, number=9)
    assert not np.array_equal(other[0], returns)


@UNDISTURBED
def test_tests_leave_training_alone(programs, undisturbed):
    made = programs["save"]
    state = made.begin()
    for chunk in range(3):
        made.play(made.params(state), 5, chunk, chunk)
        state = made.advance(state, chunk * 5, np.ones(2, bool))
        made.play(made.params(state), 2, 0, 0)
    assert_identical(copy(made, state), undisturbed["save"])


# Simulators that fail.


def test_a_failing_simulator_costs_the_episode_and_nothing_else(make):
    """State 2 raises at action 3: nothing of that is stored, and the lane begins anew."""
    made = make("q-learning", env={"fails": [[2, 3]], "limit": 5}, replay=STEPS * LANES)
    (simulator,) = made.actor.simulators
    states = [of_seed(state, 0) for state in history(made, STEPS)[0]]
    last, data = states[-1], states[-1].replay.data
    stored = int(last.env_steps)
    assert 0 < last.restarts == STEPS * LANES - stored
    assert last.replay.added == stored
    data = jax.tree.map(lambda x: x[:stored], data)
    at = states_of(simulator, data.observation), data.action
    assert not np.any((at[0] == 2) & (at[1] == 3))
    np.testing.assert_array_equal(data.reward, simulator.mdp.reward[at].astype(np.float32))
    reached = states_of(simulator, data.next_observation)
    np.testing.assert_array_equal(reached, simulator.mdp.next_state[at])
    for before, after in pairwise(states):
        new = before.episode_seed != after.episode_seed
        np.testing.assert_array_equal(after.episode_step, np.where(new, 0, before.episode_step + 1))
        failed = LANES - (after.env_steps - before.env_steps)
        assert np.count_nonzero(new) == failed + after.episodes - before.episodes
        assert len(after.history) == after.episode_step.sum()


class Reluctant(TableSimulator):
    """Can't begin with every seed."""

    refused = (3,)

    def reset(self, seed):
        if seed % 7 in self.refused and seed:
            raise ValueError("not with this seed")
        return super().reset(seed)


def test_a_checkpoint_with_a_lane_that_could_not_begin_goes_on_the_same():
    simulator = maze(0)
    reluctant = Reluctant(simulator.mdp, simulator.features, limit=4, masked=False)
    programs = [HostTrainer(settings("q-learning", (0,)), [reluctant]) for _ in range(2)]
    state = programs[0].begin()
    step = 0
    while not programs[0].pool.lost.any():
        state = programs[0].advance(state, step, np.ones(1, bool))
        step += 1
    restored = programs[1].restore(copy(programs[0], state))
    np.testing.assert_array_equal(programs[1].pool.lost, programs[0].pool.lost)
    here, _ = history(programs[0], 2, state, step)
    there, _ = history(programs[1], 2, restored, step)
    assert_identical(here, there)
    assert here[-1].env_steps[0] - here[0].env_steps[0] < 2 * LANES


def test_groups_without_a_lane_to_search_wait():
    """Two lanes, a group each, of which one or the other can't begin its episode."""
    simulator = maze(0, masked=True, actions=100)
    reluctant = Reluctant(simulator.mdp, simulator.features, limit=3)
    reluctant.refused = (0, 3)
    chosen = settings("save", (0,), lanes=2, batch=8, min_replay=8, replay=40)
    made, lost = HostTrainer(chosen, [reluctant], groups=2), []
    state = made.begin()
    for t in range(15):
        lost.append(made.pool.lost.copy())
        before, state = state.env_steps, made.advance(state, t, np.ones(1, bool))
        assert state.env_steps - before == 2 - lost[-1].sum()
    for lanes in ([False, True], [True, False], [False, False]):
        assert lanes in np.array(lost).tolist()
    stored = int(state.env_steps[0])
    data = unpacked(jax.tree.map(lambda x: np.asarray(x[0, :stored]), state.replay.data))
    places = states_of(reluctant, data.observation)
    np.testing.assert_array_equal(data.target > -np.inf, reluctant.mdp.mask[places])
    assert np.all(np.isfinite(data.target[data.target > -np.inf]))


def test_a_test_episode_that_fails_is_played_again(make):
    """It counts from its new start: nothing is left of what it had made before."""
    made = make("q-learning", env={"limit": 5, "ends": 0.6}, how={"test_lanes": 2})
    (simulator,) = made.actor.simulators
    params = made.params(made.begin())
    mine = jax.tree.map(lambda x: x[0], params)
    best = values_of(made, mine, simulator).argmax(1)
    at = np.arange(6), best
    after = np.where(simulator.mdp.terminal[at], -1, simulator.mdp.next_state[at])
    first = next(state for state in range(6) if after[state] not in (-1, state))
    simulator.fails = frozenset({(int(after[first]), int(best[after[first]]))})
    simulator.calls.clear()
    returns, steps = made.play(params, 12, 0, 1)
    seeds = [call[1] for call in simulator.calls if call[0] == "reset"]
    assert len(seeds) == 12 + made.pool.faults[0]
    assert any(seed % 6 == first for seed in seeds)  # it fails after a step
    ends = [play_greedily(simulator, made, mine, seed, 0, FOREVER) for seed in seeds]
    found = zip(*(x[0].tolist() for x in (returns, steps)), strict=True)
    for a, b in zip(sorted(found), sorted(end for end in ends if end), strict=True):
        assert a == pytest.approx(b, abs=1e-5)


# From end to end.


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_chain_is_learned_from_end_to_end(tmp_path):
    """Six states of four actions, of which one leads on; at random 1 in 4096 episodes pays."""
    out = tmp_path / "run"
    result = save_rl.train(
        "tests.search.table_simulators:chain", out=out, seed=1, env_options={"length": 6},
        workers=1, progress=False, episodes=350, lanes=LANES, batch=16, budget=BUDGET, replay=500,
        min_replay=50, learning_rate=3e-3, epsilon_episodes=250, target_period=20, chunk=16,
        test_episodes=3, test_budget=0, replay_ratio=4,
    )  # fmt: skip
    rows = read(out / "metrics.csv")
    assert len(result.metrics) == len(rows)
    env_steps, simulations, episodes, updates = (
        np.array([int(row[name]) for row in rows])
        for name in ("env_steps", "simulator_steps", "episodes", "updates")
    )
    np.testing.assert_array_equal(env_steps, 16 * LANES * (1 + np.arange(len(rows))))
    assert np.all((simulations > 0) & (simulations <= env_steps * BUDGET))
    assert np.all((episodes <= env_steps) & (env_steps <= 6 * (episodes + LANES)))
    # Two updates in each lock-step from the eighth on, when there are 56 transitions.
    np.testing.assert_array_equal(updates, 2 * (env_steps // LANES - 7))
    assert episodes[-1] >= 350
    assert {row["restarts"] for row in rows} == {"0"}
    returns = [float(row["return_mean"]) for row in rows if row["return_mean"]]
    assert 0 <= returns[0] < 0.5 < returns[-1] <= 1
    assert float(rows[-1]["test_return"]) == 1.0
    assert 1 <= float(rows[-1]["episode_length"]) <= 6

    for tested in save_rl.evaluate(out, budgets=(0, 3), episodes=5, workers=0):
        np.testing.assert_array_equal(tested.returns, np.ones((1, 5)))
        np.testing.assert_array_equal(tested.steps, np.full((1, 5), 6))
    assert len(read(out / "evaluation.csv")) == 2 * 5


@pytest.mark.slow  # programs go on from checkpoints above, runs in test_resume.py
def test_a_resumed_run_equals_one_in_a_single_sitting(tmp_path):
    def run(out, episodes, **options):
        save_rl.train(
            "tests.search.table_simulators:maze", out=out, env_options=MASKED, seed=4, workers=0,
            progress=False, episodes=episodes, lanes=LANES, batch=16, budget=2, replay=64,
            min_replay=20, chunk=3, learning_rate=1e-3, epsilon_episodes=40, target_period=10,
            replay_ratio=4, **options,  # else chosen for the length of the run
        )  # fmt: skip
        number = checkpoint.numbers(out / "checkpoints")[-1]
        with np.load(out / "checkpoints" / f"{number:09d}" / "arrays.npz") as arrays:
            return {name: arrays[name] for name in arrays.files}

    at_once = run(tmp_path / "whole", 60)
    run(tmp_path / "parts", 30)
    in_parts = run(tmp_path / "parts", 60, resume=True)
    assert_identical(at_once, in_parts)
    assert len(read(tmp_path / "whole" / "metrics.csv")) == len(
        read(tmp_path / "parts" / "metrics.csv")
    )


def test_gymnasium_from_end_to_end(tmp_path):
    out = tmp_path / "run"
    save_rl.train(
        "gym/FrozenLake-v1", agent="q-learning", out=out, env_options={"is_slippery": False},
        workers=0, progress=False, episodes=30, lanes=4, batch=16, replay=64, min_replay=8,
        chunk=4,
    )  # fmt: skip
    last = read(out / "metrics.csv")[-1]
    assert int(last["episodes"]) >= 30
    assert int(last["simulator_steps"]) == 0
    (tested,) = save_rl.evaluate(out, budgets=(2,), episodes=3, workers=0)
    assert np.isin(tested.returns, [0.0, 1.0]).all()
    assert np.all((tested.steps >= 1) & (tested.steps <= 100))  # Gymnasium's limit
