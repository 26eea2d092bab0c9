"""The jitted program on mazes of six states: what it counts, stores, learns and leaves alone."""

import functools
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from save_rl.agents import AGENTS
from save_rl.learning import replay
from save_rl.training.device.trainer import DeviceTrainer, stack_envs
from save_rl.training.run import checkpoint
from save_rl.training.settings import TrainSettings

STATES, ACTIONS, FEATURES, LANES = 6, 5, 4, 4
FOREVER = 10**6
GAMMA = 0.9
FORTUNE = 1000.0  # what a masked action would pay

# What a fixture compiled is used in the worker that compiled it.
BY_FIVE = pytest.mark.xdist_group("device-by-five")
ONE_BY_ONE = pytest.mark.xdist_group("device-one-by-one")
MASKED = pytest.mark.xdist_group("device-masked")


class Place(NamedTuple):
    state: Any
    time: Any


class Maze(NamedTuple):
    """Random tables `[S, A]`; `after` is -1 where an episode ends, `limit` its longest time."""

    after: Any
    reward: Any
    mask: Any
    features: Any  # [S, F]
    limit: Any

    num_actions = ACTIONS

    def reset(self, key):
        return Place(jax.random.randint(key, (), 0, STATES), jnp.zeros((), jnp.int32))

    def step(self, place, action):
        after = self.after[place.state, action]
        time = place.time + 1
        reward = self.reward[place.state, action]
        return Place(jnp.maximum(after, 0), time), reward, after < 0, time >= self.limit

    def observe(self, place):
        return self.features[place.state]


class MaskedMaze(Maze):
    def action_mask(self, place):
        return self.mask[place.state]


def maze(seed, ends=0.3, limit=FOREVER, kind=Maze):
    rng = np.random.default_rng(seed)
    after = rng.integers(0, STATES, (STATES, ACTIONS))
    mask = rng.random((STATES, ACTIONS)) < 0.6
    mask[:, 0] = True
    reward = rng.uniform(-1, 1, (STATES, ACTIONS))
    return kind(
        after=jnp.asarray(np.where(rng.random(after.shape) < ends, -1, after), jnp.int32),
        reward=jnp.asarray(np.where(mask | (kind is Maze), reward, FORTUNE), jnp.float32),
        mask=jnp.asarray(mask),
        features=jnp.asarray(rng.standard_normal((STATES, FEATURES)), jnp.float32),
        limit=jnp.int32(limit),
    )


def program(agent, envs, **changes):
    """Two updates of 8 transitions after each lock-step of 4 lanes, unless told otherwise."""
    settings = {
        "agent": agent, "seeds": tuple(range(len(envs))), "lanes": LANES, "batch": 8,
        "replay": 80, "min_replay": LANES, "budget": 3, "chunk": 1, "discount": GAMMA,
        "learning_rate": 1e-3, **changes,
    }  # fmt: skip
    settings = TrainSettings(**settings)
    settings.check()
    return DeviceTrainer(settings, envs)


def copy(state):
    """`chunk` is given the memory of the state it starts from; this is what was in it."""
    return jax.tree.map(lambda x: np.array(x), state)


def history(program, envs, chunks, episodes=FOREVER):
    """The state at the beginning and after each chunk; a seed stops after these episodes."""
    arrays, _ = stack_envs(envs)
    state = program.initial(arrays, np.array(program.settings.seeds))
    states = [copy(state)]
    for chunk in range(chunks):
        running = states[-1].episodes < episodes
        state = program.chunk(arrays, state, chunk * program.settings.chunk, running)
        states.append(copy(state))
    return states


def of_seed(state, index):
    return jax.tree.map(lambda x: x[index], state)


def assert_same(one, other, **tolerance):
    """Equal leaf by leaf; with a tolerance, that is for what is not a whole number."""
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if tolerance and np.issubdtype(a.dtype, np.floating):
            np.testing.assert_allclose(a, b, **tolerance)
        else:
            np.testing.assert_array_equal(a, b)


