"""Errors that the command line reports in one sentence, without a traceback."""

import math
from collections.abc import Iterable


class InputError(ValueError):
    """An impossible request; raised before any work. Exit code 2."""


class MissingExtra(InputError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""


class RunError(RuntimeError):
    """A run can't continue (a full disk, a loss that is not finite). Exit code 1."""


class Interrupted(Exception):  # not an error: the user asked
    """Work was stopped on request and is saved; `code` is the exit code."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


class StopTraining(Exception):  # not an error: a callback asked
    """Raised by a callback to end training: the run is saved and complete."""


def unknown_name(what: str, name: str, known: Iterable[str], option: str) -> InputError:
    """Return an error with the option, the value, all valid names and the nearest one."""
    import difflib

    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return InputError(f"{option}: there is no {what} '{name}'; known: {', '.join(known)}.{hint}")


def require(condition: bool, option: str, value: object, allowed: str) -> None:
    """Raise InputError unless the condition holds; `allowed` completes "it must be ..."."""
    if not condition:
        raise InputError(f"{option}: {value} is not possible; it must be {allowed}.")


MOST = 2**31 - 1
"""Largest whole number that an option takes: compiled programs count in 32 bits."""
# Other limits of some options, in all commands. Larger values would never finish, or need more
# processes or memory than any machine has; steps are counted in 64 bits.
_LARGEST = {
    "--budget": 10**6, "--budgets": 10**6, "--test-budget": 10**6, "--uct-budget": 10**6,
    "--workers": 1024, "--jobs": 1024, "--seeds": 10**4, "--chunk": 10**5, "--replay-ratio": 10**4,
    "--test-episodes": 10**6, "--score-episodes": 10**6, "--lanes": 10**6, "--batch": 10**6,
    "--step-timeout": 10**6, "--steps": 10**13, "--frames": 10**13, "--r2d2.replay.batch": 10**5,
    "--r2d2.replay.samples-per-insert": 10**4, "--r2d2.replay.threads": 1024,
    "--r2d2.replay.capacity-bytes": 2**50, "--r2d2.sequences.burn-in": 10**5,
    "--r2d2.sequences.train": 10**5, "--r2d2.sequences.n": 10**5, "--cluster.actors": 10**5,
}  # fmt: skip


def require_numbers(options: Iterable[tuple[str, object]]) -> None:
    """Refuse numbers that are not finite or too large, among named options."""
    for option, value in options:
        for number in value if isinstance(value, tuple | list) else (value,):
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            largest = _LARGEST.get(option, MOST)
            if isinstance(number, float):
                require(math.isfinite(number), option, number, "a finite number")
                largest = _LARGEST.get(option, 1e30)
            require(number <= largest, option, number, f"at most {largest}")
            require(number >= -largest, option, number, f"at least {-largest}")
