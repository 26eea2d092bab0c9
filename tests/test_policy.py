"""A policy acts as its run does in tests, and comes back from one small file."""

import json
import zipfile
from dataclasses import asdict

import jax
import numpy as np
import pytest

import save_rl
from save_rl.errors import InputError, RunError
from save_rl.evaluation import trained_player
from save_rl.networks import graph
from save_rl.players import play
from save_rl.policy import Policy, _environment, _template
from save_rl.training.device.trainer import DeviceTrainer
from save_rl.training.run import checkpoint
from save_rl.training.run.policy_file import Header
from save_rl.training.settings import TrainSettings

# One worker runs them all, so that the run is made once.
pytestmark = pytest.mark.xdist_group("policy")
GOAL, LEFT, RIGHT, JUMP = 5, 0, 1, 2


class Walk:
    """A corridor of six cells; the last one pays 1. A jump of two cells is allowed on even ones."""

    num_actions = 3

    def reset(self, seed):
        return (0, 0)  # cell, steps

    def step(self, state, action):
        cell, steps = state
        cell = min(max(cell + (-1, 1, 2)[action], 0), GOAL)
        return (cell, steps + 1), float(cell == GOAL), cell == GOAL, steps + 1 >= 12

    def observe(self, state):
        return np.eye(GOAL + 1, dtype=np.float32)[state[0]]

    def action_mask(self, state):
        return np.array([True, True, state[0] % 2 == 0])


class Shaky(Walk):
    def step(self, state, action):
        raise ArithmeticError("no such cell")


class Wide(Walk):
    num_actions = 4

    def action_mask(self, state):
        return np.ones(4, bool)


class Blind(Walk):
    def observe(self, state):
        return np.zeros(2, np.float32)


