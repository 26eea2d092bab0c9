"""The command line. Imports are deferred until a command needs them."""

import contextlib
import io
import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]

SUMMARIES = {
    "train": "Train an agent and write a run directory.",
    "evaluate": "Test a run at several search budgets; writes evaluation.csv into its folder.",
    "compare": "Compare runs: a table over seeds, rank tests, and their curves in one picture.",
    "reproduce": "Reproduce a figure of the paper: results.csv, figure.png and claims.json.",
    "bench": "Measure throughput on this machine.",
    "watch": "Play one episode of an environment or of a run and write it as a GIF.",
    "studio": "Look at runs, episodes and experiments in the browser; changes none of them.",
    "check": "Test whether a simulator is pure and correct, and report what is wrong.",
    "demo": "Run SAVE on Tightrope for a minute: live progress, a table, a picture.",
    "envs": "List the environments, or show scenes of one.",
    "agents": "List the agents.",
    "experiments": "List the experiments.",
}
"""The commands with their lines on the help page."""


def _stop(message: object, code: int) -> NoReturn:
    with contextlib.suppress(OSError):  # a closed terminal
        print(f"save-rl: {message}", file=sys.stderr, flush=True)
    raise SystemExit(code)


def _print_help() -> None:
    width = max(map(len, SUMMARIES))
    print("usage: save-rl [-h] [--version] COMMAND [OPTIONS]\n")
    print("Search with Amortized Value Estimates, for small search budgets.\n\ncommands:")
    for name, summary in SUMMARIES.items():
        print(f"  {name:<{width}}  {summary}")
    print("\nsave-rl COMMAND --help explains a command and its options.")


def _check_names(arguments: Sequence[str]) -> None:
    """Refuse a misspelt command, experiment or benchmark, and name the nearest one."""
    from save_rl.errors import InputError, unknown_name

    if not arguments or arguments[0].startswith("-"):
        given = f"'{arguments[0]}' is not a command" if arguments else "there is none"
        raise InputError(f"COMMAND: {given}; known: {', '.join(sorted(SUMMARIES))}.")
    if arguments[0] not in SUMMARIES:
        raise unknown_name("command", arguments[0], SUMMARIES, "COMMAND")
    asked = arguments[1] if len(arguments) > 1 else "-"
    if asked.startswith("-"):
        return
    if arguments[0] == "reproduce":
        from save_rl.experiments import EXPERIMENTS

        if asked not in EXPERIMENTS:
            raise unknown_name("experiment", asked, EXPERIMENTS, "REPRODUCE")
    known = ("search", "physics", "atari", "train")
    if arguments[0] == "bench" and asked not in known:
        raise unknown_name("benchmark", asked, known, "BENCH")


def _run(arguments: Sequence[str]) -> None:
    import os

    from save_rl.errors import InputError, Interrupted, RunError

    try:
        _check_names(arguments)
        from save_rl.cli.commands import parse

        parse(arguments).run()
    except InputError as error:
        _stop(" ".join(str(error).split("\n")), 2)
    except RunError as error:
        _stop(error, 1)
    except Interrupted as stop:
        _stop(stop, stop.code)
    except BrokenPipeError:  # the reader of our output is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        where = f" '{error.filename}'" if error.filename else ""
        _stop(f"can't read or write{where}: {error.strerror or error}.", 1)
    except (MemoryError, RuntimeError) as error:  # XLA's error is a RuntimeError
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            _stop("out of memory; use a smaller --lanes, --budget or --replay.", 1)
        raise


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; the entry point of `save-rl`."""
    try:
        arguments = list(sys.argv[1:] if arguments is None else arguments)
        for stream in (sys.stdout, sys.stderr):  # file names may be invalid UTF-8
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        if arguments[:1] == ["--version"]:
            print(f"save-rl {sys.modules['save_rl'].__version__}")
            raise SystemExit(0)
        if arguments and arguments[0] in ("-h", "--help"):
            _print_help()
            raise SystemExit(0)
        _run(arguments)
    except KeyboardInterrupt:
        _stop("interrupted.", 130)
