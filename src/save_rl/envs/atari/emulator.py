"""ale-py: the available games, and one emulator per game for all lanes of a process.

A saved emulator state can be restored into any emulator of the same game, but does not include the
screen. The next frame redraws it, except for parts that the game leaves undrawn, which stay as they
were two frames before. So pictures are made from the last two of four frames as they are played,
and are stored with the state.
"""

import contextlib
import threading
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.atari import frames
from save_rl.envs.atari_protocol import REPEAT
from save_rl.errors import InputError, MissingExtra, unknown_name

try:
    from ale_py import Action, ALEInterface, ALEState, LoggerMode, roms
except ImportError as error:
    raise MissingExtra(
        "the Atari games need ale-py; install it with: pip install 'save-rl[atari]'."
    ) from error

# Paper, table E.1
PAPER_GAMES = (
    "alien", "asteroids", "beam_rider", "centipede", "crazy_climber", "frostbite", "gravitar",
    "hero", "ms_pacman", "name_this_game", "riverraid", "space_invaders", "up_n_down", "zaxxon",
)  # fmt: skip
# ale-py 0.12 does not save everything that a game draws with, so a step from a restored state can
# differ in these games: amidar, koolaid, qbert and tetris are known (pull request 739 of its
# repository; qbert even corrupts memory), the others differed within 1,000 replayed steps. Every
# step of a simulator restores a state, so they can't be played at all. In a few more (alien,
# air_raid, trondead) the screen can differ in the first two frames of a step, which are not used.
NOT_RESTORABLE = (
    "amidar", "koolaid", "qbert", "tetris", "tic_tac_toe_3d", "video_chess", "yars_revenge",
)  # fmt: skip
ACTIONS = 18  # the same in every game, numbered as in the emulator; 0 is the no-op
_ALL: Any = Action  # an enumeration, although its type stub does not say so
ACTION_NAMES = tuple(action.name.lower() for action in _ALL)
MAX_NOOPS = 30


def find_game(name: str, option: str = "ENV") -> str:
    """Return the name of a ROM: 'ms_pacman' for 'MsPacman', 'ms-pacman' or 'ms_pacman'.

    Raises an error for games that can't be played. option: the setting to name in errors.
    """
    known = {_letters(game): game for game in roms.get_all_rom_ids()}
    game = known.get(_letters(name))
    if game is None:
        raise unknown_name("Atari game", name, set(known.values()) - {*NOT_RESTORABLE}, option)
    if game in NOT_RESTORABLE:
        raise InputError(
            f"{option}: '{game}' can't be played: ale-py does not restore its states exactly, and "
            "every step starts by restoring one."
        )
    try:
        _rom(game)
    except (OSError, ValueError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(f"{option}: the ROM of '{game}' can't be loaded ({why}).") from error
    return game


def _rom(game: str) -> Any:
    """Return the path of a game's ROM, whose checksum the emulator must know."""
    with contextlib.redirect_stdout(None):  # ale-py prints non-default search paths
        path: Any = roms.get_rom_path(game)
    if ALEInterface.isSupportedROM(path) is None:  # loading it would exit the process
        raise ValueError("ale-py has no version of it for one player")
    return path


def _letters(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


class Played(NamedTuple):
    """The result of playing some frames; see `AtariState`."""

    core: Any
    stack: np.ndarray
    reward: int
    frames: int
    over: bool


class Emulator:
    """A loaded game. A lock lets one thread in at a time."""

    def __init__(self, game: str):
        ALEInterface.setLoggerMode(LoggerMode.Error)
        self._ale: Any = ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.setInt("random_seed", 1)  # has no effect without sticky actions
        self._ale.loadROM(_rom(game))
        height, width = self._ale.getScreenDims()
        assert width == frames.WIDTH
        self._columns = frames.shrinking(height)
        self._screens = np.empty((2, height, width), np.uint8)
        self._lock = threading.Lock()
        # A used emulator may reset to a different state, so reset only once.
        self._ale.reset_game()
        self._starts = []
        for noops in range(MAX_NOOPS + 1):
            stack = self._pictured(frames.NOTHING, pooled=False)
            self._starts.append(Played(self._ale.cloneState(), stack, 0, noops, False))
            self._ale.act(0)

    def start(self, noops: int) -> Played:
        """Return the start of the game after this many no-op frames, at most `MAX_NOOPS`."""
        return self._starts[noops]

    def play(self, core: Any, stack: np.ndarray, action: int) -> Played:
        """Repeat an action for `REPEAT` frames, or until the game is over.

        The picture combines the last two of `REPEAT` frames. If the game ends earlier, the previous
        picture is repeated.
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
        """Return the stack with a picture of this screen, or of this and the previous one."""
        self._ale.getScreenGrayscale(self._screens[0])
        return frames.pushed(stack, self._screens[0], self._screens[int(pooled)], self._columns)


@cache
def emulator(game: str) -> Emulator:
    """Return this process's emulator of a game."""
    return Emulator(game)
