"""Replica values as HTML: the first content of the live page, without its script.

Small values are tables. Matrices become heat maps, images become images, and long vectors become
curves, with a panel for each replica.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tpunb._util.tables import ORANGE, Markup, block, escaped, scrolled, table
from tpunb._util.units import and_more, number_text, shape_phrase
from tpunb.display.describe.replica_scene import Scene, first_scene, kind_of
from tpunb.display.describe.replicas import ReplicaValuesDescription, Section
from tpunb.display.describe.statistics import Statistics
from tpunb.display.describe.values import ReplicaValue
from tpunb.display.draw.placement.html import placement_html
from tpunb.display.draw.replicas.panels import caption_of, curves_html, panels_html, part_of
from tpunb.display.draw.replicas.text import (
    bracketed,
    nested_values,
    nonfinite_phrase,
    replicas_title,
    rows_of,
    sampled_note,
    section_title,
)
from tpunb.display.draw.view_markup import button

_MAX_PANELS = 96
"""The largest number of panels of all leaves together."""

_MONO = "font-family:monospace;white-space:pre;margin:0"
_DIFFERENT = f"background:{ORANGE}"
_NONFINITE = "background:rgba(204,51,119,.35)"


def replicas_html(description: ReplicaValuesDescription) -> str:
    """Return a table or panels for each leaf, with a row or a panel for each replica.

    If all replicas are equal, there is a single row or panel, and the title says that they are
    equal. Otherwise elements that differ from replica 0's are marked.
    """
    parts: list[str] = [block(replicas_title(description), bold=True), *_places(description)]
    sections = description.sections
    panels = shown = 0
    for section in sections:
        if _kind(section):
            panels += len(section.drawn_values)
            if shown and panels > _MAX_PANELS:
                break
        parts.append(_section(section, alone=len(sections) == 1))
        shown += 1
    if more := description.omitted + len(sections) - shown:
        parts.append(block(and_more(more)))
    return f"<div>{''.join(parts)}</div>"


def _places(description: ReplicaValuesDescription) -> list[str]:
    """Return where JAX arrays are, and why there are no values; nothing for other values."""
    drawn = [] if description.placement is None else [placement_html(description.placement)]
    return [*drawn, block(description.unread)]


def _section(section: Section, *, alone: bool) -> str:
    title, scene = section_title(section, alone=alone and section.distributed), first_scene(section)
    kind = _kind(section)
    more = 0 if section.all_equal else len(section.values) - len(scene.values)
    note = block(and_more(more)) if more else ""
    if not kind:
        return f"{block(title)}{values_table(scene)}{note}"
    preview = scene.values[0].preview
    assert preview is not None
    sampled = sampled_note(kind, preview.steps)
    view = "images" if kind == "images" else "heat"
    drawn = curves_html(scene) if kind == "curve" else panels_html(scene, view)
    return f"{block(' · '.join(filter(None, [title, sampled])))}{drawn}{note}"


def values_table(scene: Scene, order: str = "") -> Markup:
    """Return values in rows, with their statistics.

    Args:
        scene: The values.
        order: For a live page, which lets rows be selected and sorted: the column by which
            `rows_in_order` has sorted them. Numbers then have all of their digits.
    """
    section, shown = scene.section, scene.values
    labelled = section.distributed and scene.places != (-1,) and not section.all_equal
    statistics = any(value.statistics is not None and value.shape != () for value in shown)
    flagged = any(nonfinite_phrase(value.statistics) for value in shown)
    head = [
        *([""] if labelled else []),
        *("values", "shape", "dtype"),
        *(("min", "mean", "max", "std") if statistics else ()),
        *(["not finite"] if flagged else []),
    ]
    rows = []
    for number, value in enumerate(shown):
        place = scene.places[number]
        compared = scene.mode == "values" and section.differs[place]
        name = caption_of(scene, number) if order else f"replica {section.replica(place)}"
        cells = [name] if labelled else []
        cells += [_values(value, section.values[0] if compared else None, exact=bool(order))]
        cells += [shape_phrase(value.shape), value.dtype]
        facts = value.statistics
        if facts is None:
            numbers = [""] * 4
        elif value.dtype == "bool":
            numbers = ["", "" if facts.mean is None else number_text(facts.mean), "", ""]
        else:
            numbers = [number_text(n) for n in _numbers(facts)]
        cells += numbers if statistics else []
        if flagged:
            text = escaped(nonfinite_phrase(facts))
            cells.append(Markup(f'<span style="{_NONFINITE}">{text}</span>' if text else ""))
        rows.append(cells)
    if not order:
        return scrolled(table(rows, head=head, named=labelled))
    if labelled:
        keys = {**{name: name for name in _SORTED}, **({} if statistics else {"values": "mean"})}
        names = ["replica", *head[1:]]
        head = [_sorter(name, keys[name], order) if name in keys else name for name in names]
    parts = [part_of(scene, number) for number in range(len(shown))]
    return scrolled(table(rows, head=head, named=labelled, attributes=parts))


def _numbers(facts: Statistics) -> tuple[float | int | None, ...]:
    return facts.minimum, facts.mean, facts.maximum, facts.deviation


_SORTED = ("replica", "min", "mean", "max", "std", "not finite")


def rows_in_order(scene: Scene, order: str, rows: slice) -> Scene:
    """Return the scene with some of its values, sorted; a value without the number comes last."""
    name, sign = order.removeprefix("-"), -1 if order.startswith("-") else 1

    def key(number: int) -> tuple[bool, float]:
        facts = scene.values[number].statistics
        if name not in _SORTED[1:] or facts is None:
            return False, sign * number
        found = (*_numbers(facts), facts.nans + facts.infs)[_SORTED.index(name) - 1]
        return found is None, sign * (found or 0)

    chosen = sorted(range(len(scene.values)), key=key)[rows]
    values = tuple(scene.values[at] for at in chosen)
    return replace(scene, values=values, places=tuple(scene.places[at] for at in chosen))


def _sorter(name: str, key: str, order: str) -> Markup:
    """Return a column's name as a button that sorts by it; another press turns the order."""
    mark = "" if key != order.removeprefix("-") else " ↑" if key == order else " ↓"
    then = f"-{key}" if key == order else key
    return button(f"{name}{mark}", f"Sort by {name}", "order", then)


