"""Test episodes on an environment small enough to know every return beforehand."""

import csv
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import save_rl
from save_rl import evaluation
from save_rl.agents import get_agent
from save_rl.envs.from_jax import FromJax
from save_rl.errors import InputError
from save_rl.evaluation import evaluate_parameters, mean_and_error
from save_rl.networks.table import TableNetwork
from save_rl.players import play as play_episode
from save_rl.training.device.acting import play
from save_rl.training.device.trainer import DeviceTrainer
from save_rl.training.settings import TrainSettings

# One worker runs them all, so that each program is compiled once.
pytestmark = pytest.mark.xdist_group("evaluation")
END = 9
EPISODES = 1500  # 83 of the rarest ending


class Fork(NamedTuple):
    """Three states, three actions; episodes begin in state 0 or in state 1.

    | state | action 0 | action 1 | action 2 |
    |---|---|---|---|
    | 0 | on to state 1 | ends with 0.3 | ends with 0 |
    | 1 | ends with 1 | 0.2, on to state 2 | ends with 0 |
    | 2 | ends with 0.5 | ends with 0.5 | ends with 0.5 |

    The best there is from both starts is 1, in two steps and in one.
    """

    after: Any
    reward: Any

    num_actions = 3
    num_states = 3
    max_steps = 3

    def reset(self, key):
        return jax.random.randint(key, (), 0, 2)

    def step(self, state, action):
        after = self.after[state, action]
        return jnp.minimum(after, 2), self.reward[state, action], after == END, after < 0

    def observe(self, state):
        return state


def fork():
    return Fork(
        after=jnp.array([[1, END, END], [END, 2, END], [END, END, END]], jnp.int32),
        reward=jnp.array([[0.0, 0.3, 0.0], [1.0, 0.2, 0.0], [0.5, 0.5, 0.5]]),
    )


# Wrong about state 0, where action 1 looks best, and right about state 1.
Q = jnp.array([[0.4, 0.5, 0.0], [0.9, 0.0, 0.0], [0.0, 0.0, 0.0]])
# What five simulations make of it with c = 0.1 and γ = 1, U in brackets:
# 1. All N are 1, action 1 has the highest prior: ends with 0.3, Q(1) = (0.5 + 0.3) / 2 = 0.4.
# 2. log 4 = 1.386. Action 0: 0.4 [+ 0.118], action 1: 0.4 [+ 0.083]: action 0, a leaf worth 0.9.
#    Q(0) = (0.4 + 0.9) / 2 = 0.65.
# 3. to 5. Action 0 leads by 0.25, which U can't make up for; in state 1 its prior 0.9 leads by
#    0.9, and then pays 1. Q(0) = (0.4 + 0.9 + 1 + 1 + 1) / 5 = 0.86.
# So action 0 is taken, and action 0 again in state 1.


def trainer(seeds=(0,), **settings):
    settings = {"network": "table", "c": 0.1, "discount": 1.0, **settings}
    return DeviceTrainer(TrainSettings(seeds=seeds, **settings), [fork() for _ in seeds])


def one_table():
    """A table network that says Q."""
    return eqx.tree_at(lambda n: n.head, TableNetwork(3, 3), Q)


def table(seeds=1):
    """Parameters `[seeds, ...]` of it."""
    return jax.tree.map(lambda x: jnp.stack([x] * seeds), one_table())


@pytest.fixture(scope="module")
def tested():
    """200 episodes of two seeds at budgets 0 and 5."""
    return evaluate_parameters(trainer(seeds=(0, 1)), table(2), (0, 5), 200)


def test_without_search_the_table_is_followed(tested):
    greedy = tested[0]
    assert greedy.budget == 0
    assert greedy.returns.shape == greedy.steps.shape == (2, 200)
    np.testing.assert_array_equal(greedy.steps, 1)
    # 0.3 from state 0 and 1 from state 1; each is the beginning of half of the episodes.
    from_the_first = np.isclose(greedy.returns, 0.3)
    np.testing.assert_allclose(greedy.returns[~from_the_first], 1.0)
    assert 0.35 < from_the_first.mean() < 0.65


def test_five_simulations_find_the_best_there_is(tested):
    greedy, searching = tested
    assert searching.budget == 5
    np.testing.assert_allclose(searching.returns, 1.0)
    # The same episodes at both budgets: two steps where the greedy one had gone wrong.
    np.testing.assert_array_equal(searching.steps, 1 + np.isclose(greedy.returns, 0.3))


