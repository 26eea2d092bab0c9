"""Every level of Marble Run can be solved, also where the marble starts low (preset `paper`)."""

import numpy as np
import pytest

from save_rl.envs.construction.marble_builder import build, build_with_actions
from save_rl.envs.construction.marble_builder.placements import plans, view
from save_rl.envs.construction.simulator import Construction


def marble_run(level: int, preset: str = "paper") -> Construction:
    return Construction("marble-run", difficulty=level, curriculum_sample=False, preset=preset)


def replay(step, state, choices) -> None:
    """The marble arrives with the last block, within the step limit, and not before."""
    assert len(choices) <= state.scene.max_steps
    rewards, ends = [], []
    for choice in choices:
        state, reward, terminated, truncated = step(state, choice)
        rewards.append(reward)
        ends.append(terminated or truncated)
    assert rewards == [0.0] * (len(choices) - 1) + [1.0]
    assert ends == [False] * (len(choices) - 1) + [True]
    assert state.ending == "complete"


SOLVED = [(0, 0), (1, 0), (2, 1), (3, 0), (4, 1), (4, 3), (5, 0), (6, 2)]


@pytest.mark.parametrize(("level", "seed"), SOLVED)
def test_blocks_put_anywhere_solve_a_scene_of_each_level(level: int, seed: int):
    sim = marble_run(level)
    placements = build(sim, sim.reset(seed))
    assert placements is not None
    replay(sim.drop, sim.reset(seed), placements)


SOLVED_WITH_ACTIONS = [(0, 0), (1, 0), (2, 1), (3, 0), (4, 9), (5, 0), (6, 2)]


@pytest.mark.parametrize(("level", "seed"), SOLVED_WITH_ACTIONS)
def test_the_agents_own_actions_solve_a_scene_of_each_level(level: int, seed: int):
    sim = marble_run(level)
    actions = build_with_actions(sim, sim.reset(seed))
    assert actions is not None
    replay(sim.step, sim.reset(seed), actions)


def test_a_scene_and_its_mirror_image_look_the_same():
    scene = marble_run(6).reset(2).scene

    def mirrored(box):
        return (-box[0], *box[1:])

    mirror = type(scene)(
        scene.task,
        scene.preset,
        scene.level,
        scene.max_steps,
        tuple(map(mirrored, scene.obstacles)),
        tuple(map(mirrored, scene.targets)),
        mirrored(scene.marble),
    )
    assert view(mirror)[1:] == view(scene)[1:]
    assert view(mirror).sign == -view(scene).sign
    assert plans(mirror) == plans(scene)


def test_giving_up_is_no_error():
    sim = marble_run(6)
    state = sim.reset(2)
    assert build(sim, state, limit=0) is None
    assert build_with_actions(sim, state, limit=3) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "least"), [(0, 0.9), (1, 0.9), (2, 0.8), (3, 0.8), (4, 0.5), (5, 0.75), (6, 0.75)]
)
def test_most_scenes_of_every_level_are_solved(level: int, least: float):
    sim = marble_run(level)
    solved = [build(sim, sim.reset(seed)) is not None for seed in range(30)]
    assert np.mean(solved) >= least
