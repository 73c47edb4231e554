"""Parts of a drawing as SVG: boxes, texts and arrows that are readable on light and dark pages."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable

from tpunb._util.tables import Markup, block, escaped
from tpunb.display.draw.colours import HOST_COLOURS, INK

Point = tuple[float, float]

NEUTRAL = "#4a5159"
"""The background of shapes that belong to no core. It is dark enough for white letters."""

LETTER = 0.6
"""The width of a letter, as a share of the font's size."""


def core_colour(core: int) -> str:
    """Return the colour of a core; white letters are readable on it."""
    return HOST_COLOURS[core % len(HOST_COLOURS)]


def box(
    left: float,
    top: float,
    width: float,
    height: float,
    fill: str = "none",
    *,
    edge: str = "",
    dashed: bool = False,
) -> str:
    """Return a rectangle with round corners."""
    stroke = f' stroke="{edge}" stroke-width="1.5"' if edge else ""
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<rect x="{short(left)}" y="{short(top)}" width="{short(width)}" '
        f'height="{short(height)}" rx="3" fill="{fill}"{stroke}{dashes}/>'
    )


def words(
    x: float,
    y: float,
    text: str,
    *,
    size: float = 12,
    fill: str = INK,
    anchor: str = "middle",
    bold: bool = False,
) -> str:
    """Return a line of text; `y` is its middle."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{short(x)}" y="{short(y + 0.36 * size)}" font-size="{short(size)}" '
        f'fill="{fill}" text-anchor="{anchor}"{weight}>{escaped(text)}</text>'
    )


def arrow(
    begin: Point,
    end: Point,
    colour: str,
    *,
    width: float = 2,
    opacity: float = 1,
    dashed: bool = False,
) -> str:
    """Return a straight arrow."""
    length = math.dist(begin, end) or 1
    across, down = (end[0] - begin[0]) / length, (end[1] - begin[1]) / length
    head = 3 * width + 2
    neck = end[0] - head * across, end[1] - head * down
    side = 0.5 * head
    left = neck[0] - side * down, neck[1] + side * across
    right = neck[0] + side * down, neck[1] - side * across
    faint = f' opacity="{opacity}"' if opacity < 1 else ""
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    corners = " ".join(f"{short(x)},{short(y)}" for x, y in (end, left, right))
    return (
        f'<g{faint}><path d="M{_point(begin)}L{_point(neck)}" stroke="{colour}" '
        f'stroke-width="{short(width)}" fill="none"{dashes}/>'
        f'<polygon points="{corners}" fill="{colour}"/></g>'
    )


def line(points: Iterable[Point], colour: str, *, width: float = 2, opacity: float = 1) -> str:
    """Return a line through points."""
    faint = f' opacity="{opacity}"' if opacity < 1 else ""
    d = "L".join(map(_point, points))
    return f'<path d="M{d}" stroke="{colour}" stroke-width="{short(width)}" fill="none"{faint}/>'


def picture(parts: Iterable[str], width: float, height: float, says: str) -> Markup:
    """Return a drawing as a picture with an alternative text."""
    return as_picture(document(parts, (0, 0, width, height)), says)


def document(parts: Iterable[str], box: tuple[float, float, float, float], size: str = "") -> str:
    """Return a drawing as SVG.

    Args:
        parts: The shapes and texts.
        box: Left, top, width and height of what is shown.
        size: Attributes in place of the width and the height.
    """
    left, top, width, height = map(short, box)
    size = size or f'width="{width}" height="{height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left} {top} {width} {height}" {size} '
        f'font-family="system-ui, DejaVu Sans, sans-serif">{"".join(parts)}</svg>'
    )


def as_picture(drawing: str, says: str) -> Markup:
    """Return SVG as a picture with an alternative text.

    JupyterLab removes SVG from notebooks that it does not trust, but keeps pictures.
    """
    data = base64.b64encode(drawing.encode()).decode("ascii")
    return Markup(
        f'<img alt="{escaped(says)}" style="max-width:100%" '
        f'src="data:image/svg+xml;base64,{data}"/>'
    )


def titled(title: str, sentences: Iterable[str], content: str) -> Markup:
    """Return a picture below its title and its sentences."""
    said = "".join(block(sentence) for sentence in sentences)
    return Markup(f"<div>{block(title, bold=True)}{said}{content}</div>")


def short(number: float) -> str:
    """Return a number with one digit after the point, if the number needs it."""
    return f"{round(number, 1):g}"


def _point(point: Point) -> str:
    return f"{short(point[0])} {short(point[1])}"
