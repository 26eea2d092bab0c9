"""An Atari game as a pure simulator, played the way R2D2 plays it (Kapturowski et al., 2019)."""

from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.atari.emulator import (
    ACTION_NAMES,
    ACTIONS,
    MAX_NOOPS,
    emulator,
    find_game,
)
from save_rl.envs.atari.frames import NOTHING
from save_rl.envs.atari_protocol import MAX_FRAMES, REPEAT
from save_rl.errors import InputError, require

# A state as bytes. The emulator's own state takes about 7,700; the size varies slightly.
_SAVED = np.dtype([
    ("frames", "<i8"), ("action", "<i4"), ("reward", "<f8"), ("over", "|b1"), ("size", "<i4"),
    ("core", "|u1", 8192), ("stack", "|u1", NOTHING.shape),
])  # fmt: skip
_ZOOM = (4, 3)  # of rendered pictures, vertical and horizontal: screens are taller than wide


class AtariState(NamedTuple):
    """The state of an episode.

    core: the emulator's saved state, about 8 kB.
    stack: `[84, 84, 4]` uint8, the last four pictures, newest last, read-only; zeros before the
        first.
    frames: emulator frames since the start of the episode, including no-ops.
    action, reward: of the step that led here; 0 at the start.
    over: true if the game is over.
    """

    core: Any
    stack: np.ndarray
    frames: int
    action: int = 0
    reward: float = 0.0
    over: bool = False


class Atari:
    """A game by the name of its ROM, `ms_pacman` or `MsPacman`.

    Every game has all 18 actions, and an action repeats for 4 frames. The reward is the change of
    the score, not clipped. An episode starts after 1 to 30 no-op frames, terminates when the game
    is over, and is truncated after `max_frames`; losing a life does not end it. Only the number of
    no-ops is random; the seed draws it.

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
        """Start an episode after this many no-op frames, at most 30."""
        played = self._emulator.start(noops)
        return AtariState(played.core, played.stack, played.frames)

    def step(self, state: AtariState, action: int) -> tuple[AtariState, float, bool, bool]:
        """Repeat an action for 4 frames; return `(state, reward, terminated, truncated)`.

        Steps past `max_frames` are allowed, and all are truncated.
        """
        action = int(action)
        require(0 <= action < ACTIONS, "action", action, f"from 0 to {ACTIONS - 1}")
        if state.over:
            raise InputError("step: this episode is over; start a new one with reset.")
        core, stack, reward, frames, over = self._emulator.play(state.core, state.stack, action)
        frames, gained = frames + state.frames, float(reward)
        after = AtariState(core, stack, frames, action, gained, over)
        return after, gained, over, not over and frames >= self.max_frames

    def observe(self, state: AtariState) -> dict[str, Any]:
        """Return `frames [84, 84, 4]` uint8, newest last, and the last `action` and `reward`."""
        return {
            "frames": state.stack,
            "action": np.int32(state.action),
            "reward": np.float32(state.reward),
        }

    def save_state(self, state: AtariState) -> np.ndarray:
        """Return the complete state as `[36441]` uint8."""
        core = self._emulator.to_bytes(state.core)
        saved = np.zeros((), _SAVED)
        saved["core"][: len(core)], saved["size"] = np.frombuffer(core, np.uint8), len(core)
        for name in ("stack", "frames", "action", "reward", "over"):
            saved[name] = getattr(state, name)
        return np.frombuffer(saved.tobytes(), np.uint8)

    def load_state(self, data: np.ndarray) -> AtariState:
        """Return the state that `save_state` saved."""
        saved = np.frombuffer(data.tobytes(), _SAVED)[0]
        core = self._emulator.from_bytes(saved["core"][: saved["size"]].tobytes())
        stack = saved["stack"].copy()
        stack.setflags(write=False)
        return AtariState(
            core, stack, int(saved["frames"]), int(saved["action"]), float(saved["reward"]),
            bool(saved["over"]),
        )  # fmt: skip

    def lives(self, state: AtariState) -> int:
        """Return the number of lives left."""
        return self._emulator.lives(state.core)

    def render(self, state: AtariState) -> np.ndarray:
        """Return the newest picture as the agent sees it, enlarged to `[336, 252, 3]`.

        The emulator's own screen, in colour, is not part of a state.
        """
        picture = np.repeat(np.repeat(state.stack[..., -1], _ZOOM[0], 0), _ZOOM[1], 1)
        return np.repeat(picture[..., None], 3, 2)
