"""What the studio records of a decision is what the run's policy decides."""

import hashlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import save_rl
from save_rl.agents import get_agent
from save_rl.envs import make_simulator
from save_rl.errors import InputError
from save_rl.search.nodes import Node
from save_rl.search.rules import Rule
from save_rl.studio.acting import Acting, search_seed
from save_rl.studio.places import Places, Step
from save_rl.studio.records import ShownDecision, decision_record, no_picture, picture
from save_rl.studio.watched import SimulatorFailed, Watched
from save_rl.studio.wishes import choices, wanted_episode
from tests.studio.made_runs import make_run, write_checkpoint

pytestmark = pytest.mark.xdist_group("studio-acting")
BUDGET, C = 40, 0.01


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studio") / "run"
    make_run(folder, env_options={"terminal": 20}, discount=0.9)
    return folder


@pytest.fixture(scope="module")
def acting(run):
    return Acting(run, False, lambda: None)


def decide(acting, state, **options):
    return acting.decide(
        [state],
        **{"seed": 3, "budget": BUDGET, "c": C, "best": False, "of": 0} | options,
    )


@pytest.fixture(scope="module")
def record(acting):
    return decide(acting, acting.simulator.reset(3))[0]


def test_a_record_has_the_values_of_the_search(run, acting, record):
    policy = save_rl.load(run)
    sim = make_simulator("tightrope", 0, terminal=20)
    state = sim.reset(3)

    def q_function(seen):
        return np.stack([policy.act(x, 0).prior for x in seen])

    found = save_rl.search.save(
        sim, [state], q_function, budget=BUDGET, c=C, discount=0.9, seed=search_seed(3, 0)
    )
    prior = q_function([sim.observe(state)])[0]
    assert record["tried"] == found.explored[0].sum()
    for row in record["actions"]:
        a = row["action"]
        assert row["visits"] == found.visits[0, a]
        assert row["prior"] == pytest.approx(prior[a], abs=1e-5)
        if row["visits"]:
            assert row["value"] == pytest.approx(found.q_values[0, a], abs=1e-5)
    best = np.where(found.explored[0], found.q_values[0], -np.inf).argmax()
    assert record["chosen"] == best


def test_the_best_actions_are_shown(run, acting, record):
    found = save_rl.load(run).act(
        acting.simulator.reset(3), BUDGET, c=C, seed=search_seed(3, 0)
    )  # fmt: skip
    tried = sorted(np.flatnonzero(found.visits), key=lambda a: -found.q_values[a])
    shown = [row["action"] for row in record["actions"]]
    assert len(shown) == 12
    assert shown[: len(tried)] == tried[:12]
    left = sorted(np.flatnonzero(found.visits == 0), key=lambda a: -found.prior[a])
    assert shown[len(tried) :] == left[: 12 - len(tried)][: len(shown[len(tried) :])]


def test_visits_of_the_tree_sum_up(record):
    tree = record["tree"]
    below = [0] * len(tree)
    for parent, _, visits, *_ in tree[1:]:
        below[parent] += visits
    assert tree[0][2] == below[0] == BUDGET
    for node, (_, _, visits, _, _, _, terminal) in enumerate(tree[1:], 1):
        assert visits == (visits if terminal else 1 + below[node])
        assert not (terminal and below[node])
    assert all(parent < node for node, (parent, *_) in enumerate(tree[1:], 1))


def test_a_path_of_the_tree_replays_its_rewards_and_ends(acting, record):
    places = Places(acting.simulator)
    reached = [places.start(3, None)]
    for parent, action, _, _, reward, _, terminal in record["tree"][1:]:
        reached.append(places.step(reached[parent], Step(action)))
        assert reached[-1].reward == reward
        assert bool(reached[-1].over) == bool(terminal)
    assert len({place.state.position for place in reached}) > 2


def test_luck_belongs_to_the_nodes_in_the_order_of_their_numbers():
    nan = float("nan")
    nodes = [
        Node(0, -1, -1, 4, nan, 0.0, nan, False), Node(4, 0, 1, 1, 0.5, 0.0, 0.1, False),
        Node(1, 0, 0, 3, 0.5, 0.0, 0.1, False), Node(2, 1, 0, 2, 0.5, 0.0, 0.1, True),
    ]  # fmt: skip
    found = ShownDecision(0, np.zeros(2), np.zeros(2), np.array([3, 1]), nodes, luck=(11, 22, 44))
    told = decision_record(SimpleNamespace(), None, found)
    actions = {(parent, action): luck for (parent, action, *_), luck in zip(
        told["tree"], told["luck"], strict=True
    )}  # fmt: skip
    assert actions == {(-1, -1): None, (0, 0): 11, (1, 0): 22, (0, 1): 44}
    assert decision_record(SimpleNamespace(), None, found._replace(luck=(None,)))["luck"] is None


