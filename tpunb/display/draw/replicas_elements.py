"""One element of every replica's value, as text: what a live display tells at the pointer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpunb._util.units import grouped, number_text
from tpunb.display.describe.replica_scene import Scene
from tpunb.display.describe.values import Preview, ReplicaValue
from tpunb.display.draw.replicas_panels import Array, matrix_of, tiling

_MOST_TOLD = 12


@dataclass(frozen=True, slots=True)
class Element:
    """An element of every value.

    Attributes:
        text: The element's index, and a line for each value.
        at: The middle of its cell, as shares of the picture's width and height.
        size: The size of its cell, as shares too.
    """

    text: str
    at: tuple[float, float]
    size: tuple[float, float]


def element_at(
    scene: Scene,
    view: str,
    names: Sequence[str],
    number: int,
    at: tuple[float, float],
    prefix: Sequence[int] = (),
) -> Element:
    """Return the element at a place in a value's picture, on every value.

    Args:
        scene: The values.
        view: How they are drawn.
        names: The name of each value.
        number: The number of the value that is pointed at.
        at: The place, as shares of the picture's width and height.
        prefix: Positions on the first axes that the picture leaves out.
    """
    if view == "histogram":
        rows, columns = 1, len(scene.counts[0])
    else:
        rows, columns = _sides(scene.values[number], view)
    row, column = (
        min(count - 1, max(0, math.floor(share * count)))
        for share, count in ((at[1], rows), (at[0], columns))
    )
    if view == "histogram":
        low, high = scene.limits
        ends = (low + (high - low) * place / columns for place in (column, column + 1))
        title = " to ".join(map(number_text, ends))
        texts = [grouped(counts[column]) for counts in scene.counts]
    else:
        title = _index(scene.values[number], view, row, column, prefix)
        texts = [_text(value, view, row, column) for value in scene.values]
    pairs = zip(names, texts, strict=True)
    lines = ["  ".join(filter(None, pair)) for pair in pairs]
    first = max(0, min(number - 4, len(lines) - _MOST_TOLD))
    told = lines[first : first + _MOST_TOLD]
    if more := len(lines) - len(told):
        told.append(f"… {grouped(more)} more")
    return Element(
        "\n".join(filter(None, [title, *told])),
        ((column + 0.5) / columns, (row + 0.5) / rows),
        (1 / columns, 1 / rows),
    )


def _preview(value: ReplicaValue) -> Preview:
    assert value.preview is not None
    return value.preview


def _drawn(value: ReplicaValue, view: str) -> Array:
    """Return the elements as they are drawn, in rows and columns."""
    if view == "curves":
        return _preview(value).array().reshape(1, -1)
    return matrix_of(value)


def _sides(value: ReplicaValue, view: str) -> tuple[int, int]:
    if view == "images":
        return tiling(_preview(value).shape)[1]
    rows, columns = _drawn(value, view).shape
    return max(1, rows), max(1, columns)


def _pixel(value: ReplicaValue, row: int, column: int) -> tuple[int, int, int] | None:
    """Return the image, row and column of a place in images side by side."""
    count, height, width, _ = _preview(value).shape
    across, _, gap = tiling(_preview(value).shape)
    image = row // (height + gap) * across + column // (width + gap)
    down, right = row % (height + gap), column % (width + gap)
    return (image, down, right) if image < count and down < height and right < width else None


def _text(value: ReplicaValue, view: str, row: int, column: int) -> str:
    if view == "images":
        pixel = _pixel(value, row, column)
        return "–" if pixel is None else " ".join(map(str, _preview(value).array()[pixel].tolist()))
    drawn = _drawn(value, view)
    if row >= drawn.shape[0] or column >= drawn.shape[1]:
        return "–"
    return number_text(drawn[row, column].item())


def _index(value: ReplicaValue, view: str, row: int, column: int, prefix: Sequence[int]) -> str:
    """Return the index of a drawn element in the value itself, such as `"[3, 14]"`."""
    preview, shape = _preview(value), value.shape
    if shape is None or any(side is None for side in shape):
        return f"[{row}, {column}]"
    sides = [side or 0 for side in shape]
    places: tuple[int, ...]
    if preview.kind == "images":
        _, height, _, _ = preview.shape
        pixel = _pixel(value, row, column) if view == "images" else (*divmod(row, height), column)
        if pixel is None:
            return ""
        image, down, right = pixel
        at = down * preview.steps[1], right * preview.steps[2]
        places = (image, *at) if len(sides) == 4 else at
    elif not sides:
        return ""
    else:
        steps = preview.steps or (1,)
        down = steps[0] if preview.kind == "grid" else 1
        long = [side for side in sides if side > 1] if preview.kind == "grid" else sides[-1:]
        width = long[-1] if long else 1
        flat = row * down * width + column * steps[-1]
        places = tuple(map(int, np.unravel_index(min(flat, math.prod(sides) - 1), sides)))
    return f"[{', '.join(map(str, (*prefix, *places)))}]"
