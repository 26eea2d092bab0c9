"""The observation of a game: the last four pictures, grey and 84 x 84.

A picture is the pixel-wise maximum of the last two screens, shrunk to 84 x 84 by area averaging. It
equals OpenCV's INTER_AREA, and so ale-py's own AtariVectorEnv, bit for bit: rows before columns,
both in single precision, products added one by one, halves rounded to even.
"""

from typing import NamedTuple

import numpy as np

from save_rl.compiled import njit
from save_rl.envs.atari_protocol import SIZE, STACK

WIDTH = 160  # of every game's screen; heights differ
_NEGLIGIBLE = 1e-3  # of a pixel: OpenCV ignores smaller overlaps


class Shrinking(NamedTuple):
    """Weights that shrink one side of a screen to `SIZE`: pixel `i` is the sum over `k` of
    `weights[k, i] * screen[first[i] + k]`.

    first: `[SIZE]` uint64; unsigned, so that the kernel need not check for negative indices.
    weights: `[k, SIZE]` float32.
    """

    first: np.ndarray
    weights: np.ndarray


def shrinking(length: int) -> Shrinking:
    """Return the weights that shrink `length` pixels to `SIZE`, as OpenCV does."""
    scale = 1.0 / (SIZE / length)  # rounded as in OpenCV
    columns = []
    for i in range(SIZE):
        start = i * scale
        end, covered = start + scale, min(scale, length - start)
        low, high = int(np.ceil(start)), min(int(np.floor(end)), length - 1)
        low = min(low, high)
        column = dict.fromkeys(range(low, high), 1.0 / covered)
        if low - start > _NEGLIGIBLE:
            column[low - 1] = (low - start) / covered
        if end - high > _NEGLIGIBLE:
            column[high] = min(end - high, 1.0, covered) / covered
        columns.append(column)
    most = max(map(len, columns))
    # Leading and trailing zero weights do not change a sum.
    first = np.minimum([min(column) for column in columns], length - most)
    weights = np.zeros((most, SIZE), np.float32)
    for i, column in enumerate(columns):
        for pixel, weight in column.items():
            weights[pixel - first[i], i] = weight
    return Shrinking(first.astype(np.uint64), weights)


ROWS = shrinking(WIDTH)
NOTHING = np.zeros((SIZE, SIZE, STACK), np.uint8)
NOTHING.setflags(write=False)


def pushed(stack: np.ndarray, one: np.ndarray, two: np.ndarray, columns: Shrinking) -> np.ndarray:
    """Return the stack `[SIZE, SIZE, STACK]` without its oldest picture, plus one of two screens.

    The newest comes last. The result is read-only, and so must be the given stack.
    """
    packed = stack.view(np.uint32).reshape(SIZE, SIZE)
    after = _push(packed, one, two, ROWS.first, ROWS.weights, columns.first, columns.weights)
    after.setflags(write=False)
    return after.view(np.uint8).reshape(SIZE, SIZE, STACK)


def repeated(stack: np.ndarray) -> np.ndarray:
    """Return the stack without its oldest picture and with its newest repeated; read-only."""
    after = stack[..., [1, 2, 3, 3]]
    after.setflags(write=False)
    return after


@njit(refcounts=True)
def _push(packed, one, two, row_first, row_weights, column_first, column_weights):
    """Push a picture onto a stack packed into one uint32 per pixel, by a shift.

    Lines are narrowed as they are needed; the last `tall` are cached, line `y` at `y % tall`.
    """
    tall = len(column_weights)
    narrow = np.empty((tall, SIZE), np.float32)
    line = np.empty(WIDTH, np.float32)
    sums = np.empty(SIZE, np.float32)
    after = np.empty((SIZE, SIZE), np.uint32)
    y = 0
    for j in range(SIZE):
        first = np.int64(column_first[j])
        while y < first + tall:
            for x in range(WIDTH):
                line[x] = np.float32(max(one[y, x], two[y, x]))
            for i in range(SIZE):  # 160 pixels to 84: at most three overlap one
                x = row_first[i]
                total = line[x] * row_weights[0, i] + line[x + np.uint64(1)] * row_weights[1, i]
                narrow[y % tall, i] = total + line[x + np.uint64(2)] * row_weights[2, i]
            y += 1
        sums[:] = 0
        for k in range(tall):
            weight, place = column_weights[k, j], (first + k) % tall
            for i in range(SIZE):
                sums[i] += weight * narrow[place, i]
        for i in range(SIZE):
            pixel = np.uint32(np.int32(np.rint(sums[i])))
            after[j, i] = (packed[j, i] >> np.uint32(8)) | (pixel << np.uint32(24))
    return after
