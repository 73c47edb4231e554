"""Where JAX arrays are, as HTML: the array cut into its parts, or a table of a tree's arrays.

The picture is a table, so it needs no script, and every figure is text. The live form is the same
page; its script finds the values to sort by in `data-value`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from tpunb._util.tables import LINED, Markup, Tile, block, escaped, folded, scrolled, table, tiles
from tpunb._util.units import and_more, byte_count
from tpunb.display.describe.placement import (
    ArrayPlacement,
    Holder,
    LeafPlacement,
    Part,
    Placement,
    TreePlacement,
)
from tpunb.display.draw.colours import HOST_COLOURS
from tpunb.display.draw.placement import layout as shown

_MOST_DEVICES = 128
"""The most devices in the table of devices."""

_HEAVIEST = 12
"""The arrays of a tree that are shown at once; a tree with only a few more shows all."""

_MOST_CELLS = 16
"""The most parts of an array with one axis that are drawn."""

_WIDTH = 560
_LEAST_HEIGHT, _MOST_HEIGHT = 48, 96
"""The most pixels of a picture's width, and the limits of a part's height."""

_SMALL = "font-size:12px;opacity:.8;margin:2px 0"
_FIGURE = "font-size:11px;line-height:1.4;overflow-wrap:anywhere;text-align:left"
_GAP = "border:0;background:none;font-size:11px;text-align:center;padding:0 4px"
# JupyterLab drops the stripes in a notebook that it does not trust. Colours and borders stay.
_STRIPES = (
    "background-image:"
    "repeating-linear-gradient(135deg,transparent 0 7px,rgba(128,128,128,.16) 7px 9px)"
)
_REPLICATED = "#d55e0090"
_FLOW = "display:flex;flex-wrap:wrap;gap:4px;margin:6px 0"
_PLANES = "display:flex;flex-wrap:wrap;gap:6px 18px"


def placement_html(placement: Placement) -> Markup:
    """Return where an array is, or a tree's arrays."""
    if isinstance(placement, TreePlacement):
        return _tree(placement)
    return _array(placement)


def _array(placement: ArrayPlacement) -> Markup:
    title = shown.array_title(placement)
    facts = Markup("".join(map(_small, shown.array_facts(placement))))
    if len(placement.parts) == placement.devices == 1:  # a picture of one part shows nothing
        return Markup(f"<div>{block(title, bold=True)}{facts}</div>")
    picture = f'<div role="group" aria-label="{escaped(title)}">{_picture(placement)}</div>'
    return Markup(f"<div>{block(title, bold=True)}{facts}{picture}{_devices(placement)}</div>")


def _small(text: str) -> str:
    return f'<div style="{_SMALL}">{escaped(text)}</div>'


def _picture(placement: ArrayPlacement) -> str:
    picture = shown.picture_of(placement)
    colours = dict(zip(placement.parts, itertools.cycle(HOST_COLOURS), strict=False))
    if picture.vertical is None:
        return _row_of_parts(placement, colours)
    planes = "".join(_plane(placement, picture, plane, colours) for plane in picture.planes)
    more = block(f"{and_more(picture.omitted)} of these planes") if picture.omitted else ""
    return f'<div style="{_PLANES}">{planes}</div>{more}'


def _row_of_parts(placement: ArrayPlacement, colours: dict[Part, str]) -> str:
    """Return the parts of an array with at most one axis, in lines that wrap."""
    label = _label(shown.axis_label(placement, 0)) if placement.shape else ""
    parts = placement.parts[:_MOST_CELLS]
    cells = "".join(
        f'<div style="{_ground(part, colours[part])};min-width:84px;min-height:{_LEAST_HEIGHT}px">'
        f"{_content(part, placement)}</div>"
        for part in parts
    )
    more = len(placement.parts) - len(parts)
    return f'{label}<div style="{_FLOW}">{cells}</div>{_small(and_more(more)) if more else ""}'


def _label(text: str) -> str:
    return f'<div style="font-size:11px;line-height:1.3">{escaped(text)}</div>'


def _plane(
    placement: ArrayPlacement, picture: shown.Picture, plane: shown.Plane, colours: dict[Part, str]
) -> str:
    vertical, horizontal = picture.vertical, picture.horizontal
    assert vertical is not None
    assert horizontal is not None
    width = min(_WIDTH, max(260, 132 * len(plane.columns)))
    height = _height(width * shown.aspect(placement, picture) / len(plane.rows))
    labels = [
        *([plane.title] if plane.title else []),
        f"↓ {shown.axis_label(placement, vertical)}",
        f"→ {shown.axis_label(placement, horizontal)}",
    ]
    drawn = tiles(
        (_tiles(placement, plane, row, colours, height) for row in plane.rows),
        f"border-spacing:3px;table-layout:fixed;margin:0;width:{width}px",
    )
    above = "".join(map(_label, labels))
    return f'<div style="max-width:100%;margin:4px 0 0">{above}{scrolled(drawn)}</div>'


