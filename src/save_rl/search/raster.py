"""Pictures of search trees as PNG: the few elements of SVG that `search.draw` uses, by Matplotlib.

Elements are `rect`, `circle`, `path` (commands M, H, V and q), `text` and groups of these.
"""

import io
import re
import xml.etree.ElementTree as ET
from typing import Any

_DPI = 72.0  # one point is one unit of the SVG
_SCALE = 2.0  # pixels per unit, fewer of a large picture
_LARGEST = 2**14  # pixels on a side; Matplotlib draws at most 2**16
_FONTS = ["DejaVu Sans Mono", "monospace"]
_KNOWN = ("svg", "g", "rect", "circle", "path", "text", "title")


def png(svg: str) -> bytes:
    """Return a picture of `draw.tree_svg` as the bytes of a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    root = ET.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    dpi = _DPI * min(_SCALE, _LARGEST / max(width, height))
    figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=dpi)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    _draw(axes, root, {})
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi)
    return file.getvalue()


def _draw(axes: Any, element: ET.Element, above: dict[str, str]) -> None:
    """Draw an element and those in it; above: attributes that they inherit."""
    from matplotlib.patches import Circle, PathPatch, Rectangle
    from matplotlib.path import Path

    kind = element.tag.rpartition("}")[2]
    assert kind in _KNOWN, f"search.draw draws no {kind}"
    look = {**above, **element.attrib}

    def at(*names: str) -> list[float]:
        return [float(element.attrib.get(name, 0)) for name in names]

    if kind == "rect":
        x, y, width, height = at("x", "y", "width", "height")
        axes.add_patch(Rectangle((x, y), width, height, **_style(element.attrib)))
    elif kind == "circle":
        x, y, radius = at("cx", "cy", "r")
        axes.add_patch(Circle((x, y), radius, **_style(element.attrib)))
    elif kind == "path":
        points, codes = _outline(element.attrib["d"])
        style = {**_style(element.attrib), "facecolor": "none"}
        axes.add_patch(PathPatch(Path(points, codes), capstyle="butt", **style))
    elif kind == "text":
        x, y = at("x", "y")
        axes.text(
            x, y, (element.text or "").replace("$", r"\$"), color=look["fill"], va="baseline",
            ha="right" if look.get("text-anchor") == "end" else "left", family=_FONTS,
            fontsize=float(look["font-size"]), weight=look.get("font-weight", "normal"),
        )  # fmt: skip
    if kind in ("svg", "g"):
        inherited = ("fill", "font-size", "font-weight", "text-anchor")
        for inside in element:
            _draw(axes, inside, {name: look[name] for name in inherited if name in look})


def _style(attributes: dict[str, str]) -> dict[str, Any]:
    """Return the look of a shape for Matplotlib."""
    dashes = [float(x) for x in attributes.get("stroke-dasharray", "").split()]
    return {
        "facecolor": attributes.get("fill", "none"),
        "edgecolor": attributes.get("stroke", "none"),
        "linewidth": float(attributes.get("stroke-width", 1)),
        "linestyle": (0, dashes) if dashes else "solid",
    }


def _outline(d: str) -> tuple[list[tuple[float, float]], list[int]]:
    """Return the points and codes of a path."""
    words = re.findall(r"[MHVq]|-?[\d.]+", d)
    points: list[tuple[float, float]] = []
    codes: list[int] = []
    x = y = 0.0
    while words:
        command = words.pop(0)
        numbers = [float(words.pop(0)) for _ in range({"M": 2, "H": 1, "V": 1, "q": 4}[command])]
        if command == "q":  # relative: a control point and the end
            turn, end = (x + numbers[0], y + numbers[1]), (x + numbers[2], y + numbers[3])
            points += [turn, end]
            codes += [3, 3]  # Path.CURVE3
        else:
            end = (numbers[0] if command != "V" else x, numbers[-1] if command != "H" else y)
            points.append(end)
            codes.append(1 if command == "M" else 2)  # Path.MOVETO, Path.LINETO
        x, y = end
    return points, codes
