"""The kernels that choose the final action on the host, and the noise of their roots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from save_rl.agents import ACTS, get_agent
from save_rl.search.noise import mix_noise_all
from save_rl.training.device.acting import choose_action
from save_rl.training.host.acting import act_all
from save_rl.types import SearchResult
from tests.training.test_acting import ACTIONS, MASKED, is_drawn_from, searches

DRAWS = 6000
TEST = -1.0  # ε of a test
C = 0.7


def act(name, q, visits, epsilon, seeds, lanes=None, root=(), mask=None, search=True):
    """Final actions of lanes that all found the same; -9 where none was asked for.

    root: the actions of the slots, if not all actions have one. mask: `[A]`, by default what has a
    value.
    """
    count, mask = len(seeds), np.array(q) > MASKED if mask is None else mask
    actions = np.full(count, -9)

    def everywhere(row, kind):
        return np.tile(np.array(row, kind), (count, 1))

    act_all(
        np.arange(count) if lanes is None else lanes, np.asarray(seeds, np.uint32), search,
        ACTS.index(get_agent(name).act), C, np.full(count, epsilon, np.float32),
        everywhere(q, np.float32), everywhere(visits, np.int32), everywhere(root, np.int32),
        everywhere([] if np.all(mask) else np.packbits(mask), np.uint8), len(mask), actions,
    )  # fmt: skip
    return actions


def choices(name, q, visits, epsilon):
    """Final actions with many seeds, those that follow one another like random ones."""
    seeds = np.random.default_rng(0).integers(2**32, size=DRAWS // 2, dtype=np.uint32)
    return act(name, q, visits, epsilon, np.concatenate([seeds, np.arange(DRAWS // 2)]))


def literal(name, q, visits, epsilon):
    """Return the probability of each action, `[A]`, by the rules of docs/algorithm.md#acting."""
    q, visits = np.array(q), np.array(visits)
    valid, explored = q > MASKED, visits > 0

    def uniform(which):
        return which / which.sum()

    if name == "puct":
        if epsilon >= 0:
            return visits / visits.sum()
        return uniform(visits == visits.max())
    if epsilon >= 0 and name == "save-counts":
        return visits / visits.sum()
    if epsilon >= 0 and name == "save-softmax":
        return np.where(valid, np.exp(q), 0.0) / np.exp(q[valid]).sum()
    if epsilon >= 0 and name == "save-ucb":
        n = visits + 1
        bound = np.where(valid, q + C * np.sqrt(np.log(n[valid].sum()) / n), MASKED)
        return uniform(bound == bound.max())
    best = uniform(explored & (q == q[explored].max())) if explored.any() else None
    if best is None:
        best = uniform(valid & (q == q[valid].max()))
    elif name == "uct-threshold" and q[explored].max() <= 0 and (valid & ~explored).any():
        best = uniform(valid & ~explored)
    random = max(epsilon, 0.0)
    return random * uniform(valid) + (1 - random) * best


@st.composite
def decided(draw, one):
    """A search that leaves nothing to chance: no two values, and no two visits, are the same.

    Values are above 0, where `uct-threshold` is content with what it has tried. one: a single
    action was tried, so that sampling from visits has no choice.
    """
    q = np.array(draw(st.permutations(range(1, ACTIONS + 1))), float)
    visits = np.array(draw(st.permutations(range(1, ACTIONS + 1))))
    visits[draw(st.lists(st.integers(0, ACTIONS - 1), max_size=ACTIONS - 1))] = 0
    masked = np.array(draw(st.lists(st.booleans(), min_size=ACTIONS, max_size=ACTIONS)))
    masked[visits.argmax()] = False
    if one:
        visits[np.arange(ACTIONS) != visits.argmax()] = 0
    visits[masked], q[masked] = 0, MASKED
    return q.tolist(), visits.tolist()


NAMES = ["save", "puct", "uct-threshold", "save-ucb", "save-softmax", "save-counts"]
COUNTING = ("puct", "save-counts")
AGENTS = pytest.mark.parametrize("name", NAMES)


@AGENTS
@pytest.mark.parametrize(
    "epsilon",
    [TEST, 0.4, *(pytest.param(share, marks=pytest.mark.slow) for share in (0.0, 1.0))],
)
@given(data=st.data())
@settings(max_examples=12)
def test_actions_are_as_likely_as_the_paper_says(name, epsilon, data):
    q, visits = data.draw(searches(least=name in COUNTING))  # settings refuse a budget of 0
    weights = literal(name, q, visits, epsilon)
    actions = choices(name, q, visits, epsilon)
    counts = np.bincount(actions, minlength=ACTIONS)
    assert not counts[weights == 0].any()
    # Out of hundreds of cases none is off by six standard errors.
    error = np.sqrt(weights * (1 - weights) / DRAWS)
    assert np.all(np.abs(counts / DRAWS - weights) <= 6 * error)


