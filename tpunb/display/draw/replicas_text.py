"""Replica values as plain text and as an HTML table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpunb._util.plain_text import plain, shortened_between
from tpunb._util.tables import ORANGE, Markup, block, escaped, scrolled, table
from tpunb._util.units import and_more, counted, grouped, number_text, shape_phrase
from tpunb.display.describe.replicas import ReplicaValuesDescription, Section
from tpunb.display.describe.statistics import Statistics
from tpunb.display.describe.values import ReplicaValue


def replicas_title(description: ReplicaValuesDescription) -> str:
    """The whole's class and how many replicas it has."""
    if not description.num_replicas:
        return description.type_name
    return f"{description.type_name} of {counted(description.num_replicas, 'replica')}"


def section_title(section: Section, *, alone: bool) -> str:
    """The place of a leaf, and what all of its values have in common."""
    values = section.values
    parts = [] if alone else [section.path, section.type_name if section.distributed else ""]
    # A repr already shows the type's name.
    kinds = {(value.kind, value.dtype, value.shape) for value in values}
    if len(kinds) == 1:
        kind, dtype, shape = kinds.pop()
        parts += ["" if kind in ("numeric", "string", "none", "object") else kind]
        parts += ["" if kind == "none" else f"{dtype} {shape_phrase(shape)}".strip()]
    if section.all_equal:
        parts.append(f"all {grouped(len(values))} replicas equal")
    return " · ".join(part for part in parts if part)


def statistics_phrase(value: ReplicaValue) -> str:
    """Minimum, mean, maximum and standard deviation in a line; empty where there are none.

    Truth values are counted: `"2 of 3 True"`.
    """
    statistics = value.statistics
    if statistics is None or statistics.mean is None:
        return ""
    sides = value.shape or ()
    if value.dtype == "bool" and None not in sides:
        count = math.prod(side for side in sides if side is not None)
        return f"{grouped(round(statistics.mean * count))} of {grouped(count)} True"
    return (
        f"min {number_text(statistics.minimum)}  mean {number_text(statistics.mean)}  "
        f"max {number_text(statistics.maximum)}  std {number_text(statistics.deviation)}"
    )


def nonfinite_phrase(statistics: Statistics | None) -> str:
    """Counts the elements that are not finite; empty if there are none."""
    if statistics is None:
        return ""
    parts = [
        f"{grouped(count)} {name}"
        for count, name in ((statistics.nans, "NaN"), (statistics.infs, "Inf"))
        if count
    ]
    return ", ".join(parts)


def nested_values(value: ReplicaValue) -> str:
    """The elements of a small value in brackets, on one line."""
    if value.rows:
        return _bracketed(_in_rows(value))
    if value.preview is None or value.preview.kind != "values":
        more = f", … {grouped(value.omitted)} more" if value.omitted > 0 else ""
        text = ", ".join(value.texts) + more
        bracketed = value.shape and value.texts and value.kind in ("string", "numeric")
        return f"[{text}]" if bracketed else text
    prefix = f"{value.texts[0]}: " if value.texts else ""
    return prefix + _bracketed(value.preview.array().tolist())


