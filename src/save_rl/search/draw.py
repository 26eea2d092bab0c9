"""Search trees as pictures and tables.

    result = save_rl.search.save(env, states, q_function, budget=20, return_tree=True)
    draw.save_tree("tree.svg", result.tree)

The tree grows from left to right. Each edge is labelled with its action, Q_k, visits and reward.
The most visited child continues its parent's row and the others start rows below, so labels never
overlap.
"""

import math
import os
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from save_rl.errors import InputError, require
from save_rl.files import write_atomically
from save_rl.search.nodes import Node, read_tree
from save_rl.search.raster import png
from save_rl.search.rules import Rule
from save_rl.types import Array, SearchResult


def tree_svg(
    tree: Any,
    lane: int = 0,
    *,
    rule: Rule = Rule.SAVE,
    action_names: Sequence[str] | None = None,
    max_nodes: int = 200,
    title: str = "",
) -> str:
    """Return an SVG of one lane's tree, `SearchResult.tree` of either back end.

    The size of nodes and edges shows visits, colour shows Q_k under `rule`, squares are terminal.
    Beyond `max_nodes` nodes, the least visited are left out. Tooltips show all numbers.
    """
    if tree is None:
        raise InputError("there is no tree to draw; search with return_tree=True.")
    require(max_nodes >= 1, "max_nodes", max_nodes, "at least 1")
    nodes, untried = read_tree(tree, lane, rule)
    names = _names(action_names, len(untried))
    drawn = sorted(nodes, key=lambda node: (-node.visits, node.number))[:max_nodes]
    line = _untried_line(untried, names, show_prior=rule != Rule.UCT)
    return _svg(drawn, names, line, len(nodes) - len(drawn), _printable(title))


def save_tree(path: str | os.PathLike[str], tree: Any, lane: int = 0, **options: Any) -> None:
    """Write `tree_svg` to a file, atomically, as PNG or SVG by its name."""
    kind = os.path.splitext(os.fspath(path))[1].lower()
    allowed = "a file that ends in .svg or .png"
    require(kind in (".svg", ".png"), "path", f"'{os.fspath(path)}'", allowed)
    svg = tree_svg(tree, lane, **options)
    write_atomically(path, png(svg) if kind == ".png" else svg)


def root_table(
    prior: Array,
    result: SearchResult,
    lane: int = 0,
    *,
    action_names: Sequence[str] | None = None,
    rows: int = 10,
) -> str:
    """Return a plain-text table of prior `[B, A]` and Q_MCTS at the root of one lane.

    Sorted by visits, then by Q_MCTS, highest first.
    """
    before, q_values, visits = (np.asarray(x)[lane] for x in (prior, *result[:2]))
    names = _names(action_names, len(visits))
    tried = sorted(np.flatnonzero(visits), key=lambda a: (-visits[a], -q_values[a], a))
    shown, others = tried[: max(rows, 0)], tried[max(rows, 0) :]
    decimals = _decimals([*before[shown], *q_values[shown]])
    table = [["action", "prior", "Q_MCTS", "visits"]]
    for a in shown:
        numbers = [_fixed(x[a], decimals) for x in (before, q_values)]
        table.append([_shorten(names[a]), *numbers, str(visits[a])])
    first, *widths = [max(map(_cells, column)) for column in zip(*table, strict=True)]
    lines = []
    for name, *numbers in table:
        padded = (text.rjust(width) for text, width in zip(numbers, widths, strict=True))
        lines.append("  ".join([name + " " * (first - _cells(name)), *padded]))
    if others:
        lines.append(
            f"{_count(len(others), 'more action')} tried, visits up to {visits[others[0]]}"
        )
    untried = np.where((visits == 0) & (q_values > -np.inf), before, -np.inf)
    if line := _untried_line(untried, names):
        lines.append(line)
    return "\n".join(lines)


def _names(action_names: Sequence[str] | None, num_actions: int) -> list[str]:
    """Return a name for each action, in printable characters that XML allows."""
    if action_names is None:
        return [str(a) for a in range(num_actions)]
    allowed = f"one for each of the {num_actions} actions"
    require(len(action_names) == num_actions, "action_names", f"{len(action_names)} names", allowed)
    return [_printable(name) for name in action_names]


