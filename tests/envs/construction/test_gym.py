"""The Construction tasks through Gymnasium."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import save_rl.envs.gym
from save_rl.envs.construction import Construction, absolute, graph
from save_rl.envs.construction.drawing import draw, image_observation
from save_rl.envs.construction.scene import BLOCKS, MARBLE_BLOCKS
from save_rl.errors import InputError
from tests.envs.construction import reference

IDS = ["Silhouette", "Connecting", "Covering", "CoveringHard", "MarbleRun"]
GRAPH_FIELDS = {
    "nodes", "node_mask", "edges", "edge_mask", "globals", "senders", "receivers", "n_node",
    "n_edge", "action_mask",
}  # fmt: skip


def make(title, **options):
    return gymnasium.make(f"save_rl/{title}-v0", **options)


def test_registering_again_changes_nothing():
    before = dict(gymnasium.registry)
    save_rl.envs.gym.register()
    assert dict(gymnasium.registry) == before


@pytest.mark.parametrize("title", IDS)
@pytest.mark.parametrize("options", [{}, {"masked": False}, {"interface": "absolute"}])
@pytest.mark.filterwarnings("ignore:.*found no display")  # one of the modes the checker opens
@pytest.mark.filterwarnings("ignore:.*symmetric and normalized")  # actions are in metres
def test_the_environment_checker_agrees(title, options):
    check_env(make(title, render_mode="rgb_array", **options).unwrapped)


@pytest.mark.parametrize("title", IDS)
def test_an_episode_of_valid_actions(title):
    env = make(title)
    rng = np.random.default_rng(0)
    observation, info = env.reset(seed=5)
    assert set(observation) == GRAPH_FIELDS
    total, terminated = 0.0, False
    while not terminated:
        action = int(rng.choice(np.flatnonzero(info["action_mask"])))
        observation, reward, terminated, truncated, info = env.step(action)
        total += reward
        assert not truncated
    assert info["termination_reason"] not in ("", "invalid_edge")
    state = env.unwrapped.state
    assert info["score"] == pytest.approx(state.progress)
    assert info["progress"] == pytest.approx(state.progress / reference.best_progress(state.scene))
    assert info["sticky_count"] == sum(block.sticky for block in reference.blocks_of(state))
    assert info["level"] == state.scene.level


def test_the_graph_is_complete_between_nodes_in_use():
    env = make("Covering", difficulty=1, curriculum_sample=False)
    observation, _ = env.reset(seed=1)
    count = int(observation["n_node"][0])
    assert observation["node_mask"].sum() == count
    used = observation["edge_mask"] == 1
    pairs = set(zip(observation["senders"][used], observation["receivers"][used], strict=True))
    assert pairs == {(u, v) for u in range(count) for v in range(count) if u != v}
    assert observation["n_edge"][0] == count * (count - 1)
    assert not observation["edges"].any()
    assert not observation["globals"].any()


@pytest.mark.parametrize("masked", [True, False])
def test_an_invalid_edge_ends_the_episode_without_physics(masked):
    env = make("Connecting", masked=masked)
    observation, info = env.reset(seed=2)
    action = env.unwrapped.simulator.action(0, 1, 7)  # from one available block to another
    after, reward, terminated, _, info = env.step(action)
    assert (reward, terminated, info["termination_reason"]) == (0.0, True, "invalid_edge")
    assert info["steps"] == 0
    np.testing.assert_array_equal(after["nodes"], observation["nodes"])
    with pytest.raises(InputError, match="this episode is over"):
        env.unwrapped.step(action)


def test_seeds_and_reset_options():
    env = make("Covering")
    one, _ = env.reset(seed=3)
    two, _ = env.reset(seed=3)
    np.testing.assert_array_equal(one["nodes"], two["nodes"])
    for level in (0, 1, 2):
        options = {"difficulty": level, "curriculum_sample": False}
        assert env.reset(options=options)[1]["level"] == level
    scene = env.unwrapped.state.scene
    env.reset(seed=9)
    env.reset(options={"scene": scene})
    assert env.unwrapped.state.scene == scene
    with pytest.raises(InputError, match="there is no option 'level'; known: curriculum_sample"):
        env.reset(options={"level": 2})
    with pytest.raises(InputError, match="the scene must be a Scene"):
        env.reset(options={"scene": "nonsense"})
    with pytest.raises(InputError, match="a scene brings its level"):
        env.reset(options={"scene": scene, "difficulty": 1})
    with pytest.raises(InputError, match=r"there is no interface 'grph'.* Did you mean 'graph'"):
        make("Covering", interface="grph")


def test_options_reach_the_task():
    assert make("MarbleRun", preset="released").unwrapped.simulator.difficulty == 8
    env = make("Covering", sticky_penalty=0.25, difficulty=0)
    _, info = env.reset(seed=1)
    simulator = env.unwrapped.simulator
    floor = graph.node_count(env.unwrapped.state.scene, 0) - 1
    _, reward, _, _, info = env.step(simulator.action(0, floor, 14, sticky=1))  # x = 7.5
    assert (reward, info["sticky_count"]) == (-0.25, 1)


def test_pictures():
    env = make("Silhouette", render_mode="rgb_array", interface="absolute")
    image, _ = env.reset(seed=1)
    assert (image.shape, image.dtype) == ((64, 64, 3), np.uint8)
    state = env.unwrapped.state
    np.testing.assert_array_equal(image, image_observation(state))
    np.testing.assert_array_equal(env.render(), draw(state))
    action = np.array([-6.65, 6.0, 0.5, -1.0], np.float32)
    image, *_ = env.step(action)
    cursor = tuple(map(float, action[:3]))
    np.testing.assert_array_equal(image, image_observation(env.unwrapped.state, cursor))


@pytest.mark.filterwarnings("ignore:.*found no display")
def test_without_a_screen_the_human_mode_says_so():
    import matplotlib

    matplotlib.use("agg")
    env = make("Covering", render_mode="human")
    with pytest.warns(UserWarning, match="render_mode 'human' found no display and shows nothing"):
        env.reset(seed=0)
    env.close()


# The middles of the gaps of 5 generator units between available blocks, worked out by hand:
# the first block ends at 10, the second begins at 15, so the selector changes at 12.5 gu.
BOUNDARIES_GU = [12.5, 27.5, 42.5, 77.5, 112.5, 147.5]


def test_the_selector_changes_in_the_middle_of_gaps():
    expected = np.array(BOUNDARIES_GU) * 0.07 - 7
    np.testing.assert_allclose(absolute.slot_boundaries(BLOCKS), expected, atol=1e-12)
    for supply in (BLOCKS, MARBLE_BLOCKS):
        for slot, (x, _) in enumerate(supply.display):
            assert absolute.placement(supply, np.array([x, 0, 1, 0])).slot == slot
    assert absolute.placement(BLOCKS, np.array([-7, 0, 1, 0])).slot == 0
    assert absolute.placement(BLOCKS, np.array([7, 0, 1, 0])).slot == 6
    assert [absolute.placement(BLOCKS, np.array([0, 0, 1, s])).sticky for s in (-1, 0, 0.1)] == [
        False, False, True,
    ]  # fmt: skip


def test_a_block_that_is_gone_is_a_bad_choice():
    sim = Construction("covering-hard", difficulty=0)
    state = sim.reset(0)
    left = np.array([-6.65, 6.9, 0.4, -1.0])
    state, _, terminated, _ = absolute.step(sim, state, left)
    if not terminated:
        state, reward, terminated, _ = absolute.step(sim, state, left)
        assert (reward, terminated, state.ending, state.steps) == (0.0, True, "bad_choice", 2)
    else:
        pytest.fail(f"the first placement ended with {state.ending}")


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        ([0, 0, 1], "action: it must be four finite numbers: selector, x, y, sticky."),
        ([0, np.nan, 1, 0], "action: it must be four finite numbers: selector, x, y, sticky."),
        ([0, 8, 1, 0],
         "action: [0.0, 8.0, 1.0, 0.0] is outside [-7.0, -7.5, 0.0, -1.0] to "
         "[7.0, 7.5, 15.0, 1.0]."),
    ],
)  # fmt: skip
def test_absolute_actions_that_can_not_be(action, sentence):
    with pytest.raises(InputError) as error:
        absolute.placement(BLOCKS, np.array(action))
    assert str(error.value) == sentence