def test_seeds_have_episodes_of_their_own(tested):
    assert not np.array_equal(tested[0].returns[0], tested[0].returns[1])


def test_q_learning_searches_as_save_does(tested):
    learner = trainer(seeds=(0, 1), agent="q-learning")
    (result,) = evaluate_parameters(learner, table(2), (5,), 200)
    np.testing.assert_array_equal(result.returns, tested[1].returns)
    np.testing.assert_array_equal(result.steps, tested[1].steps)


def test_a_single_episode():
    (result,) = evaluate_parameters(trainer(), table(), (0,), 1)
    assert result.returns.shape == result.steps.shape == (1, 1)


def test_episodes_beyond_the_lanes_are_new_ones(tested, monkeypatch):
    monkeypatch.setattr(DeviceTrainer, "test_batch", 200)
    (result,) = evaluate_parameters(trainer(seeds=(0, 1)), table(2), (0,), 230)
    assert result.returns.shape == result.steps.shape == (2, 230)
    np.testing.assert_array_equal(result.returns[:, :200], tested[0].returns)
    assert not np.array_equal(result.returns[:, 200:], tested[0].returns[:, :30])


@pytest.mark.slow
def test_tests_are_compiled_once_per_number_of_episodes_and_budget():
    made, traced = trainer(), []
    network = made.network
    made.network = lambda params: traced.append(params) or network(params)
    for episodes, budget in ((3, 0), (3, 0), (2, 0), (2, 1), (3, 0), (2, 1)):
        for number in range(2):
            returns, _ = made.play(table(), episodes, budget, number)
            assert returns.shape == (1, episodes)
    assert len(traced) == 3


class Treadmill:
    """Never ends, and pays 1 for each step; `limit` steps are tested."""

    num_actions = 2
    num_states = 1

    def __init__(self, limit):
        if limit is not None:
            self.max_steps = limit

    def reset(self, key):
        return jnp.zeros((), jnp.int32)

    def step(self, state, action):
        return state, 1.0, False, False

    def observe(self, state):
        return state


@pytest.mark.parametrize(("limit", "steps"), [(7, 7), (None, 1000)])
def test_an_episode_that_does_not_end_is_cut(limit, steps):
    returns, lengths = play(
        get_agent("save"), TableNetwork(1, 2), Treadmill(limit), jax.random.key(0),
        episodes=3, budget=0, c=1.0, discount=1.0,
    )  # fmt: skip
    np.testing.assert_array_equal(returns, np.full(3, steps))
    np.testing.assert_array_equal(lengths, np.full(3, steps))


def test_the_error_of_a_mean():
    # Mean 1, variance 1, and four episodes: 1 ± 1/2.
    result = evaluation.TestEpisodes(0, np.array([[0.0, 2.0], [0.0, 2.0]]), np.ones((2, 2)))
    assert mean_and_error(result) == (1.0, 0.5)


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_uct_with_one_simulation_is_a_random_walk(tmp_path):
    # The one action that was tried is taken. From state 0: 0.3 or 0 at once, or state 1, from
    # there 1, 0 or 0.2 + 0.5, each a third.
    (result,) = save_rl.evaluate(
        "tests.test_evaluation:fork", (1,), EPISODES, agent="uct", out=tmp_path / "evaluation.csv"
    )
    chances = {
        (0.3, 1): 1 / 6,
        (0.0, 1): 1 / 6 + 1 / 6,  # from state 0, and from state 1
        (1.0, 1): 1 / 6,
        (0.7, 2): 1 / 6,
        (1.0, 2): 1 / 18,
        (0.0, 2): 1 / 18,
        (0.7, 3): 1 / 18,
    }
    played = list(zip(result.returns[0].round(4).tolist(), result.steps[0].tolist(), strict=True))
    counts = [
        sum(np.isclose(paid, value) and length == steps for paid, length in played)
        for value, steps in chances
    ]
    assert sum(counts) == EPISODES
    assert scipy.stats.chisquare(counts, EPISODES * np.array(list(chances.values()))).pvalue > 1e-3