def _printable(text: object) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))


def _cells(text: str) -> int:
    """Return the width of a text in a fixed-width font, in characters."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def _shorten(text: str, cells: int = 24) -> str:
    if _cells(text) <= cells:
        return text
    while _cells(text) >= cells:
        text = text[:-1]
    return text + "…"


def _decimals(values: Any) -> int:
    """Return the decimals to print so that these numbers differ: three digits of their range."""
    finite = [float(x) for x in values if math.isfinite(x)]
    span = max(finite, default=0.0) - min(finite, default=0.0)
    return min(max(2 - math.floor(math.log10(span)), 0), 4) if span > 0 else 2


def _fixed(x: float, decimals: int) -> str:
    return f"{x:z.{decimals}f}"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _untried_line(prior: np.ndarray, names: Sequence[str], *, show_prior: bool = True) -> str:
    """Return a line that counts the untried actions; `prior` `[A]` is -inf for all others."""
    n = int((prior > -np.inf).sum())
    if n == 0:
        return ""
    best = int(prior.argmax())
    ending = f", best prior {prior[best]:.3g} ({_shorten(names[best])})" if show_prior else ""
    return f"{_count(n, 'action')} untried{ending}"


_FONTS = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_TEXT, _SMALL, _LARGE = 11, 10, 14  # font sizes in pixels
_CELL = 0.61  # width of a character, in font sizes
_ROW, _MARGIN, _GAP, _BEND = 27, 18, 10, 6
_SMALLEST, _LARGEST = 4.0, 10.0  # radii of nodes
_INK, _FAINT, _LINE, _BEST = "#222222", "#666666", "#C6CBD2", "#D55E00"
# From low to high values: ColorBrewer's YlGnBu, safe for colour-blind readers.
_COLOURS = ((255, 255, 204), (161, 218, 180), (65, 182, 196), (44, 127, 184), (37, 52, 148))
_HEADER = ("action", "Q", "visits", "reward")


class _Place(NamedTuple):
    depth: int
    row: int


class _Column(NamedTuple):
    """The x coordinates of the nodes of one depth."""

    left: float  # of the labels
    ends: tuple[float, ...]  # of the fields of a label
    header: tuple[str, ...]
    centre: float  # of the circles
    stem: float  # where edges to the children turn down


def _svg(nodes: Sequence[Node], names: Sequence[str], untried: str, hidden: int, title: str) -> str:
    """Draw these nodes, the root first and every other one after its parent."""
    values = [node.value for node in nodes[1:] if math.isfinite(node.value)]
    low, high, decimals = min(values, default=0.0), max(values, default=0.0), _decimals(values)
    places = _places(nodes)
    labels = {node.number: _label(node, names, decimals) for node in nodes}
    columns = _columns(places, labels)

    svg = ET.Element("svg")
    paper = _add(svg, "rect", fill="#FFFFFF")
    y, ends = float(_MARGIN), [columns[-1].centre + _LARGEST]  # right edges, for the total width
    if title:
        ends.append(_text(svg, _MARGIN, y + 11, title, font_size=_LARGE, font_weight="bold"))
        y += 28
    if values:
        legend = f"Q {_fixed(low, decimals)}", _fixed(high, decimals)
        ends.append(_legend(svg, y + 6, legend, terminal=any(node.terminal for node in nodes)))
        y += 38
    for column in columns:
        _fields(svg, column, y, column.header, font_size=_SMALL, fill=_FAINT)
    y += 28

    below = y + _ROW * (1 + max(place.row for place in places.values()))
    if untried:
        root, left = columns[0], columns[0].stem + 2 * _GAP
        edge = _bent(root.centre, y, root.stem, left - 4, below)
        _add(svg, "path", d=edge, fill="none", stroke=_LINE, stroke_dasharray="2 3")
        ends.append(_text(svg, left, below + 4, untried, fill=_FAINT))
        below += _ROW
    # From the bottom up, so that the best row is on top, and nodes cover the ends of their edges.
    for node in sorted(nodes, key=lambda node: places[node.number][::-1], reverse=True):
        depth, row = places[node.number]
        at, best = (columns[depth].centre, y + row * _ROW), row == 0
        share, value = node.visits / max(nodes[0].visits, 1), node.value
        group = _add(svg, "g", data_node=node.number)
        _add(group, "title").text = _tooltip(node, names)
        if depth > 0:
            start = columns[depth - 1].centre, y + places[node.parent].row * _ROW
            edge, colour = _bent(*start, columns[depth - 1].stem, *at), _BEST if best else _LINE
            _add(group, "path", d=edge, fill="none", stroke=colour, stroke_width=1 + 4 * share)
        fill = _colour((value - low) / (high - low) if low < high else 0.5 + 0 * value)
        _mark(group, at, share, fill, square=node.terminal, best=best)
        look = {"font_weight": "bold"} if best else {}
        baseline = at[1] - 6 if depth > 0 else at[1] + 4
        _fields(group, columns[depth], baseline, labels[node.number], **look)
    if hidden:
        line = f"{_count(hidden, 'less visited node')} not drawn"
        ends.append(_text(svg, _MARGIN, below + 4, line, fill=_FAINT))
        below += _ROW

    width, height = math.ceil(max(ends) + _MARGIN), math.ceil(below - _ROW + _LARGEST + _MARGIN)
    for element in (svg, paper):
        element.attrib |= {"width": str(width), "height": str(height)}
    svg.attrib |= {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {width} {height}",
        "role": "img",
        "aria-label": title or "search tree",
        "font-family": _FONTS,
        "font-size": str(_TEXT),
        "fill": _INK,
    }
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def _label(node: Node, names: Sequence[str], decimals: int) -> tuple[str, ...]:
    """Return the fields of a label, in the order of the header."""
    if node.parent < 0:
        return "root", "", str(node.visits), ""
    reward = f"{node.reward:+.3g}" if node.reward != 0 else ""
    name, value = _shorten(names[node.action]), _fixed(node.value, decimals)
    return name, value, str(node.visits), reward


def _tooltip(node: Node, names: Sequence[str]) -> str:
    if node.parent < 0:
        return f"root\nvisits {node.visits}"
    lines = [
        f"node {node.number}, action {names[node.action]}",
        f"prior {node.prior:.6g}",
        f"Q {node.value:.6g}",
        f"visits {node.visits}",
        f"reward {node.reward:.6g}",
    ]
    return "\n".join([*lines, "ends the episode"] if node.terminal else lines)


def _places(nodes: Sequence[Node]) -> dict[int, _Place]:
    """Return depth and row of each node: the most visited child keeps the row of its parent.

    Among equally visited children the better one comes first, so row 0 is the best path.
    """
    children: dict[int, list[Node]] = {node.number: [] for node in nodes}
    for node in sorted(nodes[1:], key=lambda node: (node.visits, node.value, -node.number)):
        children[node.parent].append(node)
    places, row, previous, stack = {-1: _Place(-1, 0)}, 0, -1, [nodes[0]]
    while stack:
        node = stack.pop()
        row += node.parent != previous
        places[node.number] = _Place(places[node.parent].depth + 1, row)
        previous = node.number
        stack += children[node.number]
    del places[-1]
    return places


def _columns(places: dict[int, _Place], labels: dict[int, tuple[str, ...]]) -> list[_Column]:
    """Return a column per depth, as wide as its labels; empty fields take no space."""
    columns, left = [], float(_MARGIN)
    for depth in range(1 + max(place.depth for place in places.values())):
        inside = [labels[number] for number, place in places.items() if place.depth == depth]
        header, ends, end = [], [], left
        for name, texts in zip(_HEADER, zip(*inside, strict=True), strict=True):
            used = any(texts)
            header.append(name if used and (depth > 0 or name != "action") else "")
            if used:
                end += _GAP * (end > left) + max(map(_width, (*texts, header[-1])))
            ends.append(end)
        centre = end + _GAP + _LARGEST
        columns.append(_Column(left, tuple(ends), tuple(header), centre, centre + 2 * _GAP))
        left = columns[-1].stem + 2 * _GAP
    return columns


def _legend(svg: ET.Element, y: float, values: tuple[str, str], *, terminal: bool) -> float:
    """Draw one line that explains colours, sizes and shapes; return its right end."""
    look, gap, skip = {"font_size": _SMALL, "fill": _FAINT}, 6, 24
    x = _text(svg, _MARGIN, y + 3.5, values[0], **look) + gap
    for i in range(20):
        _add(svg, "rect", x=x, y=y - 4, width=4.2, height=8, fill=_colour(i / 19))
        x += 4
    x = _text(svg, x + gap, y + 3.5, values[1], **look) + skip
    for share in (0.0, 0.3, 1.0):
        x += _radius(share)
        _mark(svg, (x, y), share, "#FFFFFF")
        x += _radius(share) + gap / 2
    x = _text(svg, x + gap / 2, y + 3.5, "visits", **look) + skip
    if terminal:
        _mark(svg, (x + gap, y), 0.2, "#FFFFFF", square=True)
        x = _text(svg, x + 3 * gap, y + 3.5, "ends the episode", **look) + skip
    _add(svg, "path", d=_bent(x, y, x, x + 24, y), stroke=_BEST, stroke_width=3)
    return _text(svg, x + 24 + gap, y + 3.5, "most visited path", **look)


def _radius(share: float) -> float:
    """Return the radius of a node with this share of all visits; the area grows linearly."""
    return math.sqrt(_SMALLEST**2 + share * (_LARGEST**2 - _SMALLEST**2))


def _mark(
    parent: ET.Element,
    at: tuple[float, float],
    share: float,
    fill: str,
    *,
    square: bool = False,
    best: bool = False,
) -> None:
    """Draw a node: a circle, or a square of the same area."""
    look = {"fill": fill, "stroke": _BEST if best else "#555555", "stroke_width": 2 if best else 1}
    (x, y), half = at, _radius(share) * math.sqrt(math.pi) / 2
    if square:
        _add(parent, "rect", x=x - half, y=y - half, width=2 * half, height=2 * half, **look)
    else:
        _add(parent, "circle", cx=x, cy=y, r=_radius(share), **look)


def _bent(x: float, y: float, stem: float, to_x: float, to_y: float) -> str:
    """Return an SVG path to the right that turns down at `stem`, with round corners."""
    if y == to_y:
        return f"M {x:.1f} {y:.1f} H {to_x:.1f}"
    down = f"H {stem - _BEND:.1f} q {_BEND} 0 {_BEND} {_BEND} V {to_y - _BEND:.1f}"
    return f"M {x:.1f} {y:.1f} {down} q 0 {_BEND} {_BEND} {_BEND} H {to_x:.1f}"


def _colour(share: float) -> str:
    """Return the colour of a value, from lowest (0) to highest (1); white if not finite."""
    if not math.isfinite(share):
        return "#FFFFFF"
    stops = np.linspace(0, 1, len(_COLOURS))
    red, green, blue = (
        round(float(np.interp(share, stops, x))) for x in zip(*_COLOURS, strict=True)
    )
    return f"#{red:02X}{green:02X}{blue:02X}"


def _width(text: str, size: int = _TEXT) -> int:
    return math.ceil(_CELL * size * _cells(text))


def _fields(at: ET.Element, column: _Column, y: float, texts: Sequence[str], **look: Any) -> None:
    """Write a label or header: the first field left-aligned, the numbers right-aligned."""
    for i, text in enumerate(texts):
        if text and i == 0:
            _text(at, column.left, y, text, **look)
        elif text:
            _text(at, column.ends[i], y, text, text_anchor="end", **look)


def _text(parent: ET.Element, x: float, y: float, text: str, **look: Any) -> float:
    """Write a text; return its right end, valid for left-aligned text."""
    _add(parent, "text", x=x, y=y, **look).text = text
    return x + _width(text, look.get("font_size", _TEXT))


def _add(parent: ET.Element, tag: str, **attributes: Any) -> ET.Element:
    """Add an element; attribute names get dashes for underscores, numbers two decimals."""
    texts = {
        name.replace("_", "-"): value if isinstance(value, str) else str(round(value, 2))
        for name, value in attributes.items()
    }
    return ET.SubElement(parent, tag, texts)
