"""Episodes as animations and scenes as sheets, through the functions behind the command line."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from save_rl.envs.construction import TASKS, Construction
from save_rl.envs.construction.scripted import SCRIPTED
from save_rl.errors import InputError
from save_rl.watch import CUT, scenes, watch


def total_frames(path):
    with Image.open(path) as image:
        return getattr(image, "n_frames", 1), image.size


@pytest.mark.parametrize("task", [name for name in TASKS if name != "marble-run"])
def test_an_episode_has_a_frame_per_step(task, tmp_path):
    out = tmp_path / "new folder" / "x.gif"
    episode = watch(task, out, difficulty=1, seed=4)
    assert episode.states[0].scene.level == 1
    frames, size = total_frames(out)
    assert frames == len(episode.states)  # captions differ, so none are merged
    assert size[0] == 480


def test_the_marble_is_shown_on_its_way(tmp_path):
    episode = watch("marble-run", tmp_path / "x.gif", difficulty=0, seed=6)
    released = [
        state
        for state in episode.states[1:]
        if state.ending not in ("spawn_collision", "obstacle_hit")
    ]
    assert released
    assert total_frames(tmp_path / "x.gif")[0] > len(episode.states) + 5 * len(released)


def test_search_and_scripts_can_be_watched(tmp_path):
    episode = watch("covering", tmp_path / "a.gif", agent="scripted", difficulty=0, seed=1)
    first, second = episode.states[:2]
    assert second == Construction("covering").drop(first, SCRIPTED["covering"](first))[0]
    episode = watch("tightrope", tmp_path / "b.gif", agent="uct", budget=5)
    assert total_frames(tmp_path / "b.gif")[0] >= 2


def test_an_environment_in_jax_can_be_watched_with_chance_and_search(tmp_path):
    for agent in ("random", "uct"):
        episode = watch("tests.envs.test_from_jax:Dice", tmp_path / "x.gif", agent=agent, budget=4)
        frames, (width, height) = total_frames(tmp_path / "x.gif")
        assert frames == len(episode.states)
        assert width >= 240  # a picture of 4 x 4 is enlarged
        assert height > width


def test_a_long_episode_is_cut_off(tmp_path):
    episode = watch("tests.envs.test_from_jax:Dice", tmp_path / "x.gif", seed=0, steps=1)
    assert (len(episode.moves), episode.moves[-1].remark) == (1, CUT)
    with pytest.raises(InputError, match="--steps: 0 is not possible; it must be at least 1"):
        watch("tests.envs.test_from_jax:Dice", tmp_path / "x.gif", steps=0)


class Gauge(gymnasium.Env):
    """Counts to three; draws only if it is made to."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012  # as Gymnasium wants
    observation_space = spaces.Box(0, 3, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode, self.count = render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.full(1, self.count, np.float32), 1.0, self.count == 3, False, {}

    def render(self):
        return np.full((30, 40, 3), 60 * self.count, np.uint8)


class Undrawn(Gauge):
    def render(self):
        raise gymnasium.error.DependencyNotInstalled("pygame is missing, run pip install x.")


def test_gymnasium_is_told_to_draw(tmp_path, monkeypatch):
    spec = gymnasium.envs.registration.EnvSpec("Gauge-v0", entry_point=Gauge)
    monkeypatch.setitem(gymnasium.registry, "Gauge-v0", spec)
    episode = watch("gym/Gauge-v0", tmp_path / "x.gif")
    assert total_frames(tmp_path / "x.gif")[0] == len(episode.states) == 4


def test_a_package_that_pictures_need_is_named_before_the_episode(tmp_path, monkeypatch):
    spec = gymnasium.envs.registration.EnvSpec("Undrawn-v0", entry_point=Undrawn)
    monkeypatch.setitem(gymnasium.registry, "Undrawn-v0", spec)
    monkeypatch.setattr("save_rl.watch.play", None)
    with pytest.raises(InputError) as error:
        watch("gym/Undrawn-v0", tmp_path / "x.gif")
    sentence = "ENV: 'gym/Undrawn-v0' can't be drawn: pygame is missing, run pip install x."
    assert str(error.value) == sentence


def test_scenes_have_a_row_per_level(tmp_path):
    scenes("covering", tmp_path / "x.png")
    scenes("covering", tmp_path / "y.png", seed=1)
    scenes("connecting", tmp_path / "z.png")
    x, y, z = (np.array(Image.open(tmp_path / f"{name}.png")) for name in "xyz")
    assert x.shape == y.shape
    assert (x != y).any()
    row = (x.shape[0] - 2 * 24 + 12) // 3  # three levels, margins of 24 and gaps of 12 pixels
    assert z.shape[0] == 2 * 24 - 12 + 12 * row  # ten levels and two for generalization


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda path: watch("covering", path / "x.png"),
         "--out: '{path}/x.png' is not possible; it must be a file that ends in .gif."),
        (lambda path: watch(str(path), path / "x.gif"),
         "ENV: '{path}' holds no run (config.json is missing)."),
        (lambda path: watch("covering", path / "x.gif", difficulty=9),
         "difficulty: 9 is not a level of covering (paper); it must be a whole number "
         "from 0 to 2."),
        (lambda path: watch("tightrope", path / "x.gif", difficulty=1),
         "--env-options: there is no option 'difficulty'; known: reward, terminal."),
        (lambda path: watch("tests.test_players:Corridor", path / "x.gif"),
         "ENV: 'tests.test_players:Corridor' has no render(state), so there is nothing to watch."),
        (lambda path: scenes("covering", path / "x.gif"),
         "--scenes: '{path}/x.gif' is not possible; it must be a file that ends in .png."),
        (lambda path: scenes("tightrope", path / "x.png"),
         "ENV: 'tightrope' has no levels to show; the Construction tasks have."),
        (lambda path: scenes("coverin", path / "x.png"),
         "ENV: there is no environment 'coverin'; known: connecting, covering, covering-hard, "
         "marble-run, silhouette, tightrope. Did you mean 'covering'?"),
    ],
)  # fmt: skip
def test_errors_in_one_sentence(call, sentence, tmp_path):
    with pytest.raises(InputError) as error:
        call(tmp_path)
    assert str(error.value) == sentence.replace("{path}", str(tmp_path))
    assert list(tmp_path.iterdir()) == []
