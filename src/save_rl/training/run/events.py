"""TensorBoard event files, written in the caller's thread.

tensorboardX writes events in its own thread; if that dies, as on a full disk, the next event blocks
forever. Here a failed write raises at once.
"""

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from save_rl.files import append


def _record(event: Any) -> bytes:
    """Return an event in TensorFlow's record format: length, its CRC, data, its CRC."""
    from tensorboardX.record_writer import masked_crc32c

    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    crc = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
    return length + crc[0] + data + crc[1]


class EventFile:
    """The event file of one process; the first write creates it."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._path: Path | None = None

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Append scalars at a step.

        The first write also tells TensorBoard to drop earlier events from this step on, which a
        resumed run writes again.
        """
        from tensorboardX.proto import event_pb2, summary_pb2

        proto: Any = event_pb2  # protobuf makes the classes at run time
        summary: Any = summary_pb2
        now = time.time()
        events = []
        if self._path is None:
            name = f"events.out.tfevents.{now:.0f}.{socket.gethostname()}.{os.getpid()}"
            self._path = self._folder / name
            start = proto.SessionLog(status=proto.SessionLog.START)
            events += [
                proto.Event(wall_time=now, file_version="brain.Event:2"),
                proto.Event(wall_time=now, step=step, session_log=start),
            ]
        values = [summary.Summary.Value(tag=tag, simple_value=x) for tag, x in scalars.items()]
        events.append(proto.Event(wall_time=now, step=step, summary=summary.Summary(value=values)))
        append(self._path, b"".join(map(_record, events)))
