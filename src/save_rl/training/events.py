"""TensorBoard event files, written in the caller's thread.

tensorboardX hands events to a thread of its own; if that dies, as on a full disk, the next event
waits for ever. Here a failed write raises at once.
"""

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from save_rl.report.files import append


def _record(event: Any) -> bytes:
    """Return an event in TensorFlow's record format: length, its CRC, data, its CRC."""
    from tensorboardX.record_writer import masked_crc32c

    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    crc = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
    return length + crc[0] + data + crc[1]


class EventFile:
    """An event file of one sitting; the first write creates it."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._path: Path | None = None

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Append scalars at a step.

        The first write also tells TensorBoard to drop what earlier sittings wrote from this step
        on.
        """
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        now = time.time()
        events = []
        if self._path is None:
            name = f"events.out.tfevents.{now:.0f}.{socket.gethostname()}.{os.getpid()}"
            self._path = self._folder / name
            start = SessionLog(status=SessionLog.START)
            events += [
                Event(wall_time=now, file_version="brain.Event:2"),
                Event(wall_time=now, step=step, session_log=start),
            ]
        values = [Summary.Value(tag=tag, simple_value=x) for tag, x in scalars.items()]
        events.append(Event(wall_time=now, step=step, summary=Summary(value=values)))
        append(self._path, b"".join(map(_record, events)))