class Numbered(Walk):
    """The same, with the number of the cell as its observation."""

    num_states = GOAL + 1

    def observe(self, state):
        return np.int32(state[0])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return save_rl.train(
        Walk, seed=(3, 5), steps=400, lanes=8, batch=16, budget=3, c=0.5, reward_scale=1.0,
        workers=0,
        out=tmp_path_factory.mktemp("policy") / "run", progress=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def policy(run):
    return save_rl.load(run.path)


@pytest.fixture(scope="module")
def weights(run):
    """The arrays of the run's last checkpoint, as `numpy.load` reads them."""
    newest = max(path for path in (run.path / "checkpoints").iterdir())
    with np.load(newest / "arrays.npz", allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def forward(weights, index, seen):
    """Qθ of an MLP of the paper (B.3), written out: two layers, then three; ReLU between them."""
    x = np.asarray(seen, np.float64)
    layers = [f"torso.layers[{i}]" for i in (0, 1)] + [f"head.layers[{i}]" for i in (0, 1, 2)]
    for number, layer in enumerate(layers):
        weight, bias = (weights[f".learner.params.{layer}.{w}"][index] for w in ("weight", "bias"))
        x = x @ weight + bias
        x = np.maximum(x, 0) if number < 4 else x
    return x


def untrained(sim, agent="save", **settings):
    """A policy with fresh parameters, which shares everything with a trained one but these."""
    full = TrainSettings(env="tests.test_policy:Walk", agent=agent, **settings)
    like, interface = _environment(full, sim)
    from save_rl.training.host.learner import make_learning

    params = make_learning(full, like).initial(jax.random.PRNGKey(2)).params
    device = jax.devices("cpu")[0]
    return Policy(Header(full, 0, interface), params, like, device=device, simulator=sim)


STATES = [(0, 0), (3, 2), (4, 2), (2, 5)]


@pytest.mark.parametrize("seed", [3, 5])
def test_without_a_budget_it_acts_on_the_values_of_its_network(run, weights, seed):
    policy, index = save_rl.load(run.path, seed=seed), (3, 5).index(seed)
    sim = Walk()
    for state in STATES:
        expected = forward(weights, index, sim.observe(state))
        expected[~sim.action_mask(state)] = -np.inf
        found = policy.act(sim.observe(state), 0, mask=sim.action_mask(state))
        np.testing.assert_allclose(found.q_values, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(found.prior, found.q_values)
        assert found.action == expected.argmax()
        assert not found.explored.any()
        assert found.tree is None
        again = policy.act(state, 0, simulator=sim)
        np.testing.assert_array_equal(again.q_values, found.q_values)


def test_with_a_budget_it_finds_what_saves_search_finds(policy, weights):
    sim = policy.simulator
    found = policy.act_batch(STATES, 6, c=0.7, seed=4)
    expected = save_rl.search.save(
        sim, list(STATES), lambda seen: forward(weights, 0, seen), budget=6, c=0.7, seed=4,
        discount=policy.settings.discount,
    )  # fmt: skip
    np.testing.assert_array_equal(found.visits, expected.visits)
    np.testing.assert_allclose(found.q_values, expected.q_values, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found.explored, expected.visits > 0)
    best = np.where(found.explored, found.q_values, -np.inf).argmax(1)
    np.testing.assert_array_equal(found.action, best)
    assert found.visits.sum(1).tolist() == [6] * 4


def test_alone_and_in_a_batch_it_decides_alike(policy):
    """Lanes differ in their ties, so a batch of one is compared, and a batch of several for what
    does not depend on ties: the number of simulations, the prior and the mask."""
    for state in STATES:
        one, batch = policy.act(state, 5, seed=9), policy.act_batch([state], 5, seed=9)
        assert one.action == batch.action[0]
        np.testing.assert_array_equal(one.q_values, batch.q_values[0])
    several = policy.act_batch(STATES, 5)
    for row, state in enumerate(STATES):
        np.testing.assert_allclose(several.prior[row], policy.act(state, 5).prior, rtol=1e-5)


def test_the_same_seed_gives_the_same_decision(policy):
    for state in STATES:
        one, other = policy.act(state, 5, seed=7), policy.act(state, 5, seed=7)
        assert one.action == other.action
        np.testing.assert_array_equal(one.visits, other.visits)


def test_a_decision_stays_as_it_is_when_the_next_is_made(policy):
    one = policy.act(STATES[0], 5)
    kept = one.q_values.copy(), one.tree.svg()
    policy.act(STATES[2], 5)
    np.testing.assert_array_equal(one.q_values, kept[0])
    assert one.tree.svg() == kept[1]


def test_the_defaults_are_those_of_the_run(policy):
    usual, given = policy.act(STATES[0]), policy.act(STATES[0], 3, c=0.5)
    np.testing.assert_array_equal(usual.q_values, given.q_values)
    assert usual.visits.sum() == 3
    assert repr(policy) == "Policy('save' on 'tests.test_policy:Walk', seed 3, budget 3)"


@pytest.mark.parametrize("budget", [0, 4])
def test_it_plays_as_evaluate_does(run, budget):
    """From its one start a policy without ties takes one path."""
    (tested,) = save_rl.evaluate(run.path, (budget,), 2, workers=0)
    for index, seed in enumerate((3, 5)):
        policy = save_rl.load(run.path, seed=seed)
        episode = play(policy.simulator, policy.player(budget), 0)
        assert (episode.total, len(episode.moves)) == (
            tested.returns[index, 0],
            tested.steps[index, 0],
        )
    first = play(Walk(), trained_player(run.path, Walk(), budget), 0)
    policy = save_rl.load(run.path)
    other = play(policy.simulator, policy.player(budget), 0)
    assert [move.state for move in first.moves] == [move.state for move in other.moves]
    values, found = first.moves[0].values, policy.act((0, 0), budget, simulator=Walk())
    assert values is not None
    np.testing.assert_allclose(values.prior, found.prior)
    assert values.explored.any() == (budget > 0)


def test_puct_acts_on_visits():
    sim = Walk()
    policy = untrained(sim, "puct")
    found = policy.act(STATES[2], 8, seed=1)

    def policy_value(seen):
        policies, values = policy._evaluate(seen, np.zeros((len(seen), 0), bool))
        return np.log(policies), values

    expected = save_rl.search.puct(sim, [STATES[2]], policy_value, budget=8, seed=1)
    np.testing.assert_array_equal(found.visits, expected.visits[0])
    assert found.visits[found.action] == found.visits.max()
    assert found.prior[found.prior > 0].sum() == pytest.approx(1, abs=1e-5)


def test_a_search_that_needs_jax_is_refused_in_a_sentence():
    policy = untrained(Walk(), "gumbel")
    with pytest.raises(InputError) as error:
        policy.act(STATES[0], 8)
    assert str(error.value) == (
        "budget: 8 is not possible; it must be 0 for 'gumbel', which searches in JAX alone, as "
        "save-rl evaluate does."
    )
    for budget in (0, None):  # without a budget of its own it does not search
        found = policy.act(STATES[0], budget, simulator=Walk())
        assert found.action == found.prior.argmax()
        assert not found.explored.any()


class Web(Walk):
    """The corridor as a graph: a node per cell; actions are edges. Cells to come are padding."""

    num_actions = 30  # from each of six nodes to each other one

    def observe(self, state):
        nodes = np.zeros((6, 3), np.float32)
        nodes[:, 0], nodes[state[0], 1] = 1, 1
        return {"nodes": nodes, "node_mask": np.arange(6) <= state[0] + 1}

    def step(self, state, action):
        return super().step(state, action % 3)

    def action_mask(self, state):
        here = np.arange(6) <= state[0] + 1
        allowed = [a and b for i, a in enumerate(here) for j, b in enumerate(here) if i != j]
        return np.array(allowed)


def test_a_graph_network_acts_whatever_the_padding(monkeypatch):
    """Batches are cut to the nodes that are there, which changes nothing."""
    monkeypatch.setattr(graph, "STEPS", 2)  # two thirds of the network, and of its compilation
    from save_rl.training.host.learner import make_learning

    policy = untrained(Web())
    learning = make_learning(policy.settings, Web())
    network = jax.jit(lambda seen: learning.network(policy._params)(seen)[0])
    for state in [(0, 0), (4, 3)]:
        seen, mask = Web().observe(state), Web().action_mask(state)
        whole = {name: jax.numpy.asarray(x)[None] for name, x in seen.items()}
        expected = np.where(mask, np.asarray(network(whole))[0], -np.inf)
        found = policy.act(seen, 0, mask=mask)
        np.testing.assert_allclose(found.q_values, expected, rtol=1e-4, atol=1e-5)
    assert policy.act((4, 3), 1).visits.sum() == 1


def test_a_table_acts_on_the_row_of_its_state():
    policy = untrained(Numbered(), network="table")
    policy._params = policy._params.__class__.__new__(policy._params.__class__)
    table = np.arange(18, dtype=np.float32).reshape(6, 3)
    object.__setattr__(policy._params, "head", jax.numpy.asarray(table))
    object.__setattr__(policy._params, "value", None)
    for cell in range(6):
        found = policy.act(np.int32(cell), 0, mask=[True, True, False])
        np.testing.assert_array_equal(found.q_values, [*table[cell, :2], -np.inf])


def test_a_run_in_jax_acts_through_its_simulator(tmp_path):
    """A run before its first step, which is as much a run and needs no compiler."""
    settings = TrainSettings(env="tightrope", lanes=4, batch=4)
    (tmp_path / "config.json").write_text(json.dumps({"settings": asdict(settings)}))
    trainer = DeviceTrainer(settings, [save_rl.make("tightrope")])
    begun = trainer.begin()
    checkpoint.save(tmp_path / "checkpoints", 1, begun, {"run_id": ""})
    policy = save_rl.load(tmp_path)
    state = policy.simulator.reset(0)
    head, _ = trainer.network(jax.tree.map(lambda x: x[0], trainer.params(begun)))(
        jax.numpy.asarray(policy.simulator.observe(state))[None]
    )
    found = policy.act(policy.simulator.observe(state), 0)
    np.testing.assert_allclose(found.q_values, head[0], rtol=1e-4, atol=1e-5)
    searched = policy.act(state, 5)
    assert searched.visits.sum() == 5
    assert searched.explored[searched.action]


def test_the_best_parameters_are_used_where_the_run_kept_them(run, tmp_path):
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(run.path, folder)
    params = jax.tree.map(lambda x: np.asarray(x) * 0 + 1, run.trainer.params(run.state))
    run_id = json.loads((folder / "config.json").read_text())["run_id"]
    checkpoint.save(folder / "best", 1, params, {"run_id": run_id})
    seen, mask = Walk().observe((0, 0)), [True] * 3
    best, last = (save_rl.load(folder, last=x).act(seen, 0, mask=mask) for x in (False, True))
    usual = save_rl.load(run.path).act(seen, 0, mask=mask)
    assert len(set(best.q_values.tolist())) == 1
    np.testing.assert_array_equal(last.q_values, usual.q_values)


@pytest.fixture(scope="module")
def saved(policy, tmp_path_factory):
    return policy.save(tmp_path_factory.mktemp("policies") / "policy.npz")


def test_a_file_decides_as_its_run_does(policy, saved):
    copy = save_rl.load(saved)
    assert (copy.settings, copy.seed, copy.interface) == (
        policy.settings,
        policy.seed,
        policy.interface,
    )
    for state in STATES:
        one, other = policy.act(state, 4), copy.act(state, 4)
        assert one.action == other.action
        np.testing.assert_array_equal(one.q_values, other.q_values)


def test_a_file_is_small_and_plain(saved, policy):
    with np.load(saved, allow_pickle=False) as arrays:
        said = json.loads(arrays["policy"].tobytes())
        count = sum(arrays[name].size for name in arrays.files if name != "policy")
    assert said["format"] == 1
    assert said["settings"] == json.loads(json.dumps(asdict(policy.settings)))
    template = _template(policy.settings, Walk(), policy.interface)
    assert count == sum(x.size for x in jax.tree.leaves(template))
    assert saved.stat().st_size < 4 * count + 10_000


def test_a_file_needs_no_simulator_without_a_budget(saved, policy):
    copy = save_rl.load(saved)
    seen = Walk().observe((0, 0))
    assert copy.act(seen, 0, mask=[1, 1, 1]).action == policy.act(seen, 0, mask=[1, 1, 1]).action
    assert copy._simulator is None


def rewritten(saved, target, change):
    """A copy of a policy file whose header is changed."""
    with np.load(saved, allow_pickle=False) as arrays:
        held = {name: arrays[name] for name in arrays.files}
    said = json.loads(held["policy"].tobytes())
    held["policy"] = np.frombuffer(json.dumps(change(said)).encode(), np.uint8)
    with target.open("wb") as file:
        checkpoint.write_arrays(file, held)
    return target


def test_a_file_of_another_version_is_refused(saved, tmp_path):
    other = rewritten(saved, tmp_path / "new.npz", lambda said: {**said, "format": 7})
    with pytest.raises(InputError) as refused:
        save_rl.load(other)
    assert str(refused.value) == (
        f"load: '{other}' has format 7, and this version of save_rl reads 1; save it again from "
        "its run."
    )


def test_a_changed_setting_is_noticed(saved, tmp_path):
    other = rewritten(saved, tmp_path / "other.npz", lambda said: {**said, "seed": 8})
    with pytest.raises(
        InputError, match=r"is damaged, or no policy of save_rl \(its checksum does"
    ):
        save_rl.load(other)


def test_every_damaged_byte_is_noticed_or_harmless(saved, policy, tmp_path):
    """A flipped bit either makes the file unreadable or leaves the policy as it was."""
    data, seen = saved.read_bytes(), Walk().observe((0, 0))
    expected = policy.act(seen, 0, mask=[1, 1, 1]).q_values
    path, refused = tmp_path / "policy.npz", 0
    for place in np.random.default_rng(0).integers(len(data), size=60):
        broken = bytearray(data)
        broken[place] ^= 16
        path.write_bytes(broken)
        try:
            copy = save_rl.load(path)
        except InputError:
            refused += 1
        else:
            found = copy.act(seen, 0, mask=[1, 1, 1]).q_values
            np.testing.assert_array_equal(found, expected)
    assert refused > 40


@pytest.mark.parametrize("length", [0, 10, 5000])
def test_a_file_that_was_cut_is_refused(saved, tmp_path, length):
    (tmp_path / "cut.npz").write_bytes(saved.read_bytes()[:length])
    with pytest.raises(InputError, match="is damaged, or no policy of save_rl"):
        save_rl.load(tmp_path / "cut.npz")


def test_an_archive_of_something_else_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("notes.txt", "hello")
    with pytest.raises(InputError, match="is damaged, or no policy of save_rl"):
        save_rl.load(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("sim", "said"),
    [
        (Wide(), "simulator: one with 4 actions is not possible; it must be one with 3, like that"),
        (Blind(), "simulator: one with observations [2] is not possible; it must be one with [6]"),
        (object(), "simulator: it is not a Python simulator ("),
    ],
)
def test_another_environment_is_refused(saved, policy, sim, said):
    for attempt in (
        lambda: save_rl.load(saved, simulator=sim),
        lambda: policy.act((0, 0), 2, simulator=sim),
        lambda: policy.act((0, 0), 0, simulator=sim),
    ):
        with pytest.raises(InputError) as refused:
            attempt()
        assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda p: p.act((0, 0), -1), "budget: -1 is not possible; it must be 0 or more."),
        (lambda p: p.act((0, 0), 2, c=-1.0), "c: -1.0 is not possible; it must be 0 or more."),
        (lambda p: p.act_batch([], 2), "states: an empty list is not possible; it must be at"),
        (lambda p: p.act(np.zeros(6), 0), "mask: this policy's environment forbids actions; give"),
        (lambda p: p.act(np.zeros(6), 0, mask=[1, 1]), "mask: int64 [1, 2] is not possible; it"),
        (lambda p: p.act(np.zeros(6), 0, mask=[0, 0, 0]), "mask: int64 [1, 3] is not possible; it"),
        (lambda p: p.act((0, 0), 2, mask=[1, 1, 1]), "mask: an array is not possible; it must be"),
        (
            lambda p: p.act(np.zeros(4), 0, mask=[1, 1, 1]),
            "state: float64 [4] as an observation is not possible; it must be float32 [6]; with a",
        ),
        (
            lambda p: p.act(np.full(6, np.nan), 0, mask=[1, 1, 1]),
            "state: an observation with NaN is not possible; it must be finite.",
        ),
        (lambda p: p.save("policy.pkl"), "save: 'policy.pkl' is not possible; it must be a file"),
    ],
)
def test_what_is_impossible_is_said_in_a_sentence(policy, call, said):
    with pytest.raises(InputError) as refused:
        call(policy)
    assert str(refused.value).startswith(said)