def _in_rows(value: ReplicaValue) -> list[Any]:
    """The elements of a ragged value as nested lists of numbers or texts."""
    items: list[Any] = list(value.texts[1:])
    if value.preview is not None:
        items = value.preview.array().tolist()
    for lengths in reversed(value.rows):
        ends = list(itertools.accumulate(lengths))
        items = [items[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    return items


def _bracketed(values: Any) -> str:
    if isinstance(values, list):
        return f"[{', '.join(_bracketed(item) for item in values)}]"
    return values if isinstance(values, str) else number_text(values)


_MAX_ROWS = 64
_MAX_SECTIONS = 16
_WIDTH = 100


def replicas_text(description: ReplicaValuesDescription) -> str:
    """A line for each replica: its elements, if few, and its statistics."""
    alone = len(description.sections) == 1
    if alone and not description.num_replicas:
        return plain("\n".join(_section_lines(description.sections[0], alone=False)))
    lines = [replicas_title(description)]
    for section in description.sections[:_MAX_SECTIONS]:
        lines += [f"  {line}" for line in _section_lines(section, alone=alone)]
    more = description.omitted + max(0, len(description.sections) - _MAX_SECTIONS)
    if more:
        lines.append(f"  {and_more(more)}")
    return plain("\n".join(lines))


def _section_lines(section: Section, *, alone: bool) -> list[str]:
    lines = [section_title(section, alone=alone)]
    same = len({(value.dtype, value.shape) for value in section.values}) == 1
    digits = len(str(max(map(section.replica, range(len(section.values))))))
    labelled = section.distributed and not section.all_equal
    for replica, value in enumerate(section.values[: _MAX_ROWS if labelled else 1]):
        # The statistics of a single number are the number.
        single = value.shape == () or value.shape is None
        parts = (
            f"replica {section.replica(replica):>{digits}}" if labelled else "",
            "" if same or not labelled else f"{value.dtype} {shape_phrase(value.shape)}".strip(),
            shortened_between(nested_values(value), 60, ", "),
            "" if single else statistics_phrase(value),
            "" if single else nonfinite_phrase(value.statistics),
        )
        lines.append("  " + "  ".join(filter(None, parts)))
    if labelled and len(section.values) > _MAX_ROWS:
        lines.append(f"  {and_more(len(section.values) - _MAX_ROWS)}")
    return [
        shortened_between(line.rstrip(), _WIDTH - 2, "  ", ", ") for line in lines if line.strip()
    ]


_MONO = "font-family:monospace;white-space:pre;margin:0"
_DIFFERENT = f"background:{ORANGE}"
_NONFINITE = "background:rgba(204,51,119,.35)"


def replicas_html(description: ReplicaValuesDescription) -> str:
    """A table for each leaf, with a row for each replica.

    Where all replicas are equal there is one row, and the title says it;
    elsewhere, elements that differ from replica 0's are marked.
    """
    parts: list[str] = [block(replicas_title(description), bold=True)]
    alone = len(description.sections) == 1
    parts += [_section(section, alone=alone) for section in description.sections]
    if description.omitted:
        parts.append(block(and_more(description.omitted)))
    return f"<div>{''.join(parts)}</div>"


def _section(section: Section, *, alone: bool) -> str:
    title = section_title(section, alone=alone and section.distributed)
    shown = section.values[:1] if section.all_equal else section.values[:_MAX_ROWS]
    labelled = section.distributed and not section.all_equal
    statistics = any(value.statistics is not None and value.shape != () for value in shown)
    flagged = any(nonfinite_phrase(value.statistics) for value in shown)
    head = [
        *([""] if labelled else []),
        *("values", "shape", "dtype"),
        *(("min", "mean", "max", "std") if statistics else ()),
        *(["not finite"] if flagged else []),
    ]
    rows = []
    for replica, value in enumerate(shown):
        reference = section.values[0] if section.differs[replica] else None
        cells = [f"replica {section.replica(replica)}"] if labelled else []
        cells += [_values(value, reference), shape_phrase(value.shape), value.dtype]
        one = value.statistics
        if one is None:
            numbers = [""] * 4
        elif value.dtype == "bool":
            numbers = ["", "" if one.mean is None else number_text(one.mean), "", ""]
        else:
            numbers = [number_text(n) for n in (one.minimum, one.mean, one.maximum, one.deviation)]
        cells += numbers if statistics else []
        if flagged:
            text = escaped(nonfinite_phrase(one))
            cells.append(Markup(f'<span style="{_NONFINITE}">{text}</span>' if text else ""))
        rows.append(cells)
    more = len(section.values) - len(shown)
    note = block(and_more(more)) if more and not section.all_equal else ""
    return f"{block(title)}{scrolled(table(rows, head=head, named=labelled))}{note}"


def _values(value: ReplicaValue, reference: ReplicaValue | None) -> Markup:
    """The elements, those that differ from the reference's marked."""
    if value.rows:
        other = _in_rows(reference) if reference is not None and reference.rows else None
        rows = _in_rows(value)
        if reference is None:
            other = rows
        return Markup(f'<pre style="{_MONO}">{_marked_rows(rows, other, " ")}</pre>')
    if value.preview is None or value.preview.kind != "values":
        text = escaped(nested_values(value))
        style = f"{_MONO};white-space:pre-wrap;{_DIFFERENT if reference else ''}".rstrip(";")
        return Markup(f'<div style="{style}">{text}</div>')
    array = value.preview.array()
    words = [number_text(item) for item in array.reshape(-1).tolist()]
    width = max(map(len, words), default=0)
    marks = _marks(value, reference)
    cells = [
        _marked(word.rjust(width) if array.ndim > 1 else word, different=different)
        for word, different in zip(words, marks, strict=True)
    ]
    note = f"{escaped(value.texts[0])}: " if value.texts else ""
    return Markup(f'<pre style="{_MONO}">{note}{_laid_out(cells, array.shape)}</pre>')


def _marks(value: ReplicaValue, reference: ReplicaValue | None) -> list[bool]:
    """For each element whether it differs from the reference's."""
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
    """Nested rows in brackets, a line each, with a mark on what the other has not.

    Where the other's row goes on, the bracket that closes this one is marked.
    """
    if not isinstance(values, list):
        text = _bracketed(values)
        return _marked(text, different=other is None or text != _bracketed(other))
    others = other if isinstance(other, list) else []
    pairs = itertools.zip_longest(values, others[: len(values)])
    inner = [_marked_rows(mine, theirs, f"{indent} ") for mine, theirs in pairs]
    between = f",\n{indent}" if any(isinstance(item, list) for item in values) else ", "
    begin = _marked("[", different=other is None)
    end = _marked("]", different=other is None or len(others) > len(values))
    return f"{begin}{between.join(inner)}{end}"


def _laid_out(cells: Sequence[str], shape: tuple[int, ...]) -> str:
    """Elements in rows; a blank line between matrices."""
    if not cells:
        return "(no elements)"
    if len(shape) < 2:
        return "  ".join(cells)
    columns, rows = shape[-1], shape[-2]
    lines = ["  ".join(cells[at : at + columns]) for at in range(0, len(cells), columns)]
    blocks = ["\n".join(lines[at : at + rows]) for at in range(0, len(lines), rows)]
    return "\n\n".join(blocks)
