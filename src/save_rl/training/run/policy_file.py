"""A policy in one small file: settings as JSON, and the parameters of one network.

The file is an `.npz` that `numpy.load` reads: `policy` has the bytes of a JSON object, the other
arrays are the parameters. Nothing in it is unpickled, and a checksum covers all of it.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from save_rl.errors import InputError
from save_rl.files import write_atomically
from save_rl.training.counters import AnyLength
from save_rl.training.run import checkpoint
from save_rl.training.run.run_directory import settings_from_json
from save_rl.training.settings import TrainSettings

FORMAT = 1
"""Version of the layout; a file with another one is refused."""
_HEADER = "policy"
_LONGEST_HEADER = 2**20  # bytes; ours have a few thousand


class Interface(NamedTuple):
    """The parts of an environment that a policy needs to know.

    observation: name, dtype and shape of its arrays; the name is '' if there is only one. masked:
    actions can be forbidden. num_states: of an environment for a table, else None.
    """

    num_actions: int
    observation: tuple[tuple[str, str, tuple[int, ...]], ...]
    masked: bool
    num_states: int | None = None
    actions_per_edge: int = 1

    def example(self) -> Any:
        """Return an observation of zeros."""
        arrays = {name: np.zeros(shape, kind) for name, kind, shape in self.observation}
        return arrays[""] if set(arrays) == {""} else arrays


class Header(NamedTuple):
    """Everything in a policy file but the parameters."""

    settings: TrainSettings
    seed: int
    interface: Interface


def write_policy(path: Path, header: Header, params: Any) -> None:
    """Write a file, whole or not at all. params: of one network."""
    arrays = {name: np.asarray(x) for name, x in checkpoint.named_leaves(params).items()}
    said = {
        "format": FORMAT, "settings": asdict(header.settings), "seed": header.seed,
        "interface": header.interface._asdict(), "sha256": _digest(arrays),
    }  # fmt: skip
    said["seal"] = checkpoint.seal(said)
    text = np.frombuffer(json.dumps(said).encode(), np.uint8)
    file = io.BytesIO()
    checkpoint.write_arrays(file, {_HEADER: text, **arrays})
    write_atomically(path, file.getvalue())


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the checksum of arrays, with their names, types and shapes."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


class Damaged(ValueError):
    """A policy file is not as it was written."""


def read_header(path: Path) -> tuple[Header, str]:
    """Return what a policy file says, and the checksum of its parameters."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{_HEADER}.npy") as file:
            if npy.read_magic(file) != (1, 0):
                raise Damaged("its header is of another kind")
            shape, _, kind = npy.read_array_header_1_0(file)
            if kind != np.uint8 or len(shape) != 1 or shape[0] > _LONGEST_HEADER:
                raise Damaged("its header is of another kind")
            said = json.loads(file.read(_LONGEST_HEADER))
        if not isinstance(said, dict):
            raise Damaged("its header is not a JSON object")
        version = said.get("format")
        if version != FORMAT:
            raise InputError(
                f"load: '{path}' has format {version}, and this version of save_rl reads {FORMAT}; "
                "save it again from its run."
            )
        if said.pop("seal", None) != checkpoint.seal(said):
            raise Damaged("its checksum does not match")
        told = said["interface"]
        observation = tuple((name, kind, tuple(shape)) for name, kind, shape in told["observation"])
        interface = Interface(**{**told, "observation": observation})
        header = Header(settings_from_json(said["settings"]), said["seed"], interface)
        return header, said["sha256"]
    except (InputError, FileNotFoundError):
        raise
    except Exception as error:  # whatever is wrong with its bytes
        raise _unreadable(path, error) from error


def read_params(path: Path, template: Any, sha256: str) -> list[np.ndarray]:
    """Return the parameters in a policy file, in the order of the template's leaves."""
    expected = checkpoint.named_leaves(template)
    try:
        header = {_HEADER: AnyLength(np.uint8)}
        arrays = checkpoint.read_arrays(path, {**header, **expected})[1:]
        if _digest(dict(zip(expected, arrays, strict=True))) != sha256:
            raise Damaged("its checksum does not match")
        return arrays
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever is wrong with its bytes
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> InputError:
    known = isinstance(error, ValueError | zipfile.BadZipFile)
    why = f"{'' if known else type(error).__name__} {error}".strip().partition("\n")[0]
    return InputError(f"load: '{path}' is damaged, or no policy of save_rl ({why.rstrip('.')}).")
