"""The command line: what was asked, checked and handed on. Nothing heavy before a command runs."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from save_rl.errors import InputError, Interrupted, RunError, unknown_name

__all__ = ["main"]


def _stop(message: object, code: int) -> NoReturn:
    print(f"save-rl: {message}", file=sys.stderr, flush=True)
    raise SystemExit(code)


def _check_names(arguments: Sequence[str], commands: Sequence[str]) -> None:
    """Answer a misspelt command or experiment with the nearest one."""
    from save_rl.experiments import EXPERIMENTS

    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        raise unknown_name("command", arguments[0], commands, "COMMAND")
    for command, known in (
        ("reproduce", list(EXPERIMENTS)),
        ("bench", ["search", "physics", "atari", "train"]),
    ):
        asked = arguments[1] if len(arguments) > 1 and arguments[0] == command else "-"
        if not asked.startswith("-") and asked not in known:
            what = "experiment" if command == "reproduce" else "benchmark"
            raise unknown_name(what, asked, known, command.upper())


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `save-rl`."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if os.getcwd() not in sys.path:  # package.module:factory of the folder one stands in
        sys.path.insert(0, os.getcwd())
    from save_rl.cli.commands import COMMANDS, parse

    try:
        _check_names(arguments, list(COMMANDS))
        parse(arguments).run()
    except InputError as error:
        _stop(error, 2)
    except RunError as error:
        _stop(error, 1)
    except Interrupted as stop:
        _stop(stop, stop.code)
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        where = f" '{error.filename}'" if error.filename else ""
        _stop(f"can't write or read{where}: {error.strerror or error}.", 1)
    except KeyboardInterrupt:
        _stop("interrupted.", 130)
