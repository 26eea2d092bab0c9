"""Saving frames: animations, contact sheets with a row per label, and captions."""

import io
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from save_rl.errors import InputError
from save_rl.files import write_atomically

INK, SHADE, RIM = "#222222", "#f2f2f2", "#cccccc"  # text, its background, picture borders
FAINT, STRONG = "#999999", "#D55E00"  # bars
MARGIN, GAP = 24, 12  # pixels, around a sheet and between its pictures
_SMALLEST, _LARGEST = 8, 18  # pixels of text in captions, and beside a picture
REST = 1500  # extra milliseconds on the last frame of an animation


def caption(frame: np.ndarray, text: str) -> np.ndarray:
    """Return a frame `[h, w, 3]` with text in a strip below it; the text may have several lines.

    The height of the strip depends on the width of the frame and the number of lines alone. A line
    that does not fit is written smaller, and cut off where it would be too small to read.
    """
    height, width, _ = frame.shape
    lines, usual = text.split("\n"), _font(max(9, width // 30))
    margin, line = round(usual.size / 2), round(1.4 * usual.size)
    strip = round(2 * usual.size) + line * (len(lines) - 1)
    picture = Image.new("RGB", (width, height + strip), SHADE)
    picture.paste(Image.fromarray(frame))
    for i, part in enumerate(lines):
        font, room = usual, width - 2 * margin
        while font.getlength(part) > room and font.size > _SMALLEST:
            font = _font(font.size - 1)
        if font.getlength(part) > room:
            while part and font.getlength(f"{part}…") > room:
                part = part[:-1]
            part += "…"
        position = margin, height + usual.size + i * line
        ImageDraw.Draw(picture).text(position, part, INK, font, anchor="lm")
    return np.array(picture)


def enlarge(frame: np.ndarray, width: int) -> np.ndarray:
    """Return a frame `[h, w, 3]`, with each pixel repeated if it is narrower than `width`."""
    times = ceil(width / frame.shape[1])
    return frame.repeat(times, 0).repeat(times, 1)


class Bar(NamedTuple):
    """A named pair of bars, both optional; highlighted if `marked`."""

    name: str
    first: float | None
    second: float | None
    marked: bool


def beside(frame: np.ndarray, bars: Sequence[Bar], title: str) -> np.ndarray:
    """Return a frame `[h, w, 3]` with bars to its right, one per line, on a common scale."""
    height, width, _ = frame.shape
    line = height / (len(bars) + 1)
    font = _font(min(max(6, round(line * 0.6)), _LARGEST))
    name, number = (ceil(max(map(font.getlength, texts))) + GAP for texts in (
        [bar.name for bar in bars], ["-0000.00"],
    ))  # fmt: skip
    numbers = [x for bar in bars for x in (bar.first, bar.second) if x is not None]
    low, high = min(numbers), max(numbers)
    left, room = width + GAP + name, width // 2
    picture = Image.new("RGB", (left + room + number, height), "white")
    picture.paste(Image.fromarray(frame))
    brush = ImageDraw.Draw(picture)
    brush.text((width + GAP, line / 2), title, INK, font, anchor="lm")
    for i, bar in enumerate(bars, 1):
        middle = (i + 0.5) * line
        if bar.marked:
            brush.rectangle((width, i * line, picture.width, (i + 1) * line), SHADE)
        brush.text((width + GAP, middle), bar.name, INK, font, anchor="lm")
        for value, top, colour in ((bar.first, 0.15, FAINT), (bar.second, 0.5, STRONG)):
            if value is not None:
                end = left + 1 + room * (value - low) / (high - low or 1.0)
                brush.rectangle((left, (i + top) * line, end, (i + top + 0.35) * line), colour)
        shown = bar.first if bar.second is None else bar.second
        text = "" if shown is None else f"{shown:.{1 if abs(shown) >= 1000 else 2}f}"
        brush.text((picture.width - 2, middle), text, INK, font, anchor="rm")
    return np.array(picture)


def save_gif(frames: Sequence[np.ndarray], out: Path, seconds_per_frame: float = 0.5) -> None:
    """Write frames `[h, w, 3]` of one size as a looping animation that pauses on its last frame.

    A frame equal to its predecessor extends that one.
    """
    if len(frames) == 0:
        raise InputError("frames: there is nothing to save.")
    first, *others = _indexed(frames)
    times = [round(1000 * seconds_per_frame)] * len(frames)
    times[-1] += REST
    file = io.BytesIO()
    first.save(file, "GIF", save_all=True, append_images=others, duration=times, loop=0)
    write_atomically(out, file.getvalue())


def _indexed(frames: Sequence[np.ndarray]) -> list[Image.Image]:
    """Return frames with one palette of the most frequent colours; others map to the nearest."""
    weights = np.array([1 << 16, 1 << 8, 1], np.int32)
    packed = [frame @ weights for frame in frames]  # one number per colour
    counts: Counter[int] = Counter()
    for pixels in packed:
        colours, times = np.unique(pixels, return_counts=True)
        counts.update(dict(zip(colours.tolist(), times.tolist(), strict=True)))
    known = np.array(sorted(counts))
    kept = np.array([colour for colour, _ in counts.most_common(255)])  # one is for "unchanged"
    difference = _unpacked(known)[:, None] - _unpacked(kept)
    nearest = np.square(difference).sum(-1).argmin(1).astype(np.uint8)
    pictures = []
    for pixels in packed:
        index = nearest[np.searchsorted(known, pixels)]
        picture = Image.frombytes("P", index.shape[::-1], index.tobytes())
        picture.putpalette(_unpacked(kept).astype(np.uint8).tobytes())
        pictures.append(picture)
    return pictures


def _unpacked(colours: np.ndarray) -> np.ndarray:
    """Return red, green and blue `[n, 3]` of packed colours `[n]`."""
    return np.stack([colours >> 16, (colours >> 8) & 255, colours & 255], axis=-1)


def contact_sheet(rows: Sequence[tuple[str, Sequence[np.ndarray]]], out: Path) -> None:
    """Write a PNG with a row of equally sized pictures `[h, w, 3]` per label; labels may have
    several lines."""
    columns = max((len(frames) for _, frames in rows), default=0)
    if columns == 0:
        raise InputError("rows: there is nothing to save.")
    height, width, _ = next(frames[0].shape for _, frames in rows if len(frames))
    font = _font(min(max(12, height // 12), 24))
    lines = [line for label, _ in rows for line in label.split("\n")]
    left = 2 * MARGIN + ceil(max(map(font.getlength, lines)))
    size = (
        left + columns * (width + GAP) - GAP + MARGIN,
        2 * MARGIN + len(rows) * (height + GAP) - GAP,
    )
    sheet = Image.new("RGB", size, "white")
    brush = ImageDraw.Draw(sheet)
    for i, (label, frames) in enumerate(rows):
        top = MARGIN + i * (height + GAP)
        middle = left - MARGIN, top + height / 2
        brush.text(middle, label, INK, font, anchor="rm", align="right")
        for j, frame in enumerate(frames):
            x = left + j * (width + GAP)
            brush.rectangle((x - 1, top - 1, x + width, top + height), outline=RIM)
            sheet.paste(Image.fromarray(frame), (x, top))
    file = io.BytesIO()
    sheet.save(file, "PNG", optimize=True)
    write_atomically(out, file.getvalue())


@lru_cache
def _font(size: float) -> ImageFont.FreeTypeFont:
    """Return the font of the plots."""
    import matplotlib

    return ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf", size)
