"""Our simulators as Gymnasium environments, and Gymnasium environments as simulators.

Importing this module registers ours:

    import gymnasium
    import save_rl.envs.gym
    env = gymnasium.make("save_rl/Tightrope-v0")

`gymnasium.make("save_rl.envs.gym:save_rl/Tightrope-v0")` imports and makes in one call.
`from_gymnasium` converts in the other direction.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from save_rl.envs.chance import MOST_LUCK, is_stochastic, lucky_step
from save_rl.envs.from_gym import from_gymnasium as from_gymnasium
from save_rl.envs.tightrope import tightrope_simulator
from save_rl.types import Simulator


class SimulatorEnv(gymnasium.Env[np.ndarray, np.int64]):
    """A simulator as a Gymnasium environment; `render` draws the current state.

    show: maps a state to the observed array; default `simulator.observe`. uint8 stays uint8; any
    other type becomes float32.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012  # Gymnasium's name

    def __init__(
        self,
        simulator: Simulator,
        render_mode: str | None = None,
        show: Callable[[Any], np.ndarray] | None = None,
    ):
        self.simulator = simulator
        self.render_mode = render_mode
        self._show = show or simulator.observe
        self._state = simulator.reset(0)
        example = np.asarray(self._show(self._state))
        self.observation_space = (
            gymnasium.spaces.Box(0, 255, example.shape, np.uint8)
            if example.dtype == np.uint8
            else gymnasium.spaces.Box(-np.inf, np.inf, example.shape, np.float32)
        )
        self.action_space = gymnasium.spaces.Discrete(simulator.num_actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._state = self.simulator.reset(int(self.np_random.integers(2**31)))
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        luck = int(self.np_random.integers(MOST_LUCK)) if is_stochastic(self.simulator) else None
        step = lucky_step(self.simulator)
        self._state, reward, terminated, truncated = step(self._state, int(action), luck)
        return self._observation(), float(reward), bool(terminated), bool(truncated), {}

    def render(self) -> np.ndarray | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        draw = getattr(self.simulator, "render", None)
        return draw(self._state) if self.render_mode == "rgb_array" and draw else None

    def _observation(self) -> np.ndarray:
        return np.array(self._show(self._state), self.observation_space.dtype)


def tightrope_env(
    render_mode: str | None = None, layout: int = 0, reward: str = "sparse", terminal: float = 95
) -> SimulatorEnv:
    """Make `save_rl/Tightrope-v0`: 100 actions, observations `[50]`; rules in `envs.tightrope`.

    `layout` is the seed of the fatal actions; `terminal` is their percentage; `reward` is 'sparse'
    (1 at the episode's goal) or 'dense' (0.1 per safe step).
    """
    return SimulatorEnv(tightrope_simulator(layout, reward=reward, terminal=terminal), render_mode)


def atari_env(game: str, render_mode: str | None = None, **options: Any) -> SimulatorEnv:
    """Make `save_rl/Atari-v0`: 18 actions, observations of the last four frames `[84, 84, 4]`.

    game: the name of a ROM, `ms_pacman` or `MsPacman`; `envs.atari` has the rules and options.
    """
    from save_rl.envs.atari.simulator import Atari

    return SimulatorEnv(Atari(game, **options), render_mode, lambda state: state.stack)


_CONSTRUCTION = {
    "Silhouette": "silhouette", "Connecting": "connecting", "Covering": "covering",
    "CoveringHard": "covering-hard", "MarbleRun": "marble-run",
}  # fmt: skip


def register() -> None:
    """Register the environments with Gymnasium, once."""
    if "save_rl/Tightrope-v0" in gymnasium.registry:
        return
    gymnasium.register("save_rl/Tightrope-v0", entry_point="save_rl.envs.gym:tightrope_env")
    gymnasium.register("save_rl/Atari-v0", entry_point="save_rl.envs.gym:atari_env")
    for title, task in _CONSTRUCTION.items():
        gymnasium.register(
            f"save_rl/{title}-v0",
            entry_point="save_rl.envs.construction.gym_env:ConstructionEnv",
            kwargs={"task": task},
        )


register()
