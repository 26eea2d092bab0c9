"""Training where steps have chance: real steps have their own luck, and can be replayed."""

from dataclasses import asdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import save_rl
from save_rl import search
from save_rl.envs import make, runs_on_host
from save_rl.envs.chance import is_stochastic
from save_rl.envs.gym import SimulatorEnv
from save_rl.envs.pool import Source
from save_rl.errors import InputError
from save_rl.players import make_player, play
from save_rl.training.cluster.actor import ActorProcess, ActorTask, StepRequest
from save_rl.training.device.trainer import DeviceTrainer
from save_rl.training.host.trainer import HostTrainer
from save_rl.training.settings import TrainSettings
from tests.training.chance_environments import (
    CELLS,
    SLIPS,
    NoSeed,
    Place,
    Slippery,
    Unsaid,
    Wheel,
    slippery_in_jax,
)
from tests.training.test_host import copy, history

HERE = "tests.training.chance_environments:"
ONE = np.ones(1, bool)


def settings(**changes):
    values = {
        "lanes": 4, "batch": 4, "replay": 64, "min_replay": 8, "budget": 3, "chunk": 2,
        "replay_ratio": 1, "discount": 0.9, "network": "mlp",
    }  # fmt: skip
    chosen = TrainSettings(**({"env": HERE + "Slippery"} | values | changes))
    chosen.check()
    return chosen


@pytest.fixture
def trainers():
    made = []

    def trainer(workers=0, simulator=None, **changes):
        sources = [Source(HERE + "Slippery", 0, {})]
        how = {"workers": workers, "test_lanes": 4}
        made.append(HostTrainer(settings(**changes), [simulator or Slippery()], sources, **how))
        return made[-1]

    yield trainer
    for one in made:
        one.close()


