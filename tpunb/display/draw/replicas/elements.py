"""One element of every replica's value, as text: what a live display tells at the pointer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpunb._util.units import grouped, number_text
from tpunb.display.describe.replica_scene import Scene, Settings
from tpunb.display.describe.values import ReplicaValue
from tpunb.display.draw.replicas.panels import caption_of, elements_of, tiling

_MOST_TOLD = 12


def element_at(scene: Scene, settings: Settings, pointed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the element at a place in a value's picture, on every value.

    Args:
        scene: The values.
        settings: How they are drawn.
        pointed: The number of the `panel`, and the place in it: `at`, as shares of its width and
            height, or the row and column of a `cell`.

    Returns:
        The `text`: the element's index, and a line for each value; the row and column of its
        `cell`; and the `box` of the cell: left, top, width and height as shares.
    """
    number, view = int(pointed["panel"]), settings.view
    bins = len(scene.counts[0]) if view == "histogram" else 0
    sides = (1, bins) if bins else _sides(scene.values[number], view)
    across, down = pointed.get("at", (0, 0))
    wished = pointed.get("cell") or [math.floor(down * sides[0]), math.floor(across * sides[1])]
    row, column = (min(side - 1, max(0, at)) for at, side in zip(wished, sides, strict=True))
    if bins:
        low, high = scene.limits
        ends = (low + (high - low) * (at / bins) for at in (column, column + 1))
        title = " to ".join(map(number_text, ends))
    else:
        title = _index(scene, number, settings, (row, column))
    count, told = len(scene.values), [title]
    first = max(0, min(number - 4, count - _MOST_TOLD))
    for at in range(first, min(first + _MOST_TOLD, count)):
        value = scene.values[at]
        text = grouped(scene.counts[at][column]) if bins else _text(value, view, row, column)
        told.append("  ".join(filter(None, (caption_of(scene, at, compared=False), text))))
    if count > _MOST_TOLD:
        told.append(f"… {grouped(count - _MOST_TOLD)} more")
    told.append("difference" if scene.mode == "difference" else "")
    box = [column / sides[1], row / sides[0], 1 / sides[1], 1 / sides[0]]
    return {"text": "\n".join(filter(None, told)), "cell": [row, column], "box": box}


def _sides(value: ReplicaValue, view: str) -> tuple[int, int]:
    """Return the rows and columns of a picture; of images with the pixels between them."""
    shape = elements_of(value, view).shape
    if len(shape) < 3:
        return max(1, shape[0]), max(1, shape[1])
    across, gap = tiling(shape[0])
    down = math.ceil(shape[0] / across)
    return down * (shape[1] + gap) - gap, across * (shape[2] + gap) - gap


def _place(shape: Sequence[int], row: int, column: int) -> tuple[int, ...] | None:
    """Return the indices of a drawn element; None between and beyond the elements."""
    place: tuple[int, ...] = (row, column)
    if len(shape) > 2:
        across, gap = tiling(shape[0])
        (down, row), (right, column) = divmod(row, shape[1] + gap), divmod(column, shape[2] + gap)
        place = (down * across + right, row, column)
    return place if all(at < side for at, side in zip(place, shape, strict=False)) else None


def _text(value: ReplicaValue, view: str, row: int, column: int) -> str:
    elements = elements_of(value, view)
    place = _place(elements.shape, row, column)
    found = "–" if place is None else elements[place].tolist()
    return found if isinstance(found, str) else " ".join(map(number_text, np.ravel(found).tolist()))


def _index(scene: Scene, number: int, settings: Settings, cell: tuple[int, int]) -> str:
    """Return the index of a drawn element in the value itself, such as `"[3, 14]"`."""
    value = scene.values[number]
    preview, sides = value.preview, [side or 0 for side in value.shape or ()]
    if preview is None or not sides or (scene.mode == "gather" and preview.sampled):
        return ""
    place = _place(elements_of(value, settings.view).shape, *cell)
    if value.rows or place is None:
        return ""
    if preview.kind == "images":
        steps = preview.steps[:3]
        place = tuple(at * step for at, step in zip(place, steps, strict=True))[4 - len(sides) :]
    else:
        # A picture has the last long axis across, and all others down.
        long = sides if preview.kind == "values" else [side for side in sides if side > 1]
        first, last = (preview.steps[0], preview.steps[-1]) if preview.kind != "values" else (1, 1)
        flat = place[0] * long[-1] * first + place[1] * last
        place = tuple(map(int, np.unravel_index(flat, sides)))
    return f"[{', '.join(map(str, (*settings.slices, *place)))}]"
