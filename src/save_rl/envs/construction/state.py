"""The state of an episode: small, immutable, hashable, and the same in every process."""

import json
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np

from save_rl.envs.construction.scene import Scene
from save_rl.errors import InputError

FLOOR = -1  # where a contact or a bond names a block, the floor is -1
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
    """A settled structure, and how the episode stands.

    The three tables are float32, row by row, as bytes; `block_array`, `contact_array` and
    `bond_array` read them.

    blocks: per placed block its slot in the row of available blocks, whether it is sticky, and its
        pose.
    contacts: per touching pair the impulses of up to two contact points, which hold a structure up:
        one that is restored from its poses alone falls.
    bonds: per glued pair the pose of the younger body in the frame of the older one, and where they
        first touched, in the same frame, and what the bond carries.
    steps: placements so far.
    progress: the score before costs.
    ending: why the episode is over; '' while it goes on.
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
        """`[blocks, 5]`: slot, sticky, x, y, angle."""
        return block_table(self.blocks)

    @property
    def contact_array(self) -> np.ndarray:
        """`[pairs, 6]`: first, second (-1 is the floor), normal and tangent impulses."""
        return np.frombuffer(self.contacts, np.float32).reshape(-1, 6)

    @property
    def bond_array(self) -> np.ndarray:
        """`[pairs, 10]`: first (-1 is the floor), second, anchor, angle, contact point, impulse."""
        return np.frombuffer(self.bonds, np.float32).reshape(-1, 10)

    @property
    def sticky_count(self) -> int:
        """Sticky blocks placed so far."""
        return int(self.block_array[:, 1].sum())

    def to_bytes(self) -> bytes:
        """Everything needed to go on elsewhere; `from_bytes` reads it."""
        fields = [list(astuple(self.scene)), self.steps, self.progress, self.ending]
        tables = [self.blocks, self.contacts, self.bonds]
        header = json.dumps([fields, [len(table) for table in tables]]).encode()
        return b"".join([_HEADER, header, b"\n", *tables])

    @staticmethod
    def from_bytes(data: bytes) -> "State":
        """Read `to_bytes`; anything else is refused."""
        if not data.startswith(_HEADER):
            raise InputError("state: these bytes are no Construction state of this version.")
        header, _, rest = data[len(_HEADER) :].partition(b"\n")
        try:
            (scene, steps, progress, ending), lengths = json.loads(header)
            rows = [4 * len(f) for f in (BLOCK_FIELDS, CONTACT_FIELDS, BOND_FIELDS)]
            whole = not any(n % row for n, row in zip(lengths, rows, strict=True))
            if not whole or len(rest) != sum(lengths) or ending not in ("", *ENDINGS):
                raise ValueError("what no state has")
            ends = np.cumsum(lengths)
            blocks, contacts, bonds = (
                rest[end - length : end] for length, end in zip(lengths, ends, strict=True)
            )
            drawn = Scene(*map(_tuples, scene))
            return State(drawn, blocks, contacts, bonds, steps, progress, ending)
        except (ValueError, TypeError) as error:
            raise InputError("state: these bytes are damaged.") from error


def block_table(blocks: bytes) -> np.ndarray:
    """`[blocks, 5]`: the rows of `State.blocks`."""
    return np.frombuffer(blocks, np.float32).reshape(-1, 5)


def _tuples(value: Any) -> Any:
    """Lists as JSON gives them back to the tuples they were."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
