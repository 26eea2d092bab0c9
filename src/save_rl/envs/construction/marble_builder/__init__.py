"""Solving scenes of Marble Run with glued tracks, as evidence that they can be solved."""

from save_rl.envs.construction.marble_builder.actions import build_with_actions
from save_rl.envs.construction.marble_builder.placements import build

__all__ = ["build", "build_with_actions"]