def assert_equal(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_run_is_the_same_with_workers_and_after_it_is_resumed(trainers):
    states, _ = history(trainers(), 8)
    with_workers, _ = history(trainers(workers=2), 8)
    assert_equal(states[-1], with_workers[-1])
    resumed = trainers()
    state = resumed.restore(jax.tree.map(np.array, states[4]))
    assert np.any(states[4].episode_step > 0)  # in the middle of episodes
    rest, _ = history(resumed, 4, state, 4)
    assert_equal(states[-1], rest[-1])


def test_the_luck_of_real_steps_is_drawn_evenly_and_is_not_that_of_the_search(trainers):
    simulator = Slippery()
    trainer = trainers(simulator=simulator, budget=4, epsilon_start=1.0, epsilon_end=1.0)
    state, slips, real = trainer.begin(), [], set()
    for step in range(0, 120, 2):
        simulator.made.clear()
        state = trainer.advance(state, step, ONE)
        real |= {seed for _, _, seed in simulator.made[-4:]}  # the last steps are real ones
    data = copy(trainer, state).replay.data
    stored = min(64, int(np.asarray(state.steps)[0]) * 4)
    seen, after = (np.asarray(x)[0, :stored] for x in (data.observation, data.next_observation))
    action = np.asarray(data.action)[0, :stored]
    moved = after.argmax(-1) - seen.argmax(-1)
    slips = (moved > 0) != (action == 1)
    assert 0.05 < slips[seen.argmax(-1) > 0].mean() < 0.5
    assert len(real) > 200  # 240 steps, each with its own luck


def test_an_actor_of_a_cluster_gives_steps_their_luck(trainers):
    """With the same parameters and no search, it takes the first steps of a run on one machine."""
    chosen = settings(agent="q-learning")
    here = trainers(agent="q-learning")
    state = here.begin()
    actor = ActorProcess(lambda parameters: parameters)
    actor.start(ActorTask(asdict(chosen), 0, 0, 0, chosen.lanes, -1))
    leaves = [np.asarray(x) for x in jax.tree.leaves(here.params(state))]
    found = actor.act(StepRequest(0, 0, 1.0, -1, 0), [leaves]).experience
    data = copy(here, here.advance(state, 0, ONE)).replay.data
    np.testing.assert_array_equal(
        found.transitions.next_observation[0], np.asarray(data.next_observation)[0, : chosen.lanes]
    )


def test_tests_draw_their_luck_too_and_are_repeatable(trainers):
    trainer = trainers()
    params = trainer.params(trainer.begin())
    first, second = (trainer.play(params, 12, 2, 5) for _ in range(2))
    assert_equal(first, second)
    assert len(set(np.asarray(first[1]).ravel().tolist())) > 1
    assert np.any(np.asarray(trainer.play(params, 12, 2, 6)[1]) != first[1])


@pytest.mark.parametrize("budget", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_real_steps_on_the_device_have_chance(budget):
    chosen = settings(env=HERE + "slippery_in_jax", lanes=16, replay=400, budget=budget)
    trainer = DeviceTrainer(chosen, [slippery_in_jax()])
    state = trainer.begin()
    for step in range(0, 20, 2):
        state = trainer.advance(state, step, ONE)
    cells = [np.asarray(x)[0, :320].argmax(-1) for x in (
        state.replay.data.observation, state.replay.data.next_observation
    )]  # fmt: skip
    action = np.asarray(state.replay.data.action)[0, :320]
    inside = cells[0] > 0
    slips = ((cells[1] > cells[0]) != (action == 1))[inside]
    assert abs(slips.mean() - SLIPS) < 4 * np.sqrt(SLIPS * (1 - SLIPS) / len(slips))
    if budget:
        _, steps = trainer.play(trainer.params(state), 8, budget, 0)
        assert len(set(steps[0].tolist())) > 1


def test_the_luck_of_a_lane_is_not_what_another_lane_chooses_with():
    """Not even where a simulator splits its key as the agent does."""
    chosen = settings(agent="q-learning", replay=160, epsilon_end=1.0)
    trainer = DeviceTrainer(chosen, [Wheel(jnp.int32(8))])
    state = trainer.begin()
    for step in range(0, 40, 2):
        state = trainer.advance(state, step, ONE)
    data = jax.tree.map(np.asarray, state.replay.data)
    same = data.action[0, :, :, None] == data.reward[0, :, None, :]  # of two lanes, at 40 steps
    assert same.mean(0).max() < 0.5  # 1/8 is to be expected


@pytest.mark.parametrize("name", ["Unsaid", "unsaid_in_jax"])
def test_the_user_can_say_that_steps_take_a_seed(name):
    env = make(HERE + name, stochastic=True)
    assert is_stochastic(env)
    assert runs_on_host(env, HERE + name) == (name == "Unsaid")
    with pytest.raises(InputError, match=r"step needs 3 arguments; .* --stochastic true"):
        runs_on_host(make(HERE + name), HERE + name)
    assert len(jax.tree.leaves(env)) == 1  # an object, or the array inside


@pytest.mark.slow
def test_what_is_said_about_chance_is_kept_and_reaches_workers(tmp_path):
    run = save_rl.train(
        HERE + "Unsaid", stochastic=True, steps=16, lanes=4, batch=4, replay=64, min_replay=8,
        replay_ratio=1, budget=2, workers=1, out=tmp_path / "run", progress=False,
    )  # fmt: skip
    assert '"stochastic": "true"' in (run.path / "config.json").read_text()
    results = save_rl.evaluate(run.path, budgets=(0, 2), episodes=3, trust=True, workers=0)
    assert len(results) == 2
    policy = save_rl.load(run.path, trust=True)
    assert is_stochastic(policy.simulator)
    assert policy.act(policy.simulator.reset(0), 2).visits.sum() == 2


def test_what_cannot_be_is_refused_in_a_sentence():
    with pytest.raises(InputError, match="stochastic is True, but step takes 2 arguments; with"):
        runs_on_host(NoSeed(), "NoSeed")
    with pytest.raises(InputError, match="--stochastic: false is not possible here"):
        make(HERE + "Slippery", stochastic=False)
    with pytest.raises(InputError, match="--stochastic: true is not possible here"):
        make("tests.search.table_simulators:maze", stochastic=True)
    with pytest.raises(InputError, match="--stochastic: maybe"):
        make(HERE + "Slippery", stochastic="maybe")


def test_players_and_gymnasium_give_steps_their_luck():
    episodes = [play(Slippery(), make_player("uct", Slippery(), 20), seed) for seed in range(6)]
    assert sum(episode.total for episode in episodes) >= 4
    again = play(Slippery(), make_player("uct", Slippery(), 20), 3)
    assert again.states == episodes[3].states
    env = SimulatorEnv(Slippery())
    first, _ = env.reset(seed=1)
    lengths = set()
    for _ in range(8):
        env.reset()
        length, over = 0, False
        while not over:
            seen, _, terminated, truncated, _ = env.step(np.int64(1))
            over, length = terminated or truncated, length + 1
        lengths.add(length)
    assert first.shape == seen.shape == (CELLS,)
    assert len(lengths) > 1


def test_a_search_from_python_averages_over_luck():
    """One step before the goal, right arrives with 3/4, and almost always soon after."""
    result = search.uct(Slippery(), [Place(CELLS - 2, 0)], budget=400, c=0.5, discount=0.9)
    assert result.q_values[0, 1] == pytest.approx(0.9, abs=0.12)
    assert result.visits[0, 1] > result.visits[0, 0]
    assert isinstance(make(HERE + "Unsaid"), Unsaid)
