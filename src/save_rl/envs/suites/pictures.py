"""Pictures of observations: grids of cells in fixed colours, and bars."""

from typing import Any

import numpy as np

SIZE = 320  # pixels of the longer side, about
# Okabe and Ito's colours for colour-blind readers, then their darker and lighter neighbours.
_COLOURS = np.array([
    (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0),
    (204, 121, 167), (150, 150, 150), (160, 32, 240), (140, 220, 140), (250, 180, 180),
    (120, 80, 40),
], np.uint8)  # fmt: skip
_EMPTY, _WALL, _RIM = (24, 24, 32), (110, 110, 120), (44, 44, 54)
_GOAL, _AGENT = (0, 158, 115), (230, 159, 0)


def draw_observation(observation: np.ndarray) -> np.ndarray:
    """Draw an observation, uint8 `[height, width, 3]`.

    `[h, w, channels]` becomes a grid with a colour per channel, the last one that is not zero on
    top; `[h, w]` of whole numbers a colour per number, of other numbers shades; anything else bars.
    """
    if observation.ndim == 3:
        return draw_channels(observation)
    if observation.ndim == 2:
        return draw_table(observation)
    return draw_bars(observation.reshape(-1))


def draw_channels(channels: np.ndarray) -> np.ndarray:
    """Draw `[h, w, channels]` with a colour per channel; later channels cover earlier ones."""
    present = np.asarray(channels) != 0
    top = present.shape[-1] - 1 - np.argmax(present[..., ::-1], -1)
    colours = np.where(present.any(-1)[..., None], _COLOURS[top % len(_COLOURS)], _EMPTY)
    return draw_cells(colours)


def draw_table(table: np.ndarray) -> np.ndarray:
    """Draw `[h, w]`: a colour per whole number above 0, or shades between the extremes."""
    whole = np.rint(table).astype(np.int64)
    if np.array_equal(whole, table):
        colours = np.where((whole > 0)[..., None], _COLOURS[(whole - 1) % len(_COLOURS)], _EMPTY)
        return draw_cells(np.where((whole < 0)[..., None], _WALL, colours))
    low, high = float(table.min()), float(table.max())
    shade = (table - low) / (high - low or 1.0)
    return draw_cells(_EMPTY + shade[..., None] * (np.array((235, 235, 235)) - _EMPTY))


def draw_powers(powers: np.ndarray) -> np.ndarray:
    """Draw a board `[h, w]` of tiles 2, 4, 8, … given as powers of two; 0 is an empty place."""
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.fromarray(draw_table(powers))
    brush, side = ImageDraw.Draw(picture), picture.width // powers.shape[1]
    font = ImageFont.load_default(side / 4)
    for (row, column), power in np.ndenumerate(powers):
        if power > 0:
            middle = (column + 0.5) * side, (row + 0.5) * side
            brush.text(middle, str(2 ** int(power)), (20, 20, 20), font, anchor="mm")
    return np.array(picture)


def draw_maze(walls: np.ndarray, place: Any, goal: Any) -> np.ndarray:
    """Draw a maze `[h, w]` with its walls in grey, the goal in green and the agent in orange."""
    colours = np.where(np.asarray(walls, bool)[..., None], _WALL, _EMPTY)
    for (row, column), colour in ((goal, _GOAL), (place, _AGENT)):
        colours[int(row), int(column)] = colour
    return draw_cells(colours)


def draw_cells(colours: np.ndarray) -> np.ndarray:
    """Enlarge cells `[h, w, 3]` to squares with thin rims."""
    height, width, _ = colours.shape
    side = max(SIZE // max(height, width), 4)
    picture = np.repeat(np.repeat(colours.astype(np.uint8), side, 0), side, 1)
    if side >= 8:
        picture[::side], picture[:, ::side] = _RIM, _RIM
    return picture


def draw_bars(numbers: np.ndarray) -> np.ndarray:
    """Draw a vector as bars from the middle, one below the other; 1 and -1 are the sides.

    A number beyond that is drawn at x / (1 + |x|) of its way to the side, so none leaves the
    picture.
    """
    numbers = np.asarray(numbers, float)[:64]
    height = max(SIZE // 2 // max(len(numbers), 1), 4)
    picture = np.full((height * max(len(numbers), 1), SIZE, 3), _EMPTY, np.uint8)
    middle = SIZE // 2
    for i, number in enumerate(numbers):
        end = middle + round(number / (1 + abs(number)) * (middle - 1))
        low, high = sorted((middle, end))
        colour = _COLOURS[i % len(_COLOURS)]
        picture[i * height + 1 : (i + 1) * height - 1, low : high + 1] = colour
    picture[:, middle] = _WALL
    return picture