def _height(height: float) -> int:
    """Return a row's pixels that show the array's form, within the limits."""
    return round(min(max(height, _LEAST_HEIGHT), _MOST_HEIGHT))


def _tiles(
    placement: ArrayPlacement,
    plane: shown.Plane,
    row: shown.Line,
    colours: dict[Part, str],
    height: int,
) -> Iterable[Tile]:
    for column in plane.columns:
        part = plane.parts.get((row, column)) if row and column else None
        if part is None:
            yield Tile("…", _GAP)
        else:
            style = f"{_ground(part, colours[part])};height:{height}px;vertical-align:top"
            yield Tile(_content(part, placement), style)


def _ground(part: Part, colour: str) -> str:
    """Return the style of a part: its colour, and stripes and dashes if there are copies."""
    stripes = f";{_STRIPES}" if len(part.holders) > 1 else ""
    border = "dashed" if stripes else "solid"
    return (
        f"{_FIGURE};border:1px {border} {colour};border-radius:3px;padding:3px 5px;"
        f"background-color:{colour}30{stripes}"
    )


def _content(part: Part, placement: ArrayPlacement) -> Markup:
    figures = [byte_count(part.bytes), shown.copies_text(part)]
    lines = [", ".join(filter(None, figures)), *shown.holder_lines(part)]
    name = escaped(shown.slice_text(part, placement.shape))
    return Markup(f"<b>{name}</b>{''.join(f'<br>{escaped(line)}' for line in lines)}")


def _devices(placement: ArrayPlacement) -> Markup:
    """Return a folded table with the part of each device."""
    pairs = shown.holders_of(placement)
    names = [name for name, _ in placement.mesh]
    has_processes = any(holder.process is not None for holder, _ in pairs)
    head = ["device", *names, "part", "size", *(["process"] if has_processes else [])]

    def row(holder: Holder, part: Part) -> list[str]:
        process = "this one" if holder.process is None else str(holder.process)
        return [
            holder.name,
            *map(str, holder.position),
            shown.slice_text(part, placement.shape),
            byte_count(part.bytes),
            *([process] if has_processes else []),
        ]

    rows = [row(*pair) for pair in pairs[:_MOST_DEVICES]]
    more = block(and_more(len(pairs) - len(rows))) if len(pairs) > len(rows) else ""
    drawn = scrolled(table(rows, head=head, named=True, style=LINED))
    return folded("What each device holds", f"{drawn}{more}")


def _tree(tree: TreePlacement) -> Markup:
    heaviest = shown.heaviest_leaves(tree, _HEAVIEST)
    every = shown.heaviest_leaves(tree, shown.MOST_LEAVES)
    few = len(tree.leaves) <= _HEAVIEST + 2
    parts = [block(shown.tree_summary(tree), bold=True), *map(_small, shown.tree_facts(tree))]
    parts.append(_bar(tree))
    parts.append(_rows(tree if few else heaviest))
    if not few:
        kept, count = len(every.leaves), len(tree.leaves)
        title = f"All {count} arrays" if kept == count else f"The {kept} largest of {count} arrays"
        parts.append(folded(title, _rows(every)))
    return Markup(f"<div>{''.join(parts)}</div>")


def _bar(tree: TreePlacement) -> str:
    """Return a bar with the replicated part of all bytes; empty for a single device."""
    if tree.devices < 2 or not tree.bytes:
        return ""
    share = tree.replicated / tree.bytes
    width = int(10_000 * share) / 100
    track = "background:rgba(128,128,128,.18);border-radius:3px;overflow:hidden"
    return (
        f'<div role="img" aria-label="{escaped(shown.tree_summary(tree))}" '
        f'style="{track};height:14px;max-width:{_WIDTH}px;margin:6px 0">'
        f'<div style="height:14px;width:{width}%;background-color:{_REPLICATED};{_STRIPES}"></div>'
        "</div>"
    )


def _rows(tree: TreePlacement) -> Markup:
    rows = [_leaf(leaf) for leaf in tree.leaves]
    return scrolled(table(rows, head=shown.TREE_HEAD, named=True, style=LINED))


def _leaf(leaf: LeafPlacement) -> list[str]:
    path, placed, on_each, size, *others = shown.leaf_cells(leaf)
    # A path wraps between its steps, so that a page of 700 pixels has room for all columns.
    steps = escaped(path).replace("][", "]<wbr>[").replace(".", "<wbr>.")
    code = Markup(f'<div style="font-family:monospace;white-space:normal">{steps}</div>')
    return [code, placed, _valued(on_each, leaf.on_each), _valued(size, leaf.bytes), *others]


def _valued(text: str, value: int) -> Markup:
    style = "white-space:nowrap"
    return Markup(f'<span data-value="{value}" style="{style}">{escaped(text)}</span>')