def test_the_same_state_gives_the_same_decision(acting, record):
    state = acting.simulator.reset(3)
    assert decide(acting, state)[0] == record
    assert decide(acting, state, budget=3)[0] != record
    assert decide(acting, state)[0] == record


def test_without_a_budget_there_is_no_search(acting):
    record, step = decide(acting, acting.simulator.reset(3), budget=0)
    assert record["tried"] == 0
    assert len(record["tree"]) == 1
    assert step.action == max(record["actions"], key=lambda row: row["prior"])["action"]


def test_best_and_last_parameters_are_both_there_and_new_ones_are_read(tmp_path):
    settings = make_run(tmp_path / "run", luck=1)
    write_checkpoint(tmp_path / "run", settings, luck=2, best=True)
    assert choices(tmp_path / "run", "run", False)["checkpoints"] == ["best", "last"]
    acting = Acting(tmp_path / "run", False, lambda: None)
    state = acting.simulator.reset(0)

    def priors(**options):
        rows = decide(acting, state, budget=0, **options)[0]["actions"]
        return {row["action"]: row["prior"] for row in rows}

    last, best = priors(), priors(best=True)
    assert last != best
    write_checkpoint(tmp_path / "run", settings, luck=2, number=2)
    assert priors() == best


def test_nothing_is_written_to_a_run(run, acting, record):
    def content():
        return {
            path: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
            for path in run.rglob("*")
            if path.is_file()
        }

    before = content()
    Acting(run, False, lambda: None)
    decide(acting, acting.simulator.reset(0))
    wanted_episode(run, {}, False)
    assert content() == before


@pytest.mark.parametrize("env", ["gym/CartPole-v1", "gym/FrozenLake-v1"])
def test_a_drawing_without_pygame_says_how_to_get_it(monkeypatch, env):
    monkeypatch.setitem(sys.modules, "pygame", None)  # as if it were not installed
    sim = Watched(make_simulator(env, 0, render_mode="rgb_array"), lambda: None)
    with pytest.raises(SimulatorFailed) as failed:
        picture(sim, sim.reset(0))
    assert no_picture(failed.value) == (
        "There is no picture: pygame is not installed; get it with: pip install pygame"
    )


def test_foreign_code_needs_permission(tmp_path):
    make_run(tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"tightrope"', '"somebodys.module:factory"'))
    found = choices(tmp_path / "run", "run", False)
    assert "import and run code of 'somebodys.module:factory'" in found["problem"]
    assert "save-rl studio --trust" in found["problem"]
    with pytest.raises(InputError, match="--trust"):
        wanted_episode(tmp_path / "run", {}, False)
    assert wanted_episode(tmp_path / "run", {}, True)["budget"] == 6


def test_a_run_without_a_checkpoint_says_so(tmp_path):
    make_run(tmp_path / "run")
    for part in sorted((tmp_path / "run" / "checkpoints").rglob("*"), reverse=True):
        part.rmdir() if part.is_dir() else part.unlink()
    found = choices(tmp_path / "run", "run", False)
    assert found["problem"] == "There is no checkpoint yet, so there is nothing to play."


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"checkpoint": "first"}, "checkpoint: 'first' is not possible; it must be last."),
        ({"seed": -1}, "seed: -1 is not possible"),
        ({"seed": 1.5}, "seed: 1.5 is not possible"),
        ({"budget": True}, "budget: True is not possible"),
        ({"budget": 10**6}, "from 0 to 100000"),
        ({"c": float("nan")}, "c: nan is not possible"),
        ({"c": "2"}, "c: '2' is not possible"),
        ({"level": "x"}, "level: 'x' is not possible"),
        ({"most": 0}, "most: 0 is not possible"),
        ({"of": 7}, "seed of the run: 7 is not possible; it must be one of [0]."),
    ],
)
def test_impossible_requests_are_refused(run, asked, words):
    with pytest.raises(InputError) as error:
        wanted_episode(run, asked, False)
    assert words in str(error.value)


def test_damaged_settings_are_a_problem_in_words(tmp_path):
    make_run(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text('{"settings": ')
    assert choices(tmp_path / "run", "run", False) == {
        "problem": "config.json is damaged or half-written."
    }


def test_the_rule_of_the_agent_is_used(tmp_path):
    make_run(tmp_path / "run", agent="save-puct")
    acting = Acting(tmp_path / "run", False, lambda: None)
    record, _ = decide(acting, acting.simulator.reset(0), budget=8)
    assert get_agent("save-puct").test_search == Rule.PUCT
    total = sum(row["prior"] for row in record["actions"])
    assert 0 < total <= 1  # a policy
    roots = {action: value for parent, action, _, value, *_ in record["tree"][1:] if parent == 0}
    for row in record["actions"]:
        if row["visits"]:
            assert roots[row["action"]] == row["value"]