@pytest.mark.parametrize(
    ("name", "q", "visits", "epsilon", "weights"),
    [
        # The best of what was explored, though an unexplored one seems better.
        ("save", [0.9, -0.5, -0.2, 0.0], [0, 2, 1, 0], TEST, [0, 0, 1, 0]),
        # Three tie; the fourth of the same value was never tried.
        ("save", [0.5, 0.5, 0.1, 0.5, 0.5], [1, 2, 1, 0, 7], 0.0, [1, 1, 0, 0, 1]),
        # Of 4 actions a random one is the best in a quarter of the cases: 0.6 + 0.4 / 4 = 0.7.
        ("save", [0.1, 0.2, 0.3, 0.4], [1, 1, 1, 1], 0.4, [0.1, 0.1, 0.1, 0.7]),
        ("save", [0.1, MASKED, 0.9, -2.0, MASKED], [3, 0, 0, 1, 0], 1.0, [1, 0, 1, 1, 0]),
        ("save", [0.1, MASKED, 0.7, 0.3], [0, 0, 0, 0], TEST, [0, 0, 1, 0]),
        ("puct", [0.0, 0.9, 0.1, 0.3, MASKED], [6, 0, 3, 1, 0], 0.0, [6, 0, 3, 1, 0]),
        ("puct", [0.0, 0.9, 0.1, 0.3, MASKED], [6, 0, 3, 1, 0], 1.0, [6, 0, 3, 1, 0]),
        ("puct", [0.9, 0.1, 0.3, MASKED, 0.0], [4, 4, 1, 0, 4], TEST, [1, 1, 0, 0, 1]),
        ("uct-threshold", [0.0, -0.3, 0.0, 0.0, MASKED], [2, 1, 0, 0, 0], TEST, [0, 0, 1, 1, 0]),
        ("uct-threshold", [0.1, -0.3, 0.0, 0.0, MASKED], [2, 1, 0, 0, 0], TEST, [1, 0, 0, 0, 0]),
    ],
)
def test_hand_worked_choices(name, q, visits, epsilon, weights):
    assert is_drawn_from(choices(name, q, visits, epsilon), weights)


def test_without_a_search_an_agent_of_visits_is_greedy_on_its_policy():
    policy = [0.2, MASKED, 0.5, 0.3]
    assert set(act("puct", policy, [0] * 4, TEST, np.arange(50), search=False)) == {2}


@AGENTS
@pytest.mark.parametrize("epsilon", [TEST, 0.0])
@pytest.mark.parametrize("tried", [0, 2])
def test_where_no_value_is_a_number_actions_are_of_all_that_are_allowed(name, epsilon, tried):
    """So episodes end, and the loss, which is no number either, stops training."""
    q, visits = [np.nan, np.nan, MASKED, np.nan], [tried, 0, 0, 0]
    mask, seeds = np.array([True, True, False, True]), np.arange(60)
    found = set(act(name, q, visits, epsilon, seeds, mask=mask))
    assert found <= {0, 1, 3}
    if tried == 0:
        assert found == {0, 1, 3}
        root, lots = [4, 19, 20, 1], np.arange(21) % 3 > 0
        found = set(act(name, [np.nan] * 4, [0] * 4, epsilon, np.arange(900), root=root, mask=lots))
        assert found == set(np.flatnonzero(lots))


LISTED = ["save", "save-counts", "puct"]  # the others look at every action


@pytest.mark.parametrize("name", LISTED)
@pytest.mark.parametrize("epsilon", [TEST, 0.0])
@given(data=st.data())
@settings(max_examples=20)
def test_slots_are_chosen_as_actions_are(name, epsilon, data):
    q, visits = data.draw(searches(least=name != "save"))
    root = np.array(data.draw(st.permutations(range(40)))[: len(q)])
    mask = np.isin(np.arange(40), root)
    seeds = np.arange(30)
    slots = act(name, q, visits, epsilon, seeds)
    np.testing.assert_array_equal(
        act(name, q, visits, epsilon, seeds, root=root, mask=mask), root[slots]
    )


@pytest.mark.parametrize("masked", [True, False])
def test_random_actions_are_of_all_that_are_allowed(masked):
    """Not only of those that have a slot."""
    actions = 21
    mask = (np.arange(actions) % 3 > 0) | (not masked)
    root, q, visits = [4, 19, 20, 1], [0.5, 0.25, 0.1, 0.0], [2, 1, 0, 0]
    weights = 0.4 * mask / mask.sum()
    weights[4] += 0.6
    seeds = np.arange(DRAWS)
    assert is_drawn_from(act("save", q, visits, 0.4, seeds, root=root, mask=mask), weights)