def is_same(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.fixture(scope="module")
def by_five():
    """Chunks of five lock-steps."""
    return program("q-learning", [maze(0)], chunk=5, min_replay=12)


@pytest.fixture(scope="module")
def walked(by_five):
    """Three chunks without time limits, all of them still in replay."""
    env = maze(0)
    return env, by_five.settings, of_seed(history(by_five, [env], 3)[-1], 0)


@BY_FIVE
def test_steps_updates_and_the_replay_ratio_add_up(walked):
    _, settings, state = walked
    assert state.steps == state.stats.steps == 15
    # 4 transitions per lock-step: 12 are there after the third. Then 2 x 8 = 4 x 4 are replayed.
    assert settings.updates_per_step == 2
    assert state.updates == state.stats.updates == (15 - 2) * 2
    assert state.learner.optimiser[0].count == state.updates
    assert settings.updates_per_step * settings.batch == settings.replay_ratio * LANES


@BY_FIVE
def test_episodes_and_their_returns_add_up(walked):
    _, _, state = walked
    rewards, over = state.replay.data.reward[:15], state.replay.data.discount[:15] == 0
    returns, running, lengths = [], np.zeros(LANES), np.zeros(LANES)
    for reward, ends in zip(rewards, over, strict=True):
        running, lengths = running + reward, lengths + 1
        returns += running[ends].tolist()
        running, lengths = running * ~ends, lengths * ~ends
    assert len(returns) > 5
    assert state.episodes == state.stats.episodes == len(returns)
    np.testing.assert_allclose(state.stats.return_sum, sum(returns), rtol=1e-5)
    np.testing.assert_allclose(state.stats.return_min, min(returns), rtol=1e-5)
    np.testing.assert_allclose(state.stats.return_max, max(returns), rtol=1e-5)
    np.testing.assert_allclose(state.episode_return, running, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(state.episode_step, lengths)


def check_transitions(env, data, over):
    """Stored transitions `[steps, lanes]` are what the tables say, one after the other."""
    features, after = np.asarray(env.features), np.asarray(env.after)
    state = np.argmin(np.abs(data.observation[:, :, None] - features).sum(-1), -1)
    np.testing.assert_array_equal(data.observation, features[state])
    reached = after[state, data.action]
    np.testing.assert_array_equal(data.reward, np.asarray(env.reward)[state, data.action])
    np.testing.assert_allclose(data.discount, np.where(reached < 0, 0.0, GAMMA), rtol=1e-6)
    np.testing.assert_array_equal(data.next_observation, features[np.maximum(reached, 0)])
    goes_on = ~over[:-1]
    np.testing.assert_array_equal(
        data.observation[1:][goes_on], data.next_observation[:-1][goes_on]
    )
    return state


@BY_FIVE
def test_stored_transitions_are_those_of_the_environment(walked):
    env, _, state = walked
    data = jax.tree.map(lambda x: x[:15], state.replay.data)
    check_transitions(env, data, over=data.discount == 0)
    assert len(np.unique(data.action)) == ACTIONS  # ε is near 1


@BY_FIVE
def test_a_time_limit_ends_an_episode_but_not_the_bootstrap(by_five):
    env = maze(1, ends=0.0, limit=3)
    state = of_seed(history(by_five, [env], 2)[-1], 0)
    assert state.episodes == LANES * 3  # of 3 steps each in 10 lock-steps
    np.testing.assert_array_equal(state.episode_step, np.ones(LANES))
    data = jax.tree.map(lambda x: x[:10], state.replay.data)
    assert np.all(data.discount > 0)
    over = np.zeros((10, LANES), bool)
    over[[2, 5, 8]] = True
    check_transitions(env, data, over)


@pytest.fixture(scope="module")
def one_by_one():
    """Two seeds that learn from their fourth lock-step on, with 16 transitions."""
    return program("q-learning", [maze(0), maze(1)], min_replay=13, target_period=3)


@ONE_BY_ONE
def test_nothing_is_learned_before_there_is_enough_to_replay(one_by_one):
    states = [of_seed(state, 0) for state in history(one_by_one, [maze(0), maze(1)], 6)]
    for before, after in pairwise(states[:4]):  # 4, 8 and 12 transitions
        assert is_same(before.learner, after.learner)
        assert after.updates == after.stats.updates == after.stats.loss_q == 0
    for before, after in pairwise(states[3:]):
        assert not is_same(before.learner.params, after.learner.params)
        assert after.updates == before.updates + 2
        assert after.stats.loss_q > before.stats.loss_q


@ONE_BY_ONE
def test_the_target_network_is_copied_whenever_its_period_is_over(one_by_one):
    states = [of_seed(state, 0) for state in history(one_by_one, [maze(0), maze(1)], 11)]
    # Two updates per lock-step, counted from the first: 2, 4, 6, ... 16 cross 3, 6, 9, 12, 15.
    copies = [False, True, True, False, True, True, False, True]
    for (before, after), copied in zip(pairwise(states[3:]), copies, strict=True):
        assert not is_same(after.learner.params, before.learner.params)
        expected = after.learner.params if copied else before.learner.target
        assert is_same(after.learner.target, expected)


@ONE_BY_ONE
def test_a_seed_that_had_its_episodes_rests_while_others_go_on(one_by_one):
    envs = [maze(0, ends=1.0), maze(1, ends=0.0, limit=5)]
    states = history(one_by_one, envs, 9, episodes=16)
    # The first has 4 episodes per lock-step and is done after four; the other has 4 after five.
    assert [int(state.episodes[0]) for state in states] == [0, 4, 8, 12, *[16] * 6]
    for before, after in pairwise(states[4:]):
        assert is_same(of_seed(before, 0), of_seed(after, 0))
        assert not is_same(of_seed(before, 1).learner, of_seed(after, 1).learner)
    assert states[-1].steps.tolist() == [4, 9]


@pytest.mark.parametrize("agent", ["save", pytest.param("puct", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_seed_does_not_depend_on_the_seeds_beside_it(agent):
    first, second = (
        history(program(agent, envs, seeds=seeds), envs, 6)[-1]
        for seeds in ((0, 1), (1, 2))
        for envs in ([maze(seed) for seed in seeds],)
    )
    # Sums over a batch may be taken in another order beside other numbers, which is felt in the
    # last digits; an influence of the other seed would be felt in the first.
    assert_same(of_seed(first, 1), of_seed(second, 0), rtol=1e-4, atol=1e-5)
    assert not is_same(of_seed(first, 0).learner, of_seed(first, 1).learner)


@pytest.mark.slow  # `by_five` and `one_by_one` run chunks of both kinds
def test_the_length_of_chunks_does_not_matter():
    one_by_one, at_once = (
        history(program("save", [maze(0)], chunk=chunk), [maze(0)], 6 // chunk)[-1]
        for chunk in (1, 6)
    )
    assert_same(one_by_one, at_once, rtol=1e-4, atol=1e-5)  # compiled apart: last digits differ


TAUS = {"save": 0.4}


@pytest.fixture(scope="module")
def masked():
    """Makes programs of agents over mazes with masks, one update of 16 after each lock-step."""

    @functools.cache
    def make(agent):
        return program(
            agent, [maze(2, kind=MaskedMaze)], batch=16, replay=50 * LANES, target_period=2,
            temperature=TAUS.get(agent, 1.0),
        )  # fmt: skip

    return make


def test_a_seed_that_stood_still_goes_on_as_if_it_had_not():
    """As when a run is resumed for more episodes, whose seeds did not end at the same time."""
    envs, both, other = [maze(0, limit=4), maze(1)], np.ones(2, bool), np.array([False, True])
    # The target network is copied every two lock-steps, of all seeds.
    made = program("q-learning", envs, n_step=3, target_period=4)

    def after(plan):
        state = made.begin()
        for step, running in enumerate(plan):
            state = made.advance(state, step, running)
        return of_seed(copy(state), 0)

    assert is_same(after([both] * 3 + [other] * 2 + [both] * 4), after([both] * 7))


@MASKED
def test_the_same_seed_gives_the_same_run_bit_for_bit(masked, tmp_path):
    """Also from a checkpoint on."""
    made, env = masked("save"), maze(3, kind=MaskedMaze)
    states = history(made, [env], 12)
    assert is_same(history(made, [env], 12)[-1], states[-1])
    checkpoint.save(tmp_path, 6, made.snapshot(states[6]), {})
    found = checkpoint.load_newest(tmp_path, made.template(), pytest.fail)
    state, (arrays, _) = made.restore(found.state), stack_envs([env])
    for step in range(6, 12):
        state = made.chunk(arrays, state, step, np.ones(1, bool))
    assert is_same(copy(state), states[-1])


@MASKED
def test_statistics_are_forgotten_and_nothing_else(masked):
    made = masked("save")
    before = history(made, [maze(3, kind=MaskedMaze)], 6)[-1]
    assert before.stats.loss_q > 0
    after = copy(made.forget_stats(jax.tree.map(jnp.asarray, before)))
    assert is_same(after._replace(stats=()), before._replace(stats=()))
    stats = after.stats
    assert stats.steps == stats.episodes == stats.updates == stats.return_sum == 0
    assert stats.loss_q == stats.loss_a == 0
    assert (stats.return_min, stats.return_max) == (np.inf, -np.inf)


@MASKED
@pytest.mark.parametrize(
    "agent",
    ["save", *(pytest.param(x, marks=pytest.mark.slow) for x in ("puct", "q-learning", "gumbel"))],
)
def test_masked_actions_are_neither_executed_nor_stored(masked, agent):
    env = maze(3, ends=0.2, kind=MaskedMaze)
    state = of_seed(history(masked(agent), [env], 50)[-1], 0)
    data = state.replay.data
    assert data.action.shape == (50, LANES)
    place = check_transitions(env, data, over=data.discount == 0)
    mask = np.asarray(env.mask)
    assert mask[place, data.action].all()
    assert data.reward.max() < FORTUNE
    np.testing.assert_array_equal(data.mask, mask[place])
    reached = np.maximum(np.asarray(env.after)[place, data.action], 0)
    np.testing.assert_array_equal(data.next_mask, mask[reached])
    # Most masks forbid something, and every allowed action of some state was taken.
    assert not mask[place].all()
    assert len(np.unique(data.action)) == ACTIONS
    if agent == "save":
        assert np.all(np.isfinite(data.target) == data.mask)
        assert data.target.max() < FORTUNE  # no simulation took a masked action either
    if agent in ("puct", "gumbel"):
        np.testing.assert_allclose(data.target.sum(-1), 1.0, rtol=1e-6)
        assert not data.target[~data.mask].any()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.learner.params))


EPISODES = 30_000  # of the past, so that save-l2's β_A, which starts at 0, counts
BETAS = {  # paper B.3, C.1 and C.3
    "save": (0.5, 0.5),
    "save-no-amortization": (1.0, 0.0),
    "save-l2": (0.5, 0.045 * EPISODES / 5e4),
    "save-no-q-learning": (0.0, 0.025),
    "save-puct": (0.5, 0.5),
    "q-learning": (1.0, 0.0),
    "puct": (0.5, 0.5),
    "puct-td": (0.5, 0.5),
    "gumbel": (0.5, 0.5),
    "save-no-amortization-annealed": (0.5, 0.0),
    "save-amortization-only": (0.0, 0.5),
    "save-explored": (0.5, 0.5),  # not the paper's: docs/algorithm.md#beyond-the-paper
    "save-visit-weighted": (0.5, 0.5),
}


# Gradients of policies that hardly differ are near the rounding error of float32, and Adam divides
# them by their own size; their moments are compared all the same.
ROUGH = {"gumbel": 2e-4, "puct-td": 2e-4, "save-amortization-only": 2e-4}


def literal_loss(name, network, target_network, batch, returns, finished, betas, tau=1.0):
    """Return `β_Q L_Q + β_A L_A` and both terms, transition by transition, from the paper's
    equations (section 3.3, A.3, C.3; docs/algorithm.md#learning)."""
    head, value = network(jnp.asarray(batch.observation))
    next_q, next_value = target_network(jnp.asarray(batch.next_observation))
    terms_q, terms_a = [], []
    for i in range(batch.action.shape[0]):
        if name == "puct" and not finished[i]:
            continue  # its return is not known yet
        allowed, next_allowed = np.flatnonzero(batch.mask[i]), np.flatnonzero(batch.next_mask[i])
        q = head[i][allowed]
        log_policy = q / tau - jnp.log(jnp.sum(jnp.exp(q / tau)))
        target = np.asarray(batch.target[i])
        found = target[allowed] if target.size else None
        bootstrapped = batch.reward[i] + batch.discount[i] * jnp.max(next_q[i][next_allowed])
        if name in ("gumbel", "puct-td"):
            bootstrapped = batch.reward[i] + batch.discount[i] * next_value[i]
        if name in ("puct", "puct-td", "gumbel"):
            goal = returns[i] if name == "puct" else bootstrapped
            terms_q.append(0.5 * (value[i] - goal) ** 2)
            terms_a.append(-jnp.sum(found * log_policy))
        else:
            terms_q.append(0.5 * (bootstrapped - head[i][batch.action[i]]) ** 2)
        if name in ("save", "save-puct", "save-amortization-only"):
            policy = np.exp(found / tau) / np.exp(found / tau).sum()
            terms_a.append(-jnp.sum(policy * log_policy))
        if name == "save-explored":  # the same over the actions that were tried
            tried = found > -np.inf
            policy = np.exp(found[tried]) / np.exp(found[tried]).sum()
            terms_a.append(-jnp.sum(policy * jnp.log(jnp.exp(q[tried]) / jnp.exp(q[tried]).sum())))
        if name == "save-visit-weighted":
            visits = target[len(head[i]) :][allowed]
            tried = visits > 0
            errors = found[tried] - q[tried]
            terms_a.append(jnp.sum(visits[tried] / visits.sum() * errors**2) / 2)
        if name in ("save-l2", "save-no-q-learning"):
            terms_a.append(jnp.sqrt(jnp.sum((found - q) ** 2)))
    no_q = name in ("save-no-q-learning", "save-amortization-only")
    loss_q = 0.0 if no_q else sum(terms_q) / len(terms_q)
    loss_a = sum(terms_a) / len(terms_a) if terms_a else 0.0
    return betas[0] * loss_q + betas[1] * loss_a, (loss_q, loss_a)


@MASKED
@pytest.mark.parametrize(
    "name",
    [  # test_host.py has others, by the same equations
        "save", *(pytest.param(x, marks=pytest.mark.slow) for x in BETAS if x != "save"),
    ],
)  # fmt: skip
def test_an_update_is_a_step_of_adam_on_the_loss(masked, name):
    made = masked(name)
    assert made.settings.updates_per_step == 1
    state = made.initial(made.env_arrays, np.array([0]))
    state = state._replace(episodes=jnp.array([EPISODES], jnp.int32))
    for step in range(4):
        before = of_seed(copy(state), 0)
        state = made.chunk(made.env_arrays, state, step, np.ones(len(state.steps), bool))
    after = of_seed(copy(state), 0)

    learn_key = jax.random.split(before.key, 4)[3]
    batch, returns, finished = replay.sample(
        after.replay, learn_key, 3, 50 * LANES, (16,), made.settings.horizon
    )
    batch = jax.tree.map(np.asarray, batch)
    assert 0 < finished.sum() < 16 or name != "puct"
    loss_gradient = jax.value_and_grad(
        lambda params: literal_loss(
            name, made.network(params), made.network(before.learner.target), batch,
            np.asarray(returns), np.asarray(finished), BETAS[name], TAUS.get(name, 1.0),
        ),
        has_aux=True,
    )  # fmt: skip
    (_, (loss_q, loss_a)), gradient = jax.jit(loss_gradient)(before.learner.params)
    changes, optimiser = optax.adam(1e-3).update(gradient, before.learner.optimiser)
    params = optax.apply_updates(before.learner.params, changes)

    assert not is_same(before.learner.target, before.learner.params)  # copied an update ago
    assert after.stats.loss_q - before.stats.loss_q == pytest.approx(float(loss_q), rel=1e-4)
    assert after.stats.loss_a - before.stats.loss_a == pytest.approx(float(loss_a), rel=1e-4)
    # Adam's moments are linear and quadratic in the gradient; a few episodes have ended since
    # EPISODES, which moves save-l2's β_A by less than 1e-3 of itself.
    assert_same(after.learner.optimiser, jax.tree.map(np.asarray, optimiser), rtol=2e-3, atol=1e-7)
    # A step is at most about the learning rate, 1e-3; compare to a hundredth of it.
    within = ROUGH.get(name, 1e-5)
    assert_same(after.learner.params, jax.tree.map(np.asarray, params), rtol=0, atol=within)
    assert not is_same(after.learner.params, before.learner.params)


def test_every_way_to_learn_is_in_the_table():
    def way(agent):
        return agent.value_loss, agent.amortization_loss, agent.prior, agent.beta_q, agent.beta_a

    rows = [agent for agent in AGENTS.values() if agent.learns and not agent.recurrent]
    learning = {way(agent) for agent in rows}
    assert {way(AGENTS[name]) for name in BETAS} == learning


@pytest.mark.parametrize(("agent", "kind"), [("puct", MaskedMaze), ("save", Maze)])
@pytest.mark.slow
def test_one_program_tests_all_budgets_up_to_its_largest(agent, kind):
    envs = [maze(0, kind=kind)]
    own = program(agent, envs)
    shared = DeviceTrainer(own.settings, envs, budgets=(0, 2, 5, 1000))
    params = own.params(own.begin())
    found = {}
    for budget in (0, 2):
        found[budget] = shared.play(params, 32, budget, number=3)
        assert_same(found[budget], own.play(params, 32, budget, number=3), rtol=1e-6)
    found[5] = shared.play(params, 32, 5, number=3)
    assert not is_same(found[0], found[2])
    assert not is_same(found[2], found[5])
    assert shared._tests._cache_size() == 1
