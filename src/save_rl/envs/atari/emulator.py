"""ale-py: which games there are, and one emulator of each for all lanes of a process.

What is saved of an emulator can be restored into any other of the same game. The screen is not part
of it. The next frame draws it anew, all but what the game leaves undrawn, which stays as it was two
frames before. So pictures are made while frames are played, of the last two of four, and are kept
with the state.
"""

import contextlib
import threading
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.atari import frames
from save_rl.errors import InputError, MissingExtra, unknown_name

try:
    from ale_py import Action, ALEInterface, ALEState, LoggerMode, roms
except ImportError as error:
    raise MissingExtra(
        "the Atari games need ale-py; install it with: pip install 'save-rl[atari]'."
    ) from error

# SAVE paper, table E.1
PAPER_GAMES = (
    "alien", "asteroids", "beam_rider", "centipede", "crazy_climber", "frostbite", "gravitar",
    "hero", "ms_pacman", "name_this_game", "riverraid", "space_invaders", "up_n_down", "zaxxon",
)  # fmt: skip
# ale-py 0.12 does not save all of what a game draws with, so that a step from a restored state can
# come out differently in these: amidar, koolaid, qbert and tetris are known (pull request 739 of
# its repository; qbert even corrupts memory), the others did so in 1,000 replayed steps. Every step
# of a simulator restores a state, so they can't be played at all. In a few more (alien, air_raid,
# trondead) a screen can differ in the first two frames of a step, which no picture is made of.
NOT_RESTORABLE = (
    "amidar", "koolaid", "qbert", "tetris", "tic_tac_toe_3d", "video_chess", "yars_revenge",
)  # fmt: skip
ACTIONS = 18  # every game is given all of them, by the emulator's own numbers; 0 does nothing
_ALL: Any = Action  # an enumeration, which its stub does not say
ACTION_NAMES = tuple(action.name.lower() for action in _ALL)
REPEAT = 4  # frames per step
MAX_NOOPS = 30


def find_game(name: str, option: str = "ENV") -> str:
    """The name of a ROM: 'ms_pacman' for 'MsPacman', 'ms-pacman' or 'ms_pacman'.

    Refuses what can't be played. option: where it was asked for.
    """
    known = {_letters(game): game for game in roms.get_all_rom_ids()}
    game = known.get(_letters(name))
    if game is None:
        raise unknown_name("Atari game", name, set(known.values()) - {*NOT_RESTORABLE}, option)
    if game in NOT_RESTORABLE:
        raise InputError(
            f"{option}: '{game}' can't be played: ale-py does not restore its states exactly, and "
            "every step begins with that."
        )
    try:
        _rom(game)
    except (OSError, ValueError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(f"{option}: the ROM of '{game}' can't be loaded ({why}).") from error
    return game


def _rom(game: str) -> Any:
    """The file of a game, whose checksum is that of a ROM that the emulator knows."""
    with contextlib.redirect_stdout(None):  # ale-py tells where it looks if that is not as usual
        path: Any = roms.get_rom_path(game)
    if ALEInterface.isSupportedROM(path) is None:  # loading it would end the process
        raise ValueError("ale-py has no version of it for one player")
    return path


def _letters(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


class Played(NamedTuple):
    """What came of some frames: see `AtariState`."""

    core: Any
    stack: np.ndarray
    reward: int
    frames: int
    over: bool


class Emulator:
    """A game, loaded. For one thread at a time: its methods wait for each other."""

    def __init__(self, game: str):
        ALEInterface.setLoggerMode(LoggerMode.Error)
        self._ale: Any = ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.setInt("random_seed", 1)  # without sticky actions it decides nothing
        self._ale.loadROM(_rom(game))
        height, width = self._ale.getScreenDims()
        assert width == frames.WIDTH
        self._columns = frames.shrinking(height)
        self._screens = np.empty((2, height, width), np.uint8)
        self._lock = threading.Lock()
        # Resetting an emulator that has been used may lead elsewhere, so it is done once.
        self._ale.reset_game()
        self._starts = []
        for noops in range(MAX_NOOPS + 1):
            stack = self._pictured(frames.NOTHING, pooled=False)
            self._starts.append(Played(self._ale.cloneState(), stack, 0, noops, False))
            self._ale.act(0)

    def start(self, noops: int) -> Played:
        """The game as it begins, after up to `MAX_NOOPS` frames in which nothing is pressed."""
        return self._starts[noops]

    def play(self, core: Any, stack: np.ndarray, action: int) -> Played:
        """Hold an action for `REPEAT` frames, or until the game is over.

        The picture is that of the last two of `REPEAT` frames. If the game is over earlier, the one
        before stays.
        """
        ale, reward, frame, over = self._ale, 0, 0, False
        with self._lock:
            ale.restoreState(core)
            while frame < REPEAT and not over:
                if frame == REPEAT - 1:
                    ale.getScreenGrayscale(self._screens[1])
                reward += ale.act(action)
                frame, over = frame + 1, ale.game_over()
            cut = frame < REPEAT
            after = frames.repeated(stack) if cut else self._pictured(stack, pooled=True)
            return Played(ale.cloneState(), after, reward, frame, over)

    @staticmethod
    def to_bytes(core: Any) -> bytes:
        return core.serialize()

    @staticmethod
    def from_bytes(data: bytes) -> Any:
        return ALEState(data)

    def lives(self, core: Any) -> int:
        with self._lock:
            self._ale.restoreState(core)
            return self._ale.lives()

    def _pictured(self, stack: np.ndarray, *, pooled: bool) -> np.ndarray:
        """The stack with a picture of this screen, or of this and the one before."""
        self._ale.getScreenGrayscale(self._screens[0])
        return frames.pushed(stack, self._screens[0], self._screens[int(pooled)], self._columns)


@cache
def emulator(game: str) -> Emulator:
    """The emulator of a game in this process."""
    return Emulator(game)
