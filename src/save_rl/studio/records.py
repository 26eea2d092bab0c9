"""Decisions and states as the episode page shows them: numbers, names, pictures.

A decision becomes JSON: the best actions with Qθ, Q_MCTS and visits, and the tree as a list of
nodes, parents first.
"""

import io
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from save_rl.search.nodes import Node
from save_rl.types import Simulator, State

SHOWN_ACTIONS = 12
MOST_NODES = 3000  # of a tree that a browser gets; the most visited ones
_LONGEST_TEXT = 2000
_MOST_NUMBERS = 64  # of an observation
_OFFSET_DIGITS = 2
_ADDRESS = re.compile(r" object at 0x|<\w+<")  # objects, and environments of Gymnasium, say no more


class ShownDecision(NamedTuple):
    """A search and the action it led to; arrays `[A]`.

    prior: Qθ, or the policy of agents with one; -inf where masked; None for agents without.
    values: Q_MCTS where `visits` is above 0. nodes: of the tree, parents first. luck: of the steps
    that led to them, in the order of their numbers; empty without chance.
    """

    action: int
    prior: np.ndarray | None
    values: np.ndarray
    visits: np.ndarray
    nodes: Sequence[Node]
    luck: Sequence[int | None] = ()


def decision_record(sim: Simulator, state: State, found: ShownDecision) -> dict[str, Any]:
    """Return a decision as JSON; `sim` and `state` name its actions."""
    shown = _best_actions(found)
    root, *others = found.nodes
    others.sort(key=lambda node: (-node.visits, node.number))  # parents stay before children
    nodes = [root, *others[: MOST_NODES - 1]]
    names = action_names(sim, state, {*shown, *(node.action for node in nodes[1:])})
    prior = found.prior
    allowed = len(found.visits) if prior is None else int((prior > -np.inf).sum())
    return {
        "chosen": found.action,
        "tried": int((found.visits > 0).sum()),
        "allowed": allowed,
        "actions": [
            {
                "action": a,
                "prior": _number(prior[a]) if prior is not None else None,
                "value": _number(found.values[a]) if found.visits[a] > 0 else None,
                "visits": int(found.visits[a]),
            }
            for a in shown
        ],
        "names": {str(a): name for a, name in names.items()},
        "tree": _tree(nodes),
        "luck": _luck(nodes, found),
        "hidden": len(found.nodes) - len(nodes),
    }


def _best_actions(found: ShownDecision) -> list[int]:
    """Return the actions to show: tried ones by value, then the others by Qθ; always the chosen."""
    prior = np.zeros(len(found.visits)) if found.prior is None else found.prior
    tried = found.visits > 0
    rank = np.lexsort((np.where(tried, found.values, prior), tried))[::-1]
    rank = [int(a) for a in rank[: SHOWN_ACTIONS + 1] if tried[a] or prior[a] > -np.inf]
    best = rank[:SHOWN_ACTIONS]
    return best if found.action in best else [*best[: SHOWN_ACTIONS - 1], found.action]


def _tree(nodes: Sequence[Node]) -> list[list[Any]]:
    """Return rows `[parent's row, action, visits, value, reward, prior, terminal]`."""
    row_of = {node.number: row for row, node in enumerate(nodes)}
    return [
        [
            row_of.get(node.parent, -1), node.action, node.visits, _number(node.value),
            _number(node.reward), _number(node.prior), int(node.terminal),
        ]
        for node in nodes
    ]  # fmt: skip


def _luck(nodes: Sequence[Node], found: ShownDecision) -> list[int | None] | None:
    """Return the luck of each row, None for the root; None without chance.

    A search makes a step for every new node, and numbers its nodes in this order.
    """
    if not any(luck is not None for luck in found.luck):
        return None
    numbers = sorted(node.number for node in found.nodes[1:])
    luck_of = dict(zip(numbers, found.luck, strict=False))
    return [luck_of.get(node.number) for node in nodes]


def _number(x: Any) -> float | None:
    """Return a number that JSON has; None for others."""
    return float(f"{float(x):.6g}") if math.isfinite(x) else None


def action_names(sim: Any, state: State, actions: set[int]) -> dict[int, str]:
    """Return words for actions: those of the simulator, or placements in Construction."""
    listed = getattr(sim, "action_names", None)
    if listed is not None:
        return {a: str(listed[a]) for a in actions}
    if hasattr(sim, "decode") and hasattr(state, "scene"):
        return {a: _placement(sim, state, a) for a in actions}
    return {a: f"action {a}" for a in actions}


def _placement(sim: Any, state: Any, action: int) -> str:
    """Return words for a placement: `block 3 on floor, −0.31, sticky`."""
    from save_rl.envs.construction.graph import OFFSETS

    sender, receiver, offset, sticky = sim.decode(action)
    words = f"{_object(state, sender)} on {_object(state, receiver)}"
    shift = f"{OFFSETS[offset]:+.{_OFFSET_DIGITS}f}".replace("-", "−")
    return f"{words}, {shift}{', sticky' if sticky else ''}"


def _object(state: Any, node: int) -> str:
    """Return words for a node of Construction's graph."""
    from save_rl.envs.construction.graph import AVAILABLE

    scene, left = state.scene, node - AVAILABLE
    if left < 0:
        return f"block {node + 1}"
    marble = scene.marble is not None
    for name, count in (
        ("obstacle", len(scene.obstacles)), ("target", len(scene.targets)), ("marble", int(marble)),
        ("floor", 1),
    ):  # fmt: skip
        if left < count:
            return name if name in ("marble", "floor") else f"{name} {left + 1}"
        left -= count
    return f"placed {left + 1}"


def picture(sim: Any, state: State) -> bytes:
    """Return a PNG of a state; empty if the simulator draws none."""
    draw = getattr(sim, "render", None)
    if draw is None:
        return b""
    from PIL import Image

    pixels = np.asarray(draw(state))
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (3, 4):
        raise ValueError(
            "render must return an image, uint8 [height, width, 3], and returned "
            f"{pixels.dtype} {list(pixels.shape)}."
        )
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=3)
    return file.getvalue()


def no_picture(error: BaseException) -> str:
    """Return in one sentence why a state could not be drawn, and what to install for it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and cause.name == "pygame":
            why = "pygame is not installed; get it with: pip install pygame"
            break
        cause = cause.__cause__
    else:
        why = str(error).splitlines()[-1]
    return f"There is no picture: {why}"


def words(sim: Simulator, state: State) -> str:
    """Return a state as text, for simulators without pictures: itself, or what it shows."""
    text = str(state)
    if not text.strip() or _ADDRESS.search(text):
        shown = sim.observe(state)
        parts = shown.values() if isinstance(shown, dict) else [shown]
        seen = np.concatenate([np.asarray(part).ravel() for part in parts])
        numbers = ", ".join(f"{x:.4g}" for x in seen[:_MOST_NUMBERS].tolist())
        text = f"observation: {numbers}" + (", …" if len(seen) > _MOST_NUMBERS else "")
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
