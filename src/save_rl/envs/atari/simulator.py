"""An Atari game as a pure simulator, played the way R2D2 plays it (Kapturowski et al., 2019)."""

from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.atari.emulator import (
    ACTION_NAMES,
    ACTIONS,
    MAX_NOOPS,
    REPEAT,
    emulator,
    find_game,
)
from save_rl.envs.atari.frames import NOTHING
from save_rl.errors import InputError, require

MAX_FRAMES = 108_000  # 30 minutes; R2D2, table 2
# A state as bytes. What the emulator saves of itself takes some 7,700, a few more or less.
_SAVED = np.dtype([
    ("frames", "<i8"), ("action", "<i4"), ("reward", "<f8"), ("over", "|b1"), ("size", "<i4"),
    ("core", "|u1", 8192), ("stack", "|u1", NOTHING.shape),
])  # fmt: skip
_ZOOM = (4, 3)  # of a picture to look at: screens are higher than wide


class AtariState(NamedTuple):
    """A moment of an episode.

    core: what the emulator saved of itself, about 8 kB.
    stack: `[84, 84, 4]` uint8, the last four pictures, the newest last, read only; zeros before
        the first.
    frames: of the emulator, since the episode began, no-ops included.
    action, reward: of the step that led here; 0 at the start.
    over: whether the game is.
    """

    core: Any
    stack: np.ndarray
    frames: int
    action: int = 0
    reward: float = 0.0
    over: bool = False


class Atari:
    """A game by the name of its ROM, `ms_pacman` or `MsPacman`.

    An action, one of all 18 in every game, is held for 4 frames. The reward is what the score
    gained, not clipped. An episode begins after 1 to 30 frames in which nothing is pressed,
    terminates when the game is over, and is truncated after `max_frames`; losing a life is
    nothing special. Nothing is random but the number of no-ops, which the seed draws.

    All simulators of a game in a process share one emulator; threads take turns.
    """

    num_actions = ACTIONS
    action_names = ACTION_NAMES

    def __init__(self, game: str, *, max_frames: int = MAX_FRAMES):
        whole = isinstance(max_frames, int) and max_frames > 0
        require(whole, "max_frames", max_frames, "a whole number, at least 1")
        self.game, self.max_frames = find_game(game), max_frames
        self.max_steps = -(-max_frames // REPEAT)
        self._emulator = emulator(self.game)

    def reset(self, seed: int) -> AtariState:
        require(seed >= 0, "seed", seed, "at least 0")
        return self.start(1 + int(np.random.default_rng(seed).integers(MAX_NOOPS)))

    def start(self, noops: int) -> AtariState:
        """Begin an episode after so many frames, at most 30, in which nothing is pressed."""
        played = self._emulator.start(noops)
        return AtariState(played.core, played.stack, played.frames)

    def step(self, state: AtariState, action: int) -> tuple[AtariState, float, bool, bool]:
        """Hold an action for 4 frames: `(state, reward, terminated, truncated)`.

        Steps past `max_frames` are possible, and truncated all of them.
        """
        action = int(action)
        require(0 <= action < ACTIONS, "action", action, f"from 0 to {ACTIONS - 1}")
        if state.over:
            raise InputError("step: this episode is over; begin a new one.")
        core, stack, reward, frames, over = self._emulator.play(state.core, state.stack, action)
        frames, gained = frames + state.frames, float(reward)
        after = AtariState(core, stack, frames, action, gained, over)
        return after, gained, over, not over and frames >= self.max_frames

    def observe(self, state: AtariState) -> dict[str, Any]:
        """`frames [84, 84, 4]` uint8, the newest last, and the `action` and `reward` before."""
        return {
            "frames": state.stack,
            "action": np.int32(state.action),
            "reward": np.float32(state.reward),
        }

    def save_state(self, state: AtariState) -> np.ndarray:
        """Everything, as `[36441]` uint8."""
        core = self._emulator.to_bytes(state.core)
        saved = np.zeros((), _SAVED)
        saved["core"][: len(core)], saved["size"] = np.frombuffer(core, np.uint8), len(core)
        for name in ("stack", "frames", "action", "reward", "over"):
            saved[name] = getattr(state, name)
        return np.frombuffer(saved.tobytes(), np.uint8)

    def load_state(self, data: np.ndarray) -> AtariState:
        """The state that `save_state` was given."""
        saved = np.frombuffer(data.tobytes(), _SAVED)[0]
        core = self._emulator.from_bytes(saved["core"][: saved["size"]].tobytes())
        stack = saved["stack"].copy()
        stack.setflags(write=False)
        return AtariState(
            core, stack, int(saved["frames"]), int(saved["action"]), float(saved["reward"]),
            bool(saved["over"]),
        )  # fmt: skip

    def lives(self, state: AtariState) -> int:
        """How many lives are left."""
        return self._emulator.lives(state.core)

    def render(self, state: AtariState) -> np.ndarray:
        """`[336, 252, 3]`: the newest picture as the agent sees it, small and grey, enlarged.

        The emulator's own screen, in colour, is not part of a state.
        """
        picture = np.repeat(np.repeat(state.stack[..., -1], _ZOOM[0], 0), _ZOOM[1], 1)
        return np.repeat(picture[..., None], 3, 2)
