"""Descriptions of all environments of a suite, without playing them."""

import importlib
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from save_rl.envs import make
from save_rl.envs.suites.common import key_shape
from save_rl.errors import InputError, MissingExtra


class Description(NamedTuple):
    """An environment of a suite; `refused` says why it can't be played, or is empty."""

    name: str
    actions: int | None = None
    observation: str = ""
    chance: bool = False
    masks: bool = False
    limit: int | None = None
    note: str = ""
    refused: str = ""


def describe(suite: str) -> Iterator[Description]:
    """Yield the environments of a suite by their names; raise MissingExtra without it."""
    family: Any = importlib.import_module(f"save_rl.envs.suites.{suite}")
    for id in family.known_ids():
        if id in family.NEEDS_DOWNLOAD:
            yield Description(f"{suite}/{id}", note=family.NEEDS_DOWNLOAD[id])
        else:
            yield _describe(f"{suite}/{id}")


def _describe(name: str) -> Description:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the suite, about itself
            env: Any = make(name)
            seen = jax.eval_shape(lambda key: env.observe(env.reset(key)), key_shape())
    except MissingExtra:
        raise
    except InputError as error:
        why = str(error).removeprefix(f"ENV: '{name}' ").rstrip(".")
        return Description(name, refused=why)
    return Description(
        name, env.num_actions, _shapes(seen), env.stochastic, hasattr(env, "action_mask"),
        env.time_limit,
    )  # fmt: skip


def _shapes(seen: Any) -> str:
    """Return shape and type of an observation, or of its parts by name."""
    if isinstance(seen, dict):
        return ", ".join(f"{name} {_shapes(part)}" for name, part in seen.items())
    return f"{seen.dtype}{list(seen.shape)}" if seen.shape else str(seen.dtype)


def table(suite: str) -> Iterator[str]:
    """Yield the lines of a list of a suite's environments, those that are refused last."""
    refused = []
    for one in describe(suite):
        if one.refused:
            refused.append(f"{one.name:<40}  refused: it {one.refused}")
        elif one.actions is None:
            yield f"{one.name:<40}  {one.note}"
        else:
            masks, chance = " (masked)" * one.masks, "" if one.chance else "no "
            limit = f"; limit {one.limit:,} steps" if one.limit else ""
            text = f"{one.actions:>5,} actions{masks}; {chance}chance{limit}"
            yield f"{one.name:<40}  {text}; sees {one.observation}"
    yield from refused