def _kind(section: Section) -> str:
    """Return how the values are drawn: `"grid"`, `"images"` or `"curve"`; empty for a table."""
    kind = kind_of(section.drawn_values)
    return "" if kind in ("values", "mixed") else kind


def _values(value: ReplicaValue, reference: ReplicaValue | None, *, exact: bool) -> Markup:
    """Return the elements, with marks on elements that differ from the reference's."""
    if value.rows:
        other = rows_of(reference) if reference is not None and reference.rows else None
        rows = rows_of(value)
        if reference is None:
            other = rows
        return Markup(f'<pre style="{_MONO}">{_marked_rows(rows, other, " ")}</pre>')
    if value.preview is None or value.preview.kind != "values":
        text = escaped(nested_values(value))
        style = f"{_MONO};white-space:pre-wrap;{_DIFFERENT if reference else ''}".rstrip(";")
        return Markup(f'<div style="{style}">{text}</div>')
    array = value.preview.array()
    write = _exactly if exact else number_text
    words = [write(item) for item in array.reshape(-1).tolist()]
    width = max(map(len, words), default=0)
    marks = _marks(value, reference)
    cells = [
        _marked(word.rjust(width) if array.ndim > 1 else word, different=different)
        for word, different in zip(words, marks, strict=True)
    ]
    note = f"{escaped(value.texts[0])}: " if value.texts else ""
    return Markup(f'<pre style="{_MONO}">{note}{_laid_out(cells, array.shape)}</pre>')


def _exactly(number: float | int) -> str:
    """Return a number with all digits of an integer, or of 32 bits."""
    if isinstance(number, int) or not 1e-4 <= abs(number) < 1e7:
        return str(number) if isinstance(number, int) else number_text(number)
    return f"{number:.7g}"


def _marks(value: ReplicaValue, reference: ReplicaValue | None) -> list[bool]:
    """Return for each element whether it differs from the reference's."""
    assert value.preview is not None
    mine = value.preview.array()
    other = reference.preview if reference else None
    if reference is None:
        return [False] * mine.size
    if other is None or other.kind != "values" or other.shape != mine.shape:
        return [True] * mine.size
    theirs = other.array()
    different = np.asarray((mine != theirs) & ~(np.isnan(mine) & np.isnan(theirs)))
    return [bool(item) for item in different.reshape(-1)]


def _marked(text: str, *, different: bool) -> str:
    nonfinite = text.strip() in ("nan", "inf", "-inf")
    style = _NONFINITE if nonfinite else _DIFFERENT if different else ""
    return f'<span style="{style}">{escaped(text)}</span>' if style else escaped(text)


def _marked_rows(values: Any, other: Any, indent: str) -> str:
    """Return nested rows in brackets, a line each, with marks on values that the other lacks.

    If the other's row continues, the bracket that closes this row is marked.
    """
    if not isinstance(values, list):
        text = bracketed(values)
        return _marked(text, different=other is None or text != bracketed(other))
    others = other if isinstance(other, list) else []
    pairs = itertools.zip_longest(values, others[: len(values)])
    inner = [_marked_rows(mine, theirs, f"{indent} ") for mine, theirs in pairs]
    between = f",\n{indent}" if any(isinstance(item, list) for item in values) else ", "
    begin = _marked("[", different=other is None)
    end = _marked("]", different=other is None or len(others) > len(values))
    return f"{begin}{between.join(inner)}{end}"


def _laid_out(cells: Sequence[str], shape: tuple[int, ...]) -> str:
    """Return elements in rows, with a blank line between matrices."""
    if not cells:
        return "(no elements)"
    if len(shape) < 2:
        return "  ".join(cells)
    columns, rows = shape[-1], shape[-2]
    lines = ["  ".join(cells[at : at + columns]) for at in range(0, len(cells), columns)]
    blocks = ["\n".join(lines[at : at + rows]) for at in range(0, len(lines), rows)]
    return "\n\n".join(blocks)
