"""The simulator against the literal reference, over many random actions and all levels."""

import multiprocessing
import pickle
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from save_rl.envs.construction import TASKS, Construction, Placement, Scene, State, graph
from save_rl.envs.construction.generators import generate
from save_rl.envs.construction.tasks import level_probabilities
from save_rl.errors import InputError
from tests.envs.construction import reference

LEVELS = {
    name: [*range(task.max_difficulty["released"] + 1), *task.generalization]
    for name, task in TASKS.items()
}
ACTIONS = 50  # of a walk


@pytest.fixture(scope="module")
def elsewhere():
    """Another process, started from scratch."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        yield pool


def replay(options, cases):
    """Step states given as bytes; the results as bytes."""
    sim = Construction(**options)
    results = []
    for data, action in cases:
        state, reward, terminated, _ = sim.step(State.from_bytes(data), action)
        results.append((state.to_bytes(), reward, terminated))
    return results


def draw_action(rng, sim, state):
    """Mostly valid actions; without a mask, some that are not."""
    if not sim.masked and rng.random() < 0.05:
        return int(rng.choice(np.flatnonzero(sim.action_mask(state))))
    edges = np.flatnonzero(graph.edge_mask(state, sim.max_nodes))
    return int(rng.choice(edges)) * 30 + int(rng.integers(30))


def check_step(sim, state, action, after, reward, terminated):
    """Reward, ending, poses and observation against the reference."""
    scene = state.scene
    edge, rest = divmod(action, 30)
    sender, receiver = divmod(edge, sim.max_nodes - 1)
    receiver += receiver >= sender
    valid = (sender, receiver) in reference.valid_edges(state)
    if not valid:
        assert not sim.masked
        assert (after, reward) == (state._replace(ending="invalid_edge"), 0.0)
        return
    assert np.isfinite(after.block_array).all()
    on_floor = after.block_array[np.abs(after.block_array[:, 2]) < 14.5]
    assert (np.abs(after.block_array[:, 2:4]) < 200).all()
    # A weld under load gives way a little, so a glued block may sink into what it is glued to.
    assert ((on_floor[:, 3] > -0.5) & (on_floor[:, 3] < 45)).all()
    x, y = reference.placement(state, sender, receiver, rest // 2)
    shape = sim.task.supply.shapes[sender]
    corners = reference.corners(shape.width, shape.height, shape.kind, x, y)
    spawned = reference.spawn_overlap(corners, reference.solids(state))
    if after.ending == "spawn_collision" and not spawned:
        assert reference.marble_blocked(after)
        spawned = True
    progress = reference.progress(after)
    before = reference.progress(state)
    expected, ending = reference.outcome(
        before, reference.sticky_cost(state, sim.sticky_penalty),
        progress, reference.sticky_cost(after, sim.sticky_penalty),
        spawn_collision=spawned, obstacle_hit=after.ending == "obstacle_hit",
        steps=state.steps + 1, max_steps=scene.max_steps, left=reference.blocks_left(after),
        best=reference.best_progress(scene), threshold=sim.task.threshold,
    )  # fmt: skip
    assert (after.ending, terminated) == (ending, ending != "")
    assert reward == pytest.approx(expected, abs=1e-6)
    if not spawned and ending != "obstacle_hit":
        assert after.progress == pytest.approx(progress, abs=1e-6)


def check_observation(sim, state):
    rows = np.array(reference.nodes(state))
    observation = sim.observe(state)
    nodes, mask = observation["nodes"], observation["node_mask"]
    assert nodes.shape == (sim.max_nodes, graph.feature_count(sim.name))
    assert mask.sum() == len(rows)
    assert mask[: len(rows)].all()
    np.testing.assert_allclose(nodes[: len(rows)], rows, atol=1e-6)
    assert not nodes[len(rows) :].any()
    senders, receivers = graph.edge_lists(sim.max_nodes)
    edges = sim.action_mask(state).reshape(-1, 30)
    assert (edges == edges[:, :1]).all()
    forbidden = [sim.forbids(state, 30 * edge) for edge in range(len(edges))]
    np.testing.assert_array_equal(forbidden, ~edges[:, 0])
    chosen = np.flatnonzero(edges[:, 0])
    pairs = set(zip(senders[chosen].tolist(), receivers[chosen].tolist(), strict=True))
    if sim.masked:
        assert pairs == reference.valid_edges(state)
    else:
        used = range(len(rows))
        assert pairs == {(u, v) for u in used for v in used if u != v}


def walks(number):
    """A test of so many walks in every task."""

    def of_walks(test):
        drawn = given(data=st.data(), seed=st.integers(0, 2**33), masked=st.booleans())(test)
        slow = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
        chosen = settings(max_examples=number, deadline=None, suppress_health_check=slow)(drawn)
        return pytest.mark.parametrize("task", TASKS)(chosen)

    return of_walks


@walks(8)
def test_random_actions(task, data, seed, masked, elsewhere):
    check_walk(task, data, seed, masked, elsewhere)


@pytest.mark.slow
@walks(200)  # 10,000 actions
def test_many_random_actions(task, data, seed, masked, elsewhere):
    check_walk(task, data, seed, masked, elsewhere)


def check_walk(task, data, seed, masked, elsewhere):
    """A walk that mostly goes back where an episode would end, so that structures grow."""
    level = data.draw(st.sampled_from(LEVELS[task]))
    preset = data.draw(st.sampled_from(["paper", "released"]))
    if level in (7, 8) and task == "marble-run":
        preset = "released"
    options = {
        "task": task, "difficulty": level, "curriculum_sample": False, "preset": preset,
        "masked": masked,
    }  # fmt: skip
    sim = Construction(**options)
    rng = np.random.default_rng(seed)
    state = sim.reset(seed)
    cases, results, first = [], [], None
    for _ in range(ACTIONS):
        action = draw_action(rng, sim, state)
        after, reward, terminated, truncated = sim.step(state, action)
        first = first or (state.to_bytes(), action, after, reward, terminated, truncated)
        assert not truncated
        check_step(sim, state, action, after, reward, terminated)
        assert State.from_bytes(after.to_bytes()) == after
        assert hash(State.from_bytes(after.to_bytes())) == hash(after)
        if rng.random() < 0.1:
            cases.append((state.to_bytes(), action))
            results.append((after.to_bytes(), reward, terminated))
            check_observation(sim, after)
            assert pickle.loads(pickle.dumps(after)) == after
        if not terminated:
            state = after
        elif rng.random() < 0.05:
            state = sim.reset(seed + 1)
    data_0, action_0, *result_0 = first  # the order of calls does not matter
    assert list(sim.step(State.from_bytes(data_0), action_0)) == result_0
    assert elsewhere.submit(replay, options, cases).result() == results


def test_threads_do_not_get_in_each_others_way():
    """Python may switch threads anywhere in a step."""
    sims = [Construction(task, curriculum_sample=False) for task in ("covering", "marble-run")]
    cases = []
    for sim in sims:
        rng = np.random.default_rng(1)
        for seed in range(25):
            state = sim.reset(seed)
            cases.append((sim, state, draw_action(rng, sim, state)))
    expected = [sim.step(state, action) for sim, state, action in cases]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda case: case[0].step(*case[1:]), cases * 30))
    finally:
        sys.setswitchinterval(interval)
    assert results == expected * 30


def test_scenes_are_those_of_a_new_generator_in_any_thread():
    """A thread's scenes are drawn from one generator, which is seeded each time."""
    hardest = {task: Construction(task, curriculum_sample=False) for task in TASKS}
    cases = [(task, seed) for seed in (*range(20), 2**32 - 1, 2**32, 2**40 + 7) for task in TASKS]
    expected = []
    for task, seed in cases:
        rng = np.random.RandomState(seed if seed < 2**32 else [seed % 2**32, seed >> 32])
        expected.append(generate(task, hardest[task].difficulty, "paper", rng))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            scenes = list(pool.map(lambda case: hardest[case[0]].reset(case[1]).scene, cases))
    finally:
        sys.setswitchinterval(interval)
    assert scenes == expected


