"""The folder of a reproduction: its settings, the checks before a resume, and its provenance."""

import json
import os
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from save_rl.errors import InputError
from save_rl.files import is_empty, write_atomically


def open_folder(out: Path, experiment: str, axes: Any, resume: bool) -> None:
    """Prepare the folder of an experiment with these axes (a dataclass).

    Raises an error if the folder holds another experiment or other axes.
    """
    settings = json.loads(json.dumps({"experiment": experiment, "axes": asdict(axes)}))
    path = out / "experiment.json"
    if resume:
        try:
            before = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise InputError(f"--resume: '{out}' holds no experiment.") from None
        except ValueError:
            raise InputError(f"--resume: '{path}' can't be read.") from None
        for name, value in settings["axes"].items():
            old = before.get("axes", {}).get(name)
            if before.get("experiment") != experiment or old != value:
                raise InputError(
                    f"--resume: '{out}' was started with --{name.replace('_', '-')} {old}, not "
                    f"{value}; repeat its settings or choose another --out."
                )
        return
    if not is_empty(out):
        raise InputError(
            f"--out: '{out}' is not empty; choose another folder, or add --resume if it holds this "
            "experiment."
        )
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(settings, indent=2) + "\n")


def write_provenance(out: Path, command: str, device: str, started: float) -> None:
    """Write `provenance.json`: command, hardware and wall time of the last, completing session."""
    facts = {
        "command": command,
        "device": device,
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "wall_time_s": round(time.monotonic() - started, 1),
    }
    write_atomically(out / "provenance.json", json.dumps(facts, indent=2) + "\n")


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
