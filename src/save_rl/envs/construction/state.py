"""The state of an episode: small, immutable, hashable, and the same in every process."""

import json
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.construction.scene import Scene
from save_rl.errors import InputError

FLOOR = -1  # index of the floor in contacts and bonds, where blocks count from 0
BLOCK_FIELDS = ("slot", "sticky", "x", "y", "angle")
CONTACT_FIELDS = ("first", "second", "normal_1", "tangent_1", "normal_2", "tangent_2")
BOND_FIELDS = (
    "first", "second", "anchor_x", "anchor_y", "angle", "contact_x", "contact_y",
    "impulse_x", "impulse_y", "impulse_angle",
)  # fmt: skip
ENDINGS = (
    "complete", "max_steps", "spawn_collision", "obstacle_hit", "bad_simulation", "bad_choice",
    "invalid_edge",
)  # fmt: skip
_HEADER = b"save_rl construction state 1\n"


class State(NamedTuple):
    """A settled structure, and the progress of the episode.

    The three tables are rows of float32, as bytes; `block_array`, `contact_array` and `bond_array`
    read them.

    blocks: per placed block, its slot in the row of available blocks, its sticky flag and its pose.
    contacts: per touching pair, the impulses of up to two contact points. They hold a structure up:
        one restored from poses alone falls
        (docs/construction/index.md#what-a-state-has-to-keep).
    bonds: per glued pair, the pose of the younger body in the frame of the older one, their first
        contact point in the same frame, and the impulse that the bond carries.
    steps: placements so far.
    progress: the score before costs.
    ending: why the episode is over; '' while it is running.
    """

    scene: Scene
    blocks: bytes = b""
    contacts: bytes = b""
    bonds: bytes = b""
    steps: int = 0
    progress: float = 0.0
    ending: str = ""

    @property
    def block_array(self) -> np.ndarray:
        """Rows `[blocks, 5]`: slot, sticky, x, y, angle."""
        return block_table(self.blocks)

    @property
    def contact_array(self) -> np.ndarray:
        """Rows `[pairs, 6]`: first, second (-1 is the floor), normal and tangent impulses."""
        return np.frombuffer(self.contacts, np.float32).reshape(-1, 6)

    @property
    def bond_array(self) -> np.ndarray:
        """Rows `[pairs, 10]`: first (-1: floor), second, anchor, angle, contact point, impulse."""
        return np.frombuffer(self.bonds, np.float32).reshape(-1, 10)

    @property
    def sticky_count(self) -> int:
        """Sticky blocks placed so far."""
        return int(self.block_array[:, 1].sum())

    def to_bytes(self) -> bytes:
        """Serialise the state; `from_bytes` reads it in any process."""
        fields = [self.scene.values, self.steps, self.progress, self.ending]
        tables = [self.blocks, self.contacts, self.bonds]
        header = json.dumps([fields, [len(table) for table in tables]]).encode()
        return b"".join([_HEADER, header, b"\n", *tables])

    @staticmethod
    def from_bytes(data: bytes) -> "State":
        """Read the bytes of `to_bytes`; raise an error for any others."""
        if not data.startswith(_HEADER):
            raise InputError("state: these bytes are not a Construction state of this version.")
        header, _, rest = data[len(_HEADER) :].partition(b"\n")
        try:
            (scene, steps, progress, ending), lengths = json.loads(header)
            rows = [4 * len(f) for f in (BLOCK_FIELDS, CONTACT_FIELDS, BOND_FIELDS)]
            whole = not any(n % row for n, row in zip(lengths, rows, strict=True))
            if not whole or len(rest) != sum(lengths) or ending not in ("", *ENDINGS):
                raise ValueError("the lengths or the ending are impossible")
            ends = np.cumsum(lengths)
            blocks, contacts, bonds = (
                rest[end - length : end] for length, end in zip(lengths, ends, strict=True)
            )
            drawn = Scene(*map(_tuples, scene))
            return State(drawn, blocks, contacts, bonds, steps, progress, ending)
        except (ValueError, TypeError) as error:
            raise InputError("state: these bytes are damaged.") from error


@lru_cache(maxsize=256)  # a step and what follows it read the same few tables many times
def block_table(blocks: bytes) -> np.ndarray:
    """Return the rows of `State.blocks`, `[blocks, 5]`, read-only."""
    return np.frombuffer(blocks, np.float32).reshape(-1, 5)


def _tuples(value: Any) -> Any:
    """Turn JSON's lists back into tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