SCENE = Scene("covering", "released", 0, 28, ((-1.75, 0.35, 2.17, 0.35),))


USED = np.array([3, 0, 5.0, 0.365, 0], np.float32).tobytes()


def test_levels_may_be_numbers_of_numpy():
    sim = Construction("covering", difficulty=np.int64(1), curriculum_sample=False)
    state = sim.reset(0)
    assert sim.max_nodes == Construction("covering").max_nodes
    assert State.from_bytes(state.to_bytes()) == state


def test_actions_are_numbered_both_ways():
    sim = Construction("connecting", masked=False)
    for action in range(0, sim.num_actions, 7):
        assert sim.action(*sim.decode(action)) == action


def test_published_discrete_episode():
    """A sticky small block beside the obstacle, then a medium one on top of it
    (docs/construction/index.md#checked-against-published-numbers)."""
    sim = Construction("covering", preset="released", difficulty=0)
    state = sim.reset(1234)
    np.testing.assert_allclose(state.scene.obstacles, SCENE.obstacles, atol=1e-9)
    state, reward, terminated, _ = sim.step(state, sim.action(0, 7, 0, sticky=1))
    assert (reward, terminated) == (-2.0, False)
    assert state.block_array[0][2] == pytest.approx(-3.304583, abs=1e-5)
    state, reward, terminated, _ = sim.step(state, sim.action(3, 9, 12, sticky=0))
    assert reward == pytest.approx(1.668845, abs=6e-4)
    assert not terminated


