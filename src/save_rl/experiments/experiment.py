"""A description of an experiment, and the reproduction that all experiments share."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from save_rl.errors import require
from save_rl.experiments import EXPERIMENTS, SCALES
from save_rl.experiments.folder import open_folder, write_provenance
from save_rl.report.claims import Claim, write_claims
from save_rl.report.results import Row, write_results


class Axes(Protocol):
    """The axes of an experiment: a dataclass that raises an error for impossible values."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def check(self) -> None: ...


A = TypeVar("A", bound=Axes)


class Resources(NamedTuple):
    """Resources of an experiment. workers: processes for simulators. jobs: runs at a time.
    light_checkpoints: see `loop.train`."""

    device: str
    workers: int = -1
    jobs: int = 1
    light_checkpoints: bool = False


class Work(NamedTuple):
    """The work of an experiment, checked but not begun.

    device: its name, for `provenance.json`. make: makes what is missing and returns all rows; it
    may write `results.csv` on the way.
    """

    device: str
    make: Callable[[], list[Row]]


@dataclass(frozen=True)
class Experiment(Generic[A]):
    """An experiment of the paper: all that is its own.

    description: the head of its help page. scales: its axes by scale. options: its options on the
    command line, in that order, with their help; all that `reproduce` does not take itself override
    axes. work: given axes, folder and resources, before the folder is made. claims: from rows and
    axes. figures: draws rows into a folder, given axes, folder and device. settle: returns the axes
    in force, given the axes and those overridden.
    """

    name: str
    description: str
    scales: Mapping[str, A]
    options: Mapping[str, str]
    work: Callable[[A, Path, Resources], Work]
    claims: Callable[[Sequence[Row], A], list[Claim]]
    figures: Callable[[Sequence[Row], A, Path, str], None]
    settle: Callable[[A, Mapping[str, Any]], A] = lambda axes, _: axes


def find_experiment(name: str) -> Experiment[Any]:
    """Return an experiment by its name; imports its file."""
    module, attribute = EXPERIMENTS[name].source.split(":")
    return getattr(import_module(f"save_rl.experiments.{module}"), attribute)


def folder_options(scales: str) -> dict[str, str]:
    """Return the options of every experiment, with their help; `scales` explains the scales."""
    return {
        "scale": scales,
        "out": "Folder for the results.",
        "resume": "Continue the experiment in --out.",
    }


def reproduce(
    experiment: Experiment[A],
    scale: str,
    overrides: Mapping[str, Any],
    out: Path,
    resume: bool,
    command: str,
    device: str = "auto",
    workers: int = -1,
    jobs: int = 1,
    light_checkpoints: bool = False,
) -> list[Claim]:
    """Check everything, then do the work that is missing and write the files; return the claims.

    overrides: of the scale's axes, by name. command: for `provenance.json`.
    """
    require(scale in SCALES, "--scale", repr(scale), "'smoke', 'small' or 'paper'")
    axes = experiment.settle(replace(experiment.scales[scale], **overrides), overrides)
    axes.check()
    work = experiment.work(axes, out, Resources(device, workers, jobs, light_checkpoints))
    open_folder(out, experiment.name, axes, resume)
    started = time.monotonic()
    rows = work.make()
    write_results(out / "results.csv", rows)
    claims = experiment.claims(rows, axes)
    write_claims(out / "claims.json", claims)
    experiment.figures(rows, axes, out, device)
    write_provenance(out, command, work.device, started)
    return claims
