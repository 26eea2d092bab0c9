"""`save-rl reproduce`: a command per experiment, made from its description."""

import functools
import sys
from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_type_hints

import tyro

from save_rl.cli import SUMMARIES

SHARED: dict[str, tuple[Any, Any]] = {
    "scale": (str, "small"),
    "out": (Path, Path()),
    "resume": (bool, False),
    "device": (str, "auto"),
    "workers": (int, -1),
    "jobs": (int, 1),
    "light_checkpoints": (bool, False),
}
"""Types and defaults of the options that override no axis; `out` is runs/EXPERIMENT."""


def _command_line() -> str:
    return " ".join(["save-rl", *sys.argv[1:]])


@functools.cache
def experiment_command(name: str) -> Any:
    """Return the command of an experiment: a dataclass with a field per option.

    An option that overrides an axis has the type of that axis, and None as default; a flag has the
    value that all scales share.
    """
    from save_rl.experiments.experiment import find_experiment, reproduce

    experiment = find_experiment(name)
    (axes,) = {type(axes) for axes in experiment.scales.values()}
    types = get_type_hints(axes)

    def option(named: str, text: str) -> tuple[str, Any, Any]:
        if named in SHARED:
            kind, default = SHARED[named]
        else:
            kind, default = types[named] | None, None
            if types[named] is bool:
                (default,) = {getattr(axes, named) for axes in experiment.scales.values()}
                kind = bool
        default = Path("runs") / name if named == "out" else default
        return named, Annotated[kind, tyro.conf.arg(help=text)], default

    def run(self: Any) -> None:
        from rich.console import Console

        from save_rl.report.claims import print_claims

        values = {one.name: getattr(self, one.name) for one in fields(self)}
        given = {named: value for named, value in values.items() if value is not None}
        shared = {named: given.pop(named) for named in SHARED if named in given}
        claims = reproduce(experiment, overrides=given, command=_command_line(), **shared)
        print_claims(claims, Console())
        print(f"results.csv, figure.png and claims.json are in {self.out}")

    return make_dataclass(
        name.title().replace("-", ""),
        [option(named, text) for named, text in experiment.options.items()],
        namespace={"__doc__": experiment.description, "run": run},
        frozen=True,
    )


def reproduce_command() -> Any:
    """Return the command `reproduce`: a dataclass whose field is the command of an experiment.

    Imports the files of all experiments.
    """
    from save_rl.experiments import EXPERIMENTS

    named = tyro.conf.subcommand
    commands = tuple(
        Annotated[experiment_command(name), named(name, prefix_name=False)] for name in EXPERIMENTS
    )
    return make_dataclass(
        "Reproduce",
        [("experiment", Union[commands])],  # noqa: UP007
        namespace={"__doc__": SUMMARIES["reproduce"], "run": lambda self: self.experiment.run()},
        frozen=True,
    )
