"""Errors that are answered with one sentence instead of a traceback."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """The caller asked for something that can't be done; nothing has been started. Exit code 2."""


class MissingExtra(InputError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class RunError(RuntimeError):
    """A run can't go on (a full disk, a loss that is not finite). Exit code 1."""


class Interrupted(Exception):  # not an error: the user asked
    """Work was saved and stopped on request; `code` is the exit code."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


def unknown_name(what: str, name: str, known: Iterable[str], option: str) -> InputError:
    """An error that names the option, the value, what is allowed and the nearest valid name."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return InputError(f"{option}: there is no {what} '{name}'; known: {', '.join(known)}.{hint}")


def require(condition: bool, option: str, value: object, allowed: str) -> None:
    """Refuse a setting, in a sentence that names the option, the value and what is allowed."""
    if not condition:
        raise InputError(f"{option}: {value} is not possible; it must be {allowed}.")
