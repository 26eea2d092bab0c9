"""Atari games as pure simulators, on ale-py: `save_rl.make("atari/ms_pacman")`."""

from save_rl.envs.atari.emulator import PAPER_GAMES
from save_rl.envs.atari.simulator import Atari, AtariState

__all__ = ["Atari", "AtariState", "PAPER_GAMES"]
