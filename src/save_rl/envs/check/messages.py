"""Findings of a check, and texts for differences, values and causes."""

import importlib
import os
import random
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from rich.console import Console

_HERE = Path(__file__).parent
# Code between a check and its simulator, and code that its author did not write.
_BETWEEN = (str(_HERE), str(_HERE.with_name("__init__.py")), str(Path(importlib.__file__).parent))
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))

# Arrays by name: the observation and mask of a state, and the results of the step that led there.
Seen = dict[str, np.ndarray]


class Finding(NamedTuple):
    """A finding about a subject; the verdict is 'ok', 'note' or 'wrong'."""

    subject: str
    verdict: str
    text: str


class Report(NamedTuple):
    """All findings, ordered by subject."""

    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """True if nothing is wrong; notes are for the author to judge."""
        return not any(finding.verdict == "wrong" for finding in self.findings)

    def print(self, console: "Console") -> None:
        """Print all findings and a summary."""
        from rich.table import Table
        from rich.text import Text

        styles = {"ok": "green", "note": "yellow", "wrong": "bold red"}
        table = Table.grid(padding=(0, 2, 0, 0))
        for subject, verdict, text in self.findings:
            table.add_row(Text(verdict, styles[verdict]), Text(subject), Text(text))
        console.print(table)
        wrong = sum(finding.verdict == "wrong" for finding in self.findings)
        things = {0: "Nothing is", 1: "One thing is"}.get(wrong, f"{wrong} things are")
        style = styles["wrong" if wrong else "ok"]
        console.print(Text(f"{things} wrong with this simulator.", style))


def difference(now: Seen, before: Seen) -> str:
    """Return the first difference as text, or ''; entries that only one has are ignored."""
    for name in (name for name in before if name in now):
        one, other = now[name], before[name]
        if kind(one) != kind(other):
            return f"{name} is {kind(one)} instead of {kind(other)}"
        if np.array_equal(one, other):
            continue
        places = np.argwhere((one != other) & ((one == one) | (other == other)))  # but for NaN
        for index in places[:1].tolist():
            more = f" ({len(places)} of {one.size} differ)" if one.size > 1 else ""
            here = tuple(index)
            return f"{entry(name, index)} is {one[here]} instead of {other[here]}{more}"
    return ""


def entry(name: str, index: list[int]) -> str:
    return f"{name}{index}" if index else name


def kind(array: Any) -> str:
    return f"{array.dtype} {list(array.shape)}"


def listed(kinds: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in kinds.items())


def shown(value: Any) -> str:
    """Return a short description of a value."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array {kind(value)}" if value.shape else f"{value.dtype} {value}"
    text = repr(value)
    return text if len(text) <= 40 else f"something of type {type(value).__name__}"


def cause(error: BaseException) -> str:
    """Return an exception's type, first line, and the line of the author's code that raised it."""
    first = next(iter(str(error).splitlines()), "")
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    trace = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in trace if not frame.filename.startswith((*_BETWEEN, "<"))]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    for frame in [*own[-1:], *frames[:1]]:
        path = frame.filename
        with suppress(FileNotFoundError):  # a folder that was deleted
            path = path.removeprefix(os.getcwd() + os.sep)
        return f"{text} ({path}:{frame.lineno})"
    return text


def parts(name: str, value: Any, depth: int = 6) -> Iterator[tuple[str, Any]]:
    """Yield the plain values inside an object, with their names."""
    if (drawn := _drawn(value)) is not None:
        yield name, drawn
    elif hasattr(value, "__array__"):
        yield name, np.asarray(value).tobytes()
    elif value is None or isinstance(value, int | float | complex | str | bytes | bytearray | set):
        yield name, repr(value)
    elif depth and not isinstance(value, type | ModuleType):
        for inner, part in _inside(value).items():
            yield from parts(name + inner, part, depth - 1)


def generators(name: str, value: Any, depth: int = 6) -> Iterator[tuple[str, str]]:
    """Yield the names and states of the random generators inside an object."""
    if (drawn := _drawn(value)) is not None:
        yield name, drawn
    elif (
        depth
        and not isinstance(value, type | ModuleType | str | bytes)
        and not hasattr(value, "__array__")
    ):
        for inner, part in _inside(value).items():
            yield from generators(name + inner, part, depth - 1)


def _drawn(value: Any) -> str | None:
    """Return the state of a random generator as text; None for anything else."""
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState | random.Random):
        return repr(value.__getstate__())
    return None


def _inside(value: Any) -> dict[str, Any]:
    """Return the parts directly inside an object, by their names."""
    inside: dict[str, Any] = {}
    if isinstance(value, Mapping):
        inside = {f"[{key!r}]": part for key, part in value.items()}
    elif isinstance(value, Iterable) and hasattr(value, "__len__"):
        names = getattr(value, "_fields", None)
        inside = {f".{names[i]}" if names else f"[{i}]": x for i, x in enumerate(value)}
    slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
    attributes = {slot: getattr(value, slot, None) for slot in slots}
    attributes |= getattr(value, "__dict__", {})
    inside |= {f".{key}": part for key, part in attributes.items() if not callable(part)}
    return inside