@pytest.mark.slow  # the test above has UCT's episodes, tests/search its search
def test_uct_with_many_simulations_finds_the_best_there_is(tmp_path):
    (result,) = save_rl.evaluate(
        "tests.test_evaluation:fork", (80,), 50, agent="uct", out=tmp_path / "evaluation.csv"
    )
    np.testing.assert_allclose(result.returns, 1.0)
    assert set(result.steps[0].tolist()) == {1, 2}


@pytest.mark.slow
def test_the_table_of_one_seed(tmp_path):
    def test(name):
        return save_rl.evaluate(
            "tests.test_evaluation:fork", (2, 1), 5, agent="uct", out=tmp_path / name
        )

    results = test("table.csv")
    assert (tmp_path / "table.csv").read_text().splitlines()[0] == "budget,episode,return,steps"
    rows = read(tmp_path / "table.csv")
    assert [(row["budget"], row["episode"]) for row in rows] == [
        (budget, str(episode)) for budget in "21" for episode in range(5)
    ]
    returns = np.concatenate([result.returns[0] for result in results])
    np.testing.assert_array_equal(np.float32([row["return"] for row in rows]), returns)
    steps = np.concatenate([result.steps[0] for result in results])
    np.testing.assert_array_equal([int(row["steps"]) for row in rows], steps)
    test("again.csv")  # the same test gives the same table
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "table.csv").read_bytes()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short training run of two seeds; without search in training there is less to compile."""
    folder = tmp_path_factory.mktemp("evaluation") / "run"
    return save_rl.train(
        "tests.test_evaluation:fork", out=folder, agent="q-learning", seed=(3, 5), episodes=40,
        budget=2, lanes=4, replay=32, min_replay=16, network="table", progress=False, chunk=4,
    )  # fmt: skip


@pytest.fixture(scope="module")
def tested_run(run):
    """Tests of the run, which also leave a table in its folder."""
    return save_rl.evaluate(run.path, (0, 2), 30)


def test_the_table_of_a_run_with_several_seeds(run, tested_run):
    path = run.path / "evaluation.csv"
    assert path.read_text().splitlines()[0].startswith("budget,episode,return,steps,seed,")
    rows = read(path)
    assert len(rows) == 2 * 2 * 30
    for result in tested_run:
        for i, seed in enumerate(("3", "5")):
            chosen = [r for r in rows if r["seed"] == seed and r["budget"] == str(result.budget)]
            assert [int(row["episode"]) for row in chosen] == list(range(30))
            np.testing.assert_array_equal(
                np.float32([row["return"] for row in chosen]), result.returns[i]
            )
            np.testing.assert_array_equal([int(row["steps"]) for row in chosen], result.steps[i])


def test_a_run_is_tested_with_the_parameters_it_ended_with(run, tested_run):
    from_memory = evaluate_parameters(run.trainer, run.state.learner.params, (0, 2), 30)
    for one, other in zip(tested_run, from_memory, strict=True):
        assert one.budget == other.budget
        np.testing.assert_array_equal(one.returns, other.returns)
        np.testing.assert_array_equal(one.steps, other.steps)


def test_an_environment_in_jax_has_no_levels(run):
    with pytest.raises(InputError, match=r"--level: 1 .* left out in an environment without level"):
        save_rl.evaluate(run.path, (0,), 2, level=1)


def test_a_run_plays_no_environment_in_jax(run):
    with pytest.raises(InputError, match=r"^simulator: it is not a Python simulator \("):
        evaluation.trained_player(run.path, fork(), 1)


def test_a_run_in_jax_plays_itself(run, tmp_path):
    sim = FromJax(fork())
    player = evaluation.trained_player(run.path, sim, 2)
    episodes = [play_episode(sim, player, seed) for seed in range(6)]
    assert all(episode.moves[-1].over for episode in episodes)
    save_rl.evaluate(
        "tests.test_evaluation:fork", episodes=30, agent="random", out=tmp_path / "x.csv"
    )
    returns = [float(row["return"]) for row in read(tmp_path / "x.csv")]
    assert {round(value, 1) for value in returns} <= {0.0, 0.3, 0.7, 1.0}


def test_an_agent_that_learns_is_not_tested_on_an_environment(tmp_path):
    with pytest.raises(InputError, match="'save' must be trained"):
        save_rl.evaluate("tightrope", (5,), agent="save", out=tmp_path / "evaluation.csv")
    assert list(tmp_path.iterdir()) == []
