"""TensorBoard gets every number, and a full disk ends a run at once."""

import struct
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from save_rl import cli
from save_rl.files import append
from save_rl.training.run import checkpoint, events


def read_events(path: Path) -> list[Event]:
    """Read a file of records: 8 bytes of length, 4 of CRC, the data, 4 of CRC."""
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found


def test_scalars_come_after_a_version_and_the_start_of_the_sitting(tmp_path):
    file = events.EventFile(tmp_path)
    file.write({"loss/seed0": 0.5, "return/seed0": -2.0}, 7)
    file.write({"loss/seed0": 0.25}, 9)
    (path,) = tmp_path.glob("events.out.tfevents.*")
    version, start, *rest = read_events(path)
    assert version.file_version == "brain.Event:2"
    assert (start.step, start.session_log.status) == (7, SessionLog.START)
    assert [(e.step, {v.tag: v.simple_value for v in e.summary.value}) for e in rest] == [
        (7, {"loss/seed0": 0.5, "return/seed0": -2.0}),
        (9, {"loss/seed0": 0.25}),
    ]


def test_the_checksum_of_a_record_is_the_masked_crc32c(tmp_path):
    """CRC-32C of "123456789" is 0xE3069283; rotated right by 15 and raised, it is 0xC78AB0E5."""

    class Digits:
        def SerializeToString(self):
            return b"123456789"

    assert events._record(Digits())[-4:] == struct.pack("<I", 0xC78AB0E5)


@pytest.mark.parametrize(
    "full",
    [
        "save_rl.training.run.events",
        pytest.param("save_rl.training.run.metrics_file", marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_ends_a_run_at_once_with_one_sentence(tmp_path, monkeypatch, capsys, full):
    """Events, and then the lines of metrics, go to a device that is always full."""
    out = tmp_path / "run"
    monkeypatch.setattr(f"{full}.append", lambda path, data: append(Path("/dev/full"), data))
    options = ["--episodes", "20", "--lanes", "4", "--chunk", "4", "--agent", "q-learning"]
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "tests.training.environments:never_nan", *options, "--out", str(out)])
    assert stop.value.code == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == "save-rl: can't read or write '/dev/full': No space left on device."
    assert checkpoint.numbers(out / "checkpoints") == [0]