def test_published_continuous_episode():
    sim = Construction("covering", preset="released", difficulty=0)
    state, reward, _, _ = sim.drop(sim.start(SCENE), Placement(3, 1.0, 1.0, False))
    assert reward == 0.0
    state, reward, _, _ = sim.drop(state, Placement(3, 0.0, 2.0, True))
    assert reward == pytest.approx(-1.603601, abs=2e-4)


def test_published_collision():
    sim = Construction("covering", preset="released", difficulty=0, curriculum_sample=False)
    state = sim.reset(1234)
    expected = [(-2.03, 0.35, 2.03, 0.35), (2.59, 0.35, 1.12, 0.35)]
    np.testing.assert_allclose(state.scene.obstacles, expected, atol=1e-9)
    state, reward, terminated, _ = sim.drop(state, Placement(3, 0.0, 5.0, False))
    assert (state.ending, reward, terminated) == ("obstacle_hit", 0.0, True)


def test_covering_hard_uses_every_block_once():
    sim = Construction("covering-hard")
    state = sim.start(Scene("covering-hard", "paper", 0, 14, ((6.0, 2.0, 1.0, 0.35),)))
    for slot in range(7):
        assert not sim.action_mask(state).reshape(7, -1)[list(range(slot))].any()
        assert sim.action_mask(state).reshape(7, -1)[slot].any()
        base = 8 if slot == 0 else slot - 1  # the floor, then always the block placed last
        state, _, terminated, _ = sim.step(state, sim.action(slot, base, 7))
    assert (terminated, state.ending) == (True, "max_steps")
    assert not sim.action_mask(state).any()
    heights = state.block_array[:, 3]
    np.testing.assert_allclose(heights, 0.365 + 0.715 * np.arange(7), atol=0.02)


def test_the_last_step_still_pays():
    sim = Construction("silhouette")
    scene = Scene("silhouette", "paper", 0, 1, (), ((0.0, 0.364, 0.7, 0.7),))
    state, reward, terminated, _ = sim.step(sim.start(scene), sim.action(0, 7, 7))
    assert (reward, terminated, state.ending) == (1.0, True, "complete")
    state, reward, terminated, _ = sim.step(sim.start(scene), sim.action(3, 7, 7))
    assert (reward, terminated, state.ending) == (0.0, True, "max_steps")


def test_uncovering_costs_what_covering_paid():
    """A structure that had scored 1.5 and of which nothing is left above the obstacle."""
    sim = Construction("covering")
    state = State(SCENE, steps=3, progress=1.5)
    after, reward, _, _ = sim.drop(state, Placement(0, 4.0, 0.4, True))
    assert reward == pytest.approx(-1.5 - 2.0)
    assert (after.progress, after.ending) == (0.0, "")


@pytest.mark.parametrize(
    ("difficulty", "p", "expected"),
    [
        (1, 0.5, [0.333, 0.667]),
        (2, 0.5, [0.143, 0.286, 0.571]),
        (6, 0.5, [0.008, 0.016, 0.031, 0.063, 0.126, 0.252, 0.504]),
        (3, 0.0, [0.25, 0.25, 0.25, 0.25]),
        (3, 1.0, [0.0, 0.0, 0.0, 1.0]),
    ],
)
def test_level_probabilities(difficulty, p, expected):
    np.testing.assert_allclose(level_probabilities(difficulty, p), expected, atol=5e-4)


