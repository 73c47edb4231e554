"""Descriptions as HTML tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tpunb._util.tables import GREEN, ORANGE, Markup, badge, block, escaped, table
from tpunb.display.describe.connection import ConnectionDescription
from tpunb.display.describe.replicas import ReplicaValue, ReplicaValuesDescription, Section
from tpunb.display.draw import formats

__all__ = ["connection_html", "facts_html", "introduction_html", "replicas_html"]

_MAX_ROWS = 64
_MONO = "font-family:monospace;white-space:pre;margin:0"
_DIFFERENT = f"background:{ORANGE}"
_NONFINITE = "background:rgba(204,51,119,.35)"
_BADGES = {"virtual": ORANGE, "hardware": GREEN}


def replicas_html(description: ReplicaValuesDescription) -> str:
    """A table for each leaf, with a row for each replica.

    Where all replicas are equal there is one row, and the title says it;
    elsewhere, elements that differ from replica 0's are marked.
    """
    parts: list[str] = [block(formats.replicas_title(description), bold=True)]
    alone = len(description.sections) == 1
    parts += [_section(section, alone=alone) for section in description.sections]
    if description.omitted:
        parts.append(block(formats.and_more(description.omitted)))
    return f"<div>{''.join(parts)}</div>"


def connection_html(connection: ConnectionDescription) -> str:
    """The summary of a connection; what kind of TPU it is comes first."""
    title = badge(formats.connection_title(connection), _BADGES[connection.kind])
    rows = table(formats.connection_rows(connection), named=True)
    notes = "".join(block(note) for note in connection.notes)
    return f"<div>{block(title)}{rows}{notes}</div>"


def introduction_html(connection: ConnectionDescription) -> str:
    """What is connected to, beside a display of its topology."""
    title = badge(formats.connection_title(connection), _BADGES[connection.kind])
    line = Markup(f"{title} {escaped(formats.replicas_phrase(connection))}")
    notes = "".join(block(note) for note in connection.notes)
    return f"<div>{block(line)}{notes}</div>"


def facts_html(headline: str, rows: Iterable[tuple[str, str]]) -> str:
    """Names and values in two columns under a headline."""
    return f"<div>{block(headline, bold=True)}{table(rows, named=True)}</div>"


def _section(section: Section, *, alone: bool) -> str:
    title = formats.section_title(section, alone=alone and section.distributed)
    shown = section.values[:1] if section.all_equal else section.values[:_MAX_ROWS]
    labelled = section.distributed and not section.all_equal
    statistics = any(_has_statistics(value) for value in shown)
    flagged = any(formats.flags(value.statistics) for value in shown)
    rows = []
    for replica, value in enumerate(shown):
        reference = section.values[0] if section.differs[replica] else None
        cells = [f"replica {section.replica(replica)}"] if labelled else []
        cells += [_values(value, reference), formats.shape_phrase(value.shape), value.dtype]
        cells += _statistics_cells(value) if statistics else []
        cells += [_flags(value)] if flagged else []
        rows.append(cells)
    head = _head(labelled=labelled, statistics=statistics, flagged=flagged)
    more = len(section.values) - len(shown)
    note = block(formats.and_more(more)) if more and not section.all_equal else ""
    return f"{block(title)}{table(rows, head=head, named=labelled)}{note}"


def _head(*, labelled: bool, statistics: bool, flagged: bool) -> list[str]:
    return [
        *([""] if labelled else []),
        *("values", "shape", "dtype"),
        *(("min", "mean", "max", "std") if statistics else ()),
        *(["not finite"] if flagged else []),
    ]


def _has_statistics(value: ReplicaValue) -> bool:
    """Whether statistics add anything to the value itself."""
    return value.statistics is not None and value.shape != ()


def _statistics_cells(value: ReplicaValue) -> list[str]:
    if value.statistics is None:
        return [""] * 4
    one = value.statistics
    if value.dtype == "bool":
        share = "" if one.mean is None else formats.number(one.mean)
        return ["", share, "", ""]
    return [formats.number(n) for n in (one.minimum, one.mean, one.maximum, one.deviation)]


def _flags(value: ReplicaValue) -> Markup:
    text = escaped(formats.flags(value.statistics))
    return Markup(f'<span style="{_NONFINITE}">{text}</span>' if text else "")


def _values(value: ReplicaValue, reference: ReplicaValue | None) -> Markup:
    """The elements, those that differ from the reference's marked."""
    if value.preview is None or value.preview.kind != "values":
        text = escaped(formats.nested_values(value))
        style = f"{_MONO};white-space:pre-wrap;{_DIFFERENT if reference else ''}".rstrip(";")
        return Markup(f'<div style="{style}">{text}</div>')
    array = value.preview.array()
    words = [formats.number(item) for item in array.reshape(-1).tolist()]
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
