"""Tracks of tables that the agent's own actions can build."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from save_rl.envs.construction.graph import AVAILABLE, OFFSETS, node_count, place
from save_rl.envs.construction.marble_builder.placements import (
    FALLING,
    LENGTH,
    PLANK,
    RADIUS,
    RAMP,
    REST,
    RISING,
    THICKNESS,
    UNIT,
    View,
    stack,
    stack_height,
    start_on,
    view,
)
from save_rl.envs.construction.simulator import Construction
from save_rl.envs.construction.state import State

MIDDLE = len(OFFSETS) // 2  # the offset 0
OFFSET = OFFSETS[MIDDLE + 1]  # between neighbours, of half the widths


class _Track(NamedTuple):
    """Tables built with actions so far: their right end, and their level."""

    state: State
    actions: tuple[int, ...]
    u: float
    level: int


def build_with_actions(sim: Construction, state: State, limit: int = 800) -> list[int] | None:
    """Return actions that solve a scene with a ramp and optional tables; None after `limit` trials.

    Actions drop blocks onto something, so blocks can't hang and there are no spans.
    """
    search = _Search(sim, view(state.scene), limit)
    for track in search.starts(state):
        found = search.onward(track)
        if found is not None:
            return list(found)
    return None


class _Search:
    """Depth-first search over tables that actions can build."""

    def __init__(self, sim: Construction, seen: View, limit: int):
        self.sim, self.seen, self.left = sim, seen, limit

    def step(self, track: _Track, slot: int, receiver: int, offset: int) -> _Track | None:
        """Place a sticky block; return None if the episode ends unsolved."""
        if self.left <= 0 or track.state.ending:
            return None
        self.left -= 1
        action = self.sim.action(slot, receiver, offset, sticky=1)
        state = self.sim.step(track.state, action)[0]
        if state.ending not in ("", "complete"):
            return None
        return track._replace(state=state, actions=(*track.actions, action))

    def placements(self, state: State, slot: int) -> Iterator[tuple[float, float, int, int]]:
        """Yield all placements of a block by actions: u, y, receiver, offset."""
        for receiver in range(AVAILABLE, node_count(state.scene, len(state.block_array))):
            for offset in range(len(OFFSETS)):
                placed = place(state, slot, receiver, offset, 1)
                assert placed is not None
                yield self.seen.sign * placed.x, placed.y, receiver, offset

    def mirrored(self, slot: int) -> int:
        return RISING + FALLING - slot if self.seen.sign < 0 and slot in (RISING, FALLING) else slot

    def starts(self, state: State) -> Iterator[_Track]:
        """Yield tracks with a ramp on the floor, or on a first table."""
        u, y = self.seen.marble
        bare = _Track(state, (), u, 0)
        yield from self.ramps(bare, 0.0)
        for level in range(1, int((y - RADIUS) / UNIT + 0.5)):
            for table in self.tables(bare, level, u - 2.0, u + 0.7, u + 0.3):
                yield from self.ramps(table, stack_height(level) + REST + THICKNESS)

    def ramps(self, track: _Track, height: float) -> Iterator[_Track]:
        for part in start_on(self.seen, height):
            slot, wanted = self.mirrored(FALLING), part.u + RAMP / 2
            near = [p for p in self.placements(track.state, slot) if 0 <= wanted - p[0] < 0.4]
            for u, _, receiver, offset in sorted(near, reverse=True)[:2]:
                done = self.step(track, slot, receiver, offset)
                if done:
                    yield done._replace(u=max(track.u, u + RAMP / 2))

    def tables(
        self, track: _Track, level: int, first: float, last: float, wanted: float
    ) -> Iterator[_Track]:
        """Yield tracks with a table whose left end is between first and last, nearest to `wanted`
        first."""
        slots, height = stack(level), stack_height(level) + REST + THICKNESS
        options = []
        for u, y, receiver, offset in self.placements(track.state, slots[0]):
            for shift in range(-4, 5):
                left = u + shift * OFFSET * (LENGTH + UNIT) / 2 - LENGTH / 2
                if (
                    first <= left <= last
                    and self.seen.clear(u - RADIUS, u + RADIUS, 0, y + UNIT)
                    and self.seen.clear(
                        left, left + LENGTH, height - THICKNESS - REST, height + 0.05
                    )
                    and self.seen.passes(left, left + LENGTH, height)
                ):
                    rank = abs(left - wanted) + 0.2 * (abs(shift) > 2)
                    options.append((rank, left, receiver, offset, shift))
        kept: list[float] = []
        for _, left, receiver, offset, shift in sorted(options):
            if any(abs(left - other) < 0.03 for other in kept):
                continue
            kept.append(left)
            table = self.step(track, slots[0], receiver, offset)
            for slot in slots[1:]:
                table = table and self.step(table, slot, self.top(table), MIDDLE)
            aside = MIDDLE + self.seen.sign * shift
            table = table and self.step(table, PLANK, self.top(table), aside)
            if table:
                yield table._replace(u=left + LENGTH, level=level)

    def finishes(self, track: _Track) -> Iterator[_Track]:
        """Yield tracks with a ramp on the floor that lifts the marble to a goal in row 1."""
        goal, y = self.seen.goal
        left = goal + 0.5 - RAMP
        if round(y / UNIT - 0.5) != 1 or track.u > left or not self.seen.passes(track.u, left, 0.0):
            return
        slot = self.mirrored(RISING)
        near = [p for p in self.placements(track.state, slot) if abs(p[0] - left - RAMP / 2) < 0.1]
        for _, _, receiver, offset in near[:1]:
            done = self.step(track, slot, receiver, offset)
            if done:
                yield done

    def top(self, track: _Track) -> int:
        """Return the node of the last block."""
        return node_count(track.state.scene, len(track.state.block_array)) - 1

    def onward(self, track: _Track) -> tuple[int, ...] | None:
        """Extend a track until the marble arrives; return its actions, or None."""
        if track.state.ending:
            return track.actions
        if track.u > self.seen.goal[0]:
            return None
        for lifted in self.finishes(track):
            if lifted.state.ending:
                return lifted.actions
        for level in range(track.level, 0, -1):
            end = track.u
            for longer in islice(self.tables(track, level, end + 0.005, end + 0.25, end), 2):
                found = self.onward(longer)
                if found is not None:
                    return found
        return None