@pytest.mark.parametrize("task", TASKS)
def test_a_curriculum_draws_every_level(task):
    sim = Construction(task)
    levels = [sim.reset(seed).scene.level for seed in range(600)]
    p = level_probabilities(sim.difficulty, TASKS[task].curriculum_p)
    counts = np.bincount(levels, minlength=len(p))
    errors = np.sqrt(600 * p * (1 - p))
    assert (np.abs(counts - 600 * p) < 4 * errors + 1).all()
    fixed = Construction(task, difficulty=1, curriculum_sample=False)
    assert {fixed.reset(seed).scene.level for seed in range(20)} == {1}
    assert {sim.reset(s, difficulty=1).scene.level for s in range(60)} == {0, 1}
    assert sim.reset(3, difficulty=1, curriculum_sample=False).scene.level == 1


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Construction("coverin"),
         "TASK: there is no task 'coverin'; known: connecting, covering, covering-hard, "
         "marble-run, silhouette. Did you mean 'covering'?"),
        (lambda: Construction("covering", difficulty=3),
         "difficulty: 3 is not a level of covering (paper); it must be a whole number "
         "from 0 to 2."),
        (lambda: Construction("connecting", difficulty="mixed"),
         "difficulty: 'mixed' is not a level of connecting (paper); it must be a whole number "
         "from 0 to 9, or 'mixed_height_targets', or 'additional_layer'."),
        (lambda: Construction("connecting", difficulty="additional_layer"),
         "difficulty: 'additional_layer' is outside the curriculum; use curriculum_sample=False."),
        (lambda: Construction("covering", preset="original"),
         "preset: there is no preset 'original'; known: paper, released."),
        (lambda: Construction("covering", sticky_penalty=-1),
         "sticky_penalty: -1 is not possible; it must be a number, at least 0."),
        (lambda: Construction("marble-run", difficulty=7),
         "difficulty: 7 is not a level of marble-run (paper); it must be a whole number "
         "from 0 to 6."),
        (lambda: Construction("covering").reset(0, difficulty=-1),
         "difficulty: -1 is not a level of covering (paper); it must be a whole number "
         "from 0 to 2."),
        (lambda: Construction("covering").reset(-1),
         "seed: -1 is not possible; it must be at least 0."),
        (lambda: Construction("covering").step(Construction("covering").reset(0), 8610),
         "action: 8610 is not possible; it must be from 0 to 8609."),
        (lambda: Construction("covering").step(Construction("covering").reset(0), -1),
         "action: -1 is not possible; it must be from 0 to 8609."),
        (lambda: Construction("covering").step(Construction("covering").reset(0), 0),
         "action: 0 is not possible in this state; see action_mask."),
        (lambda: Construction("covering").step(Construction("connecting").reset(0), 300),
         "state: this is not a state of covering."),
        (lambda: Construction("covering").step(None, 300),
         "state: this is not a state of covering."),
        (lambda: Construction("covering").step(State(SCENE, ending="complete"), 300),
         "step: this episode is over (complete); start a new one with reset."),
        (lambda: Construction("covering").start(Construction("silhouette").reset(0).scene),
         "scene: this is a scene of silhouette, not of covering."),
        (lambda: Construction("connecting").reset(0, difficulty="additional_layer",
                                                 curriculum_sample=False),
         "scene: level 'additional_layer' does not fit; build the simulator with "
         "difficulty='additional_layer', preset='paper'."),
        (lambda: Construction("covering", curriculum_sample="False"),
         "curriculum_sample: 'False' is not possible; it must be true or false."),
        (lambda: Construction("covering", masked=1),
         "masked: 1 is not possible; it must be true or false."),
        (lambda: Construction("covering", sticky_penalty="much"),
         "sticky_penalty: much is not possible; it must be a number, at least 0."),
        (lambda: Construction("covering").step(State(SCENE)._replace(
            scene=Scene("covering", "paper", 9, 40, ())), 300),
         "state: level 9 does not fit this simulator."),
        (lambda: Construction("covering").drop(State(SCENE), Placement(7, 0.0, 1.0, False)),
         "placement: slot 7 at (0.0, 1.0) is not possible."),
        (lambda: Construction("covering").drop(State(SCENE), Placement(0, np.nan, 1.0, False)),
         "placement: slot 0 at (nan, 1.0) is not possible."),
        (lambda: Construction("covering-hard").drop(
            State(Scene("covering-hard", "paper", 0, 14, ()), USED), Placement(3, 0.0, 1.0, False)),
         "placement: the block of slot 3 is used up."),
        (lambda: State.from_bytes(State(SCENE, ending="bored").to_bytes()),
         "state: these bytes are damaged."),
        (lambda: State.from_bytes(State(SCENE, blocks=b"1234").to_bytes()),
         "state: these bytes are damaged."),
        (lambda: Construction("covering").roll(State(SCENE)),
         "roll: there is no marble in covering."),
        (lambda: State.from_bytes(b"save_rl construction state 0\n[]"),
         "state: these bytes are not a Construction state of this version."),
        (lambda: State.from_bytes(State(SCENE).to_bytes()[:-5]), "state: these bytes are damaged."),
        (lambda: State.from_bytes(State(SCENE).to_bytes() + b"1234"),
         "state: these bytes are damaged."),
    ],
)  # fmt: skip
def test_errors_in_one_sentence(call, sentence):
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value) == sentence