def test_a_simulator_that_fails_is_shown(policy):
    with pytest.raises(RunError, match=r"failed in a search with:\n(.|\n)*no such cell"):
        policy.act((0, 0), 2, simulator=Shaky())
    assert policy.act((0, 0), 2).visits.sum() == 2


def test_what_can_t_be_loaded(run, saved, tmp_path):
    for path, options, said in (
        (tmp_path / "none", {}, "load: '{}' holds no run (config.json is missing)."),
        (tmp_path / "none.npz", {}, "load: there is no file '{}'."),
        (run.path, {"seed": 4}, "seed: 4 is not possible; it must be one of the run's: 3, 5."),
        (saved, {"last": True}, "last: a value is not possible; it must be left out with '{}'"),
    ):
        with pytest.raises(InputError) as refused:
            save_rl.load(path, **options)
        assert str(refused.value).startswith(said.format(path))


def test_a_simulator_that_does_not_fit_a_run_is_named(run, capsys):
    with pytest.raises(InputError, match=f"^simulator: it does not fit the run in '{run.path}': "):
        save_rl.load(run.path, simulator=Wide())


def test_code_that_a_file_names_needs_trust(saved, tmp_path, monkeypatch):
    monkeypatch.setattr("save_rl.envs._made", set())
    copy = save_rl.load(saved)
    with pytest.raises(InputError, match=r"load: the run in 'this policy' would import and run"):
        copy.act((0, 0), 2)
    assert save_rl.load(saved, trust=True).act((0, 0), 2).visits.sum() == 2
    monkeypatch.setattr("save_rl.envs._made", set())
    assert save_rl.load(saved, simulator=Walk()).act((0, 0), 2).visits.sum() == 2


def test_an_agent_with_a_memory_is_refused_in_a_sentence(tmp_path):
    settings = TrainSettings(env="atari/pong", agent="r2d2-save")
    (tmp_path / "config.json").write_text(json.dumps({"settings": asdict(settings)}))
    with pytest.raises(InputError) as refused:
        save_rl.load(tmp_path)
    assert str(refused.value) == (
        f"load: '{tmp_path}' is of 'r2d2-save', which remembers an episode and can't act on a "
        "single state; save-rl watch and save-rl evaluate play it."
    )
