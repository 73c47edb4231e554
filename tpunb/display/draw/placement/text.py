"""Where JAX arrays are, as plain text of at most 100 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tpunb._util.plain_text import aligned, plain, shortened
from tpunb._util.units import and_more, byte_count
from tpunb.display.describe.placement import (
    ArrayPlacement,
    LeafPlacement,
    Part,
    Placement,
    TreePlacement,
)
from tpunb.display.draw.placement import layout as shown

_WIDTH = 100
_MOST_LISTED = 24
_MOST_LEAVES = 40
_MOST_PATH = 28


def placement_text(placement: Placement) -> str:
    """Return where an array is, or a tree's arrays."""
    lines = _tree(placement) if isinstance(placement, TreePlacement) else _array(placement)
    return plain("\n".join(shortened(line.rstrip(), _WIDTH) for line in lines))


def _array(placement: ArrayPlacement) -> Iterator[str]:
    yield shown.array_title(placement)
    yield from (f"  {fact}" for fact in shown.array_facts(placement))
    if len(placement.parts) == placement.devices == 1:
        return
    picture = shown.picture_of(placement)
    drawn = [line for plane in picture.planes for line in _plane(placement, plane)]
    if max(map(len, drawn), default=0) > _WIDTH:
        yield from _listed(placement)
        return
    yield from drawn
    if picture.omitted:
        yield f"  {and_more(picture.omitted)} of these planes"


def _listed(placement: ArrayPlacement) -> Iterator[str]:
    for part in placement.parts[:_MOST_LISTED]:
        yield f"  {'  '.join(_content(part, placement))}"
    if (more := len(placement.parts) - _MOST_LISTED) > 0:
        yield f"  {and_more(more)}"


def _content(part: Part, placement: ArrayPlacement) -> list[str]:
    figures = ", ".join(filter(None, [byte_count(part.bytes), shown.copies_text(part)]))
    return [shown.slice_text(part, placement.shape), figures, *shown.holder_lines(part)]


def _plane(placement: ArrayPlacement, plane: shown.Plane) -> Iterator[str]:
    cells = [
        [
            _content(part, placement)
            if row and column and (part := plane.parts.get((row, column)))
            else ["…"]
            for column in plane.columns
        ]
        for row in plane.rows
    ]
    if len(plane.columns) == 1:
        cells = [[[line]] for line in _in_lines([cell for (cell,) in cells])]
    width = max(len(line) for row in cells for cell in row for line in cell)
    rule = ["─" * (width + 2)] * len(plane.columns)
    if plane.title:
        yield f"  {plane.title}"
    for number, row in enumerate(cells):
        if not number or len(plane.columns) > 1:
            yield "  " + ("├" + "┼".join(rule) + "┤" if number else "┌" + "┬".join(rule) + "┐")
        yield from _boxed(row, width)
    yield "  └" + "┴".join(rule) + "┘"


def _in_lines(cells: Sequence[Sequence[str]]) -> list[str]:
    """Return each cell's lines in one line, in columns."""
    longest = max(map(len, cells))
    return aligned([*cell, *[""] * (longest - len(cell))] for cell in cells)


def _boxed(row: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    for line in range(max(map(len, row))):
        texts = (cell[line] if line < len(cell) else "" for cell in row)
        yield "  │" + "│".join(f" {text.ljust(width)} " for text in texts) + "│"


def _tree(tree: TreePlacement) -> Iterable[str]:
    listed = shown.heaviest_leaves(tree, _MOST_LEAVES)
    lines = [shown.tree_summary(tree), *(f"  {fact}" for fact in shown.tree_facts(tree))]
    head = ("array", "placed", "a device", "type", "spec")
    lines += [f"  {line}" for line in aligned([head, *map(_leaf, listed.leaves)])]
    if more := len(tree.leaves) - len(listed.leaves):
        lines.append(f"  {and_more(more)}")
    return lines


def _leaf(leaf: LeafPlacement) -> tuple[str, ...]:
    path, placed, on_each, _, *others = shown.leaf_cells(leaf)
    return _end_of(path), placed, on_each, *others


def _end_of(path: str) -> str:
    """Return a path without its beginning if it is long: its end tells arrays apart."""
    return path if len(path) <= _MOST_PATH else f"…{path[-_MOST_PATH + 1 :]}"
