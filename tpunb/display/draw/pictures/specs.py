"""An array cut over a mesh by several specs, as small pictures beside each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tpunb._util.plain_text import shortened
from tpunb._util.tables import Markup, block, escaped
from tpunb._util.units import byte_count, shape_phrase
from tpunb.display.describe.placement import ArrayPlacement, Part
from tpunb.display.draw import svg
from tpunb.display.draw.placement import layout as shown
from tpunb.display.draw.placement.html import placement_html
from tpunb.display.draw.placement.text import placement_text

_WIDTH, _HEIGHT = 190, 150
_LEAST = 22
_LETTERS = 10.5
_FLOW = "display:flex;flex-wrap:wrap;gap:10px 26px;margin:4px 0 8px"

Named = tuple[str, ArrayPlacement]
"""A spec as code, and the placement that it gives to the array."""


def specs_text(named: Sequence[Named]) -> str:
    """Return the places by each spec as plain text."""
    texts = (f"{spec}\n{placement_text(placement)}" for spec, placement in named)
    return "\n\n".join(texts)


def specs_html(named: Sequence[Named]) -> Markup:
    """Return a picture for each spec: small ones beside each other if there are several."""
    if len(named) == 1 or not all(_is_small(placement) for _, placement in named):
        parts = (f"{block(spec, bold=True)}{placement_html(place)}" for spec, place in named)
        return Markup(f"<div>{''.join(parts)}</div>")
    first = named[0][1]
    mesh = " × ".join(f"{name} {size}" for name, size in first.mesh)
    title = f"{first.dtype}{shape_phrase(first.shape)} over a mesh of {mesh}"
    small = "".join(_small(spec, placement) for spec, placement in named)
    return Markup(f'<div>{block(title, bold=True)}<div style="{_FLOW}">{small}</div></div>')


def _is_small(placement: ArrayPlacement) -> bool:
    rows = [len(ranges) for ranges in placement.ranges]
    return len(rows) in (1, 2) and rows[0] <= 16 and rows[-1] <= 8 and placement.devices <= 32


def _small(spec: str, placement: ArrayPlacement) -> str:
    words = _words(placement)
    says = f"{spec}: {'. '.join(words)}. {_parts_said(placement)}"
    lines = "".join(f"<div>{escaped(line)}</div>" for line in words)
    width, height = _size(placement)
    drawn = svg.picture(_drawn(placement, width, height), width, height, says)
    style = f"font-size:12px;max-width:{max(_WIDTH, round(width)) + 20}px"
    return f'<div style="{style}"><div><b>{escaped(spec)}</b></div>{drawn}{lines}</div>'


def _words(placement: ArrayPlacement) -> list[str]:
    """Return what a core holds, how many copies there are, and whether JAX refuses the spec."""
    parts, each = len(placement.parts), byte_count(max(part.bytes for part in placement.parts))
    held = f"Each core holds {each}"
    lines = [f"{held}: all of it" if parts == 1 else f"{held}: 1 of {parts} parts"]
    if placement.notes:
        return [lines[0], *(note.rstrip(".") for note in placement.notes)]
    if placement.copied_along:
        along = " and ".join(placement.copied_along)
        lines.append(f"{placement.copies} copies along {along}")
    return lines


def _parts_said(placement: ArrayPlacement) -> str:
    parts = placement.parts[:16]
    return (
        "; ".join(f"{shown.slice_text(p, placement.shape)} on {_holders(p)}" for p in parts) + "."
    )


def _holders(part: Part) -> str:
    """Return the numbers of the cores that hold a part."""
    return " ".join(holder.name.rpartition(" ")[2] for holder in part.holders)


def _size(placement: ArrayPlacement) -> tuple[float, float]:
    """Return the picture's size: the array's own form, as far as the parts stay readable."""
    rows, columns = _grid(placement)
    sides = placement.shape if len(placement.shape) == 2 else (placement.shape[0], 1)
    ratio = sides[0] / sides[1]
    height = min(max(_HEIGHT, rows * _LEAST), max(90, _WIDTH * min(ratio, 1.5)))
    height = max(height, rows * _LEAST)
    letters = max(len(_holders(part)) for part in placement.parts)
    width = max(_WIDTH * min(1, math.sqrt(1 / ratio)), columns * (letters * 0.62 * _LETTERS + 10))
    return max(90, min(width, 2 * _WIDTH)), height


def _grid(placement: ArrayPlacement) -> tuple[int, int]:
    counts = [len(ranges) for ranges in placement.ranges]
    return counts[0], counts[1] if len(counts) == 2 else 1


def _drawn(placement: ArrayPlacement, width: float, height: float) -> Iterator[str]:
    rows, columns = placement.shape[0], placement.shape[1] if len(placement.shape) == 2 else 1
    for number, part in enumerate(part for part in placement.parts if part.bytes):
        top, bottom = (edge / rows * height for edge in part.ranges[0])
        left, right = 0.0, width
        if len(part.ranges) == 2:
            left, right = (edge / columns * width for edge in part.ranges[1])
        yield svg.box(
            left + 1, top + 1, right - left - 2, bottom - top - 2, svg.core_colour(number)
        )
        fits = int((right - left - 6) / (0.62 * _LETTERS))
        text = shortened(_holders(part), max(fits, 1))
        middle = (left + right) / 2, (top + bottom) / 2
        yield svg.words(*middle, text, fill="#fff", size=_LETTERS, bold=True)