@AGENTS
def test_a_lane_depends_on_its_seed_alone(name):
    q, visits, seeds = [0.5, 0.5, 0.0, MASKED], [1, 1, 0, 0], np.arange(40) * 977
    everywhere = act(name, q, visits, 0.5, seeds)
    np.testing.assert_array_equal(everywhere, act(name, q, visits, 0.5, seeds))
    some = np.array([31, 4, 17])
    chosen = act(name, q, visits, 0.5, seeds, lanes=some)
    np.testing.assert_array_equal(chosen[some], everywhere[some])
    assert set(np.delete(chosen, some)) == {-9}  # the others were not asked
    assert len(set(everywhere)) > 1


@pytest.mark.parametrize(
    ("name", "epsilon"),
    [
        ("save", TEST),
        ("save", 0.0),
        ("puct", TEST),
        ("uct-threshold", TEST),
        ("save-ucb", 0.5),
        ("save-ucb", TEST),
        ("save-counts", 0.0),
        ("save-softmax", TEST),
    ],
)
@given(data=st.data())
@settings(max_examples=50)
def test_both_back_ends_agree_where_chance_has_no_say(name, epsilon, data):
    q, visits = data.draw(decided(one=name in COUNTING and epsilon >= 0))
    weights = literal(name, q, visits, epsilon)
    likely = np.flatnonzero(weights)
    assert len(likely) == 1
    found = SearchResult(
        jnp.asarray(q, jnp.float32), jnp.asarray(visits, jnp.int32), jnp.asarray(visits) > 0
    )
    on_device = _choose(get_agent(name), found, epsilon)
    assert act(name, q, visits, epsilon, [1]) == [int(on_device)] == likely


def _choose(agent, found, epsilon):
    key = jax.random.PRNGKey(0)
    if epsilon < 0:
        return _test(agent, found, key)
    return _train(agent, found, jnp.float32(epsilon), key)


_test = jax.jit(lambda a, r, k: choose_action(a, r, None, k), static_argnums=0)
_train = jax.jit(lambda a, r, e, k: choose_action(a, r, e, k, C), static_argnums=0)


# Noise at the root: 0.75 π + 0.25 Dir(1/n) over n unmasked actions.

NOISY = 20_000


def noise(policy, share):
    rows = np.tile(np.array(policy, np.float32), (NOISY, 1))
    mix_noise_all(np.arange(NOISY, dtype=np.uint32), share, rows)
    return rows.astype(np.float64)


@pytest.mark.parametrize(("n", "actions"), [(2, 6), (3, 6), (6, 6), (100, 100)])
def test_moments_of_the_noise_are_those_of_the_dirichlet(n, actions):
    policy = np.full(actions, MASKED)
    policy[np.argsort(np.arange(actions) % 2, kind="stable")[:n]] = 1 / n
    x = noise(policy, 1.0)[:, policy > MASKED]
    # For concentrations that add up to 1: variance m (1 - m) / 2, covariance -m² / 2, m = 1/n.
    mean, variance, covariance = 1 / n, (1 / n) * (1 - 1 / n) / 2, -1 / n**2 / 2
    first, last = x[:, 0], x[:, -1]
    products, squares = (first - mean) * (last - mean), (first - mean) ** 2
    for sample, expected in ((first, mean), (squares, variance), (products, covariance)):
        assert abs(sample.mean() - expected) < 4 * sample.std() / np.sqrt(NOISY)
    # One coordinate is Beta(1/n, 1 - 1/n); below 1e-6 a policy is as good as 0.
    visible = np.sort(first[first > 1e-6])
    exact = scipy.stats.beta(1 / n, 1 - 1 / n).cdf(visible)
    ranks = 1 - np.arange(len(visible), 0, -1) / NOISY
    assert np.max(np.abs(ranks - exact)) < scipy.stats.kstwo.isf(1e-3, NOISY)


def test_a_share_of_the_policy_is_noise_and_the_rest_stays():
    policy = np.array([0.5, MASKED, 0.3, 0.2, MASKED])
    allowed = policy > MASKED
    mixed, only_noise = noise(policy, 0.25), noise(policy, 1.0)
    np.testing.assert_allclose(mixed[:, allowed].sum(1), 1.0, atol=1e-5)
    assert np.all(mixed[:, ~allowed] == MASKED)
    expected = 0.75 * policy[allowed] + 0.25 * only_noise[:, allowed]
    np.testing.assert_allclose(mixed[:, allowed], expected, atol=1e-6)


def test_one_allowed_action_keeps_everything():
    np.testing.assert_allclose(noise([MASKED, 1.0, MASKED], 0.25)[:, 1], 1.0, atol=1e-5)


def test_noise_depends_on_the_seed_of_the_row_alone():
    policy = np.full((3, 4), 0.25, np.float32)
    alone = policy[:1].copy()
    mix_noise_all(np.array([1, 5, 1], np.uint32), 0.25, policy)
    mix_noise_all(np.array([5], np.uint32), 0.25, alone)
    np.testing.assert_array_equal(policy[1], alone[0])
    np.testing.assert_array_equal(policy[0], policy[2])
    assert not np.array_equal(policy[0], policy[1])
