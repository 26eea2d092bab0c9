"""Settings by their command-line names, and whether their values have the right types."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import lru_cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal, cast, get_args, get_origin, get_type_hints

from save_rl.errors import require


def named_options(settings: Any, prefix: str = "--") -> Iterator[tuple[str, Any]]:
    """Yield settings by their command-line names; nested ones as `--r2d2.network.profile`."""
    for name, value in _own_options(settings, prefix):
        if is_dataclass(value):
            yield from named_options(value, f"{name}.")
        else:
            yield name, value


def _own_options(settings: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the fields of one settings class by their command-line names."""
    names = _renamed(type(settings))
    for one in fields(settings):
        yield prefix + names.get(one.name, one.name.replace("_", "-")), getattr(settings, one.name)


@lru_cache
def _renamed(kind: type) -> dict[str, str]:
    """Return the names that fields of a settings class state for the command line."""
    hints = get_type_hints(kind, include_extras=True)
    stated = {
        name: [getattr(extra, "name", None) for extra in hint.__metadata__]
        for name, hint in hints.items()
        if get_origin(hint) is Annotated
    }
    return {field: name for field, names in stated.items() for name in names if name}


_KINDS = {
    int: (Integral, "a whole number"), float: (Real, "a number"), str: (str, "text"),
    bool: (bool, "true or false"), dict: (dict, "a table of names and values"),
}  # fmt: skip


def check_kinds(settings: Any, prefix: str = "--") -> None:
    """Refuse settings of the wrong type, given from Python or a file."""
    hints = get_type_hints(type(settings))
    for one, (option, value) in zip(fields(settings), _own_options(settings, prefix), strict=True):
        wanted = kind_problem(hints[one.name], value)
        if is_dataclass(value) and not wanted:
            check_kinds(value, f"{option}.")
            continue
        name = one.name if is_dataclass(hints[one.name]) else option
        require(not wanted, name, repr(value)[:60], wanted)


def kind_problem(hint: Any, value: Any) -> str:
    """Return what a value of this type must be; '' if it fits."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "" if value in inside else f"one of {', '.join(map(str, inside))}"
    if origin is tuple:
        if not isinstance(value, tuple):
            return "several numbers"
        return next(filter(None, (kind_problem(inside[0], one) for one in value)), "")
    if type(None) in inside:
        (hint,) = (kind for kind in inside if kind is not type(None))
        return "" if value is None else kind_problem(hint, value)
    if is_dataclass(hint):
        return "" if isinstance(value, cast(type, hint)) else f"a {cast(type, hint).__name__}"
    kind, name = _KINDS.get(origin or hint, (object, ""))
    wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind in (Integral, Real))
    return name if wrong else ""
