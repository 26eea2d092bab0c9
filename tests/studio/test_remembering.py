"""A recurrent agent decides in the studio as it does in tests, from any state of an episode."""

import jax
import numpy as np
import pytest

from save_rl.learning.r2d2_settings import NetworkSettings, R2D2Settings, SequenceSettings
from save_rl.studio.acting import Acting, search_seed
from save_rl.training.r2d2.network import Networks
from save_rl.training.r2d2.trainer import R2D2Trainer
from save_rl.training.run import checkpoint
from save_rl.training.run.run_directory import BEST, RunDirectory
from save_rl.training.settings import TrainSettings
from tests.training.pictures import ACTIONS, Pictures

pytestmark = pytest.mark.xdist_group("studio-remembering")
BUDGET, C, SEED = 3, 0.5, 2
ASKED = {"seed": SEED, "budget": BUDGET, "c": C, "best": True, "of": 0}


@pytest.fixture(
    scope="module", params=["transformed", pytest.param("mixed", marks=pytest.mark.slow)]
)
def space(request):
    return request.param


@pytest.fixture(scope="module")
def settings(space):
    network = NetworkSettings(profile="small", search_space=space)
    chosen = R2D2Settings(network=network, sequences=SequenceSettings(gamma=0.9))
    return TrainSettings(
        "tests.training.pictures:Pictures", "r2d2-save", budget=BUDGET, c=C, r2d2=chosen
    )


@pytest.fixture(scope="module")
def params(settings):
    networks = Networks(
        (1.0, 1.0), settings.r2d2.network, settings.r2d2.sequences, ACTIONS, {}
    )  # fmt: skip
    shapes = jax.eval_shape(networks.initial, jax.random.PRNGKey(0)).params
    random = np.random.default_rng(1)
    return jax.tree.map(lambda x: random.normal(0, 0.1, x.shape).astype(x.dtype), shapes)


@pytest.fixture(scope="module")
def acting(settings, params, tmp_path_factory):
    folder = tmp_path_factory.mktemp("studio") / "run"
    run = RunDirectory.create(folder, settings, "cpu")
    run.close()
    checkpoint.save(folder / BEST, 1, params, {"run_id": run.run_id})
    return Acting(folder, True, lambda: None)


@pytest.fixture(scope="module")
def episode(settings, params):
    """States and moves of the agent as tests play it, with the seeds of the studio."""
    trainer = R2D2Trainer(settings, [Pictures()], train=False, test_lanes=1)
    trainer.close()
    sim = Pictures()
    player = trainer.player(params, sim, BUDGET)
    states, moves = [sim.reset(SEED)], []
    for number in range(4):
        rng = np.random.default_rng(search_seed(SEED, number))
        moves.append(player(states[-1], rng))
        states.append(moves[-1].state)
        assert not moves[-1].over
    return states, moves


def check(record, values):
    assert record["chosen"] == values.action
    for row in record["actions"]:
        assert row["prior"] == pytest.approx(values.prior[row["action"]], rel=1e-4, abs=1e-5)
        assert (row["visits"] > 0) == values.explored[row["action"]]
        if row["visits"]:
            assert row["value"] == pytest.approx(values.searched[row["action"]], rel=1e-4, abs=1e-5)
    roots = {action: value for parent, action, _, value, *_ in record["tree"][1:] if parent == 0}
    assert roots == {r["action"]: r["value"] for r in record["actions"] if r["visits"]}
    assert record["tree"][0][2] == BUDGET


def test_an_episode_is_that_of_a_test(acting, episode):
    states, moves = episode
    for number, move in enumerate(moves):
        record, step = acting.decide(states[: number + 1], **ASKED)
        check(record, move.values)
        assert step.action == move.values.action


def test_a_search_in_the_middle_remembers_the_beginning(acting, episode):
    states, moves = episode
    before = acting.decide(states[:1], **{**ASKED, "budget": 1})
    assert before[0]["tried"] == 1
    for number in (3, 1):
        check(acting.decide(states[: number + 1], **ASKED)[0], moves[number].values)


def test_without_a_budget_it_acts_on_its_network(acting, episode):
    states, moves = episode
    record, step = acting.decide(states[:3], **{**ASKED, "budget": 0})
    assert len(record["tree"]) == 1
    assert step.action == moves[2].values.prior.argmax()
