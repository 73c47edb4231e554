"""Descriptions as HTML tables that survive where scripts and SVG do not.

Styles are inline, colours are see-through or inherited and so fit a light and
a dark page, and every text that comes from data is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import numpy as np

from tpunb.describe.connection import ConnectionDescription
from tpunb.describe.replicas import ReplicaValue, ReplicaValuesDescription, Section
from tpunb.draw import wording

__all__ = ["connection_html", "facts_html", "replicas_html", "rows_html"]

_MAX_ROWS = 64
_LINE = "border-bottom:1px solid rgba(128,128,128,.35)"
_CELL = f"padding:3px 10px;text-align:left;vertical-align:top;{_LINE}"
_HEAD = f"{_CELL};font-weight:600"
_MONO = "font-family:monospace;white-space:pre;margin:0"
_TABLE = "border-collapse:collapse;margin:4px 0 10px;font-size:13px"
_TITLE = "font-size:13px;margin:4px 0"
_DIFFERENT = "background:rgba(230,159,0,.35)"
_ODD = "background:rgba(204,51,119,.35)"
_BADGE = "padding:1px 8px;border-radius:9px;font-weight:600;background:"
_BADGES = {"virtual": "rgba(230,159,0,.35)", "hardware": "rgba(0,158,115,.35)"}


def replicas_html(description: ReplicaValuesDescription) -> str:
    """A table for each leaf, with a row for each replica.

    Where all replicas are equal there is one row and a line that says so;
    elsewhere, elements that differ from replica 0's are marked.
    """
    parts = [_line(wording.replicas_title(description), bold=True)]
    alone = len(description.sections) == 1
    parts += [_section(section, alone=alone) for section in description.sections]
    if description.omitted:
        parts.append(_line(f"and {description.omitted} more"))
    return f"<div>{''.join(parts)}</div>"


def connection_html(connection: ConnectionDescription) -> str:
    """The summary of a connection; what kind of TPU it is comes first."""
    badge = html.escape(wording.connection_title(connection))
    title = f'<span style="{_BADGE}{_BADGES[connection.kind]}">{badge}</span>'
    notes = [_line(note) for note in connection.notes]
    return (
        f'<div><div style="{_TITLE}">{title}</div>'
        f"{_facts(wording.connection_rows(connection))}{''.join(notes)}</div>"
    )


def facts_html(headline: str, rows: Iterable[tuple[str, str]]) -> str:
    """Names and values in two columns under a headline."""
    return f"<div>{_line(headline, bold=True)}{_facts(rows)}</div>"


def rows_html(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of texts under a row of names; the texts are escaped."""
    body = "".join(_row([_td(html.escape(cell)) for cell in row]) for row in rows)
    names = _row([_th(name) for name in head])
    return f'<table style="{_TABLE}"><thead>{names}</thead><tbody>{body}</tbody></table>'


def _facts(rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(_row([_th(name), _td(html.escape(value))]) for name, value in rows)
    return f'<table style="{_TABLE}"><tbody>{body}</tbody></table>'


def _section(section: Section, *, alone: bool) -> str:
    title = wording.section_title(section, alone=alone and section.distributed)
    shown = section.values[:1] if section.all_equal else section.values[:_MAX_ROWS]
    labelled = section.distributed and not section.all_equal
    statistics = any(_has_statistics(value) for value in shown)
    flagged = any(wording.flags(value.statistics) for value in shown)
    header = _header(labelled=labelled, statistics=statistics, flagged=flagged)
    rows = []
    for replica, value in enumerate(shown):
        cells = [_th(f"replica {section.replica(replica)}")] if labelled else []
        reference = section.values[0] if section.differs[replica] else None
        cells += [
            _td(_values(value, reference)),
            _td(html.escape(wording.shape_phrase(value.shape))),
            _td(html.escape(value.dtype)),
        ]
        cells += _statistics_cells(value) if statistics else []
        cells += [_td(_flags(value))] if flagged else []
        rows.append(_row(cells))
    more = len(section.values) - len(shown)
    note = _line(f"and {more} more") if more and not section.all_equal else ""
    return (
        f'{_line(title)}<table style="{_TABLE}"><thead>{header}</thead>'
        f"<tbody>{''.join(rows)}</tbody></table>{note}"
    )


def _header(*, labelled: bool, statistics: bool, flagged: bool) -> str:
    names = [""] if labelled else []
    names += ["values", "shape", "dtype"]
    names += ["min", "mean", "max"] if statistics else []
    names += ["not finite"] if flagged else []
    return _row([_th(name) for name in names])


def _has_statistics(value: ReplicaValue) -> bool:
    """Whether statistics say more than the value itself."""
    return value.statistics is not None and value.shape != ()


def _statistics_cells(value: ReplicaValue) -> list[str]:
    if value.statistics is None:
        return [_td("")] * 3
    three = (value.statistics.minimum, value.statistics.mean, value.statistics.maximum)
    return [_td(html.escape(wording.number(item))) for item in three]


def _flags(value: ReplicaValue) -> str:
    text = html.escape(wording.flags(value.statistics))
    return f'<span style="{_ODD}">{text}</span>' if text else ""


def _values(value: ReplicaValue, reference: ReplicaValue | None) -> str:
    """The elements, those that differ from the reference's marked."""
    if value.preview is None or value.preview.kind != "values":
        text = html.escape(wording.nested_values(value))
        style = f"{_MONO};white-space:pre-wrap;{_DIFFERENT if reference else ''}".rstrip(";")
        return f'<div style="{style}">{text}</div>'
    array = value.preview.array()
    words = [wording.number(item) for item in array.reshape(-1).tolist()]
    width = max(map(len, words), default=0)
    marks = _marks(value, reference)
    cells = [
        _marked(word.rjust(width) if array.ndim > 1 else word, different=different)
        for word, different in zip(words, marks, strict=True)
    ]
    note = f"{html.escape(value.texts[0])}: " if value.texts else ""
    return f'<pre style="{_MONO}">{note}{_laid_out(cells, array.shape)}</pre>'


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
    escaped = html.escape(text)
    style = _ODD if text.strip() in ("nan", "inf", "-inf") else _DIFFERENT if different else ""
    return f'<span style="{style}">{escaped}</span>' if style else escaped


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


def _line(text: str, *, bold: bool = False) -> str:
    weight = ";font-weight:600" if bold else ""
    return f'<div style="{_TITLE}{weight}">{html.escape(text)}</div>' if text else ""


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(cells)}</tr>"


def _th(text: str) -> str:
    return f'<th style="{_HEAD}">{html.escape(text)}</th>'


def _td(markup: str) -> str:
    return f'<td style="{_CELL}">{markup}</td>'
