"""What the doctor found as an HTML table; every text is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["checkup_html"]

_LINE = "border-bottom:1px solid rgba(128,128,128,.25)"
_CELL = f"padding:2px 12px 2px 0;text-align:left;vertical-align:top;{_LINE}"
_NAME = f"{_CELL};font-weight:400;opacity:.75;white-space:nowrap"
_VALUE = f"{_CELL};overflow-wrap:anywhere"
_TITLE = (
    "padding:10px 12px 2px 0;text-align:left;font-weight:600;"
    "border-bottom:1px solid rgba(128,128,128,.6)"
)
_TABLE = "color:inherit;border-collapse:collapse;margin:4px 0 10px;font-size:13px;max-width:60em"
_BADGE = "padding:1px 8px;border-radius:9px;font-weight:600;font-size:13px;background:"
_GREEN = "rgba(0,158,115,.35)"
_ORANGE = "rgba(230,159,0,.35)"
_NEXT = (
    "padding:6px 10px;border:1px solid rgba(128,128,128,.6);border-radius:4px;"
    "font-family:monospace;font-size:13px;display:inline-block;user-select:all"
)


def checkup_html(
    headline: str,
    sections: Iterable[tuple[str, Sequence[tuple[str, str]]]],
    step: tuple[str, str],
    *,
    ok: bool,
) -> str:
    """The report as a table, its headline above it and the next step below it.

    Colours are see-through or inherited, and so fit a light and a dark page.

    Args:
        headline: How things stand.
        sections: Titles, and rows of a name and a value.
        step: A title, and what to do next.
        ok: Whether all is in order.
    """
    body = "".join(
        f'<tr><th colspan="2" style="{_TITLE}">{html.escape(title)}</th></tr>{_rows(rows)}'
        for title, rows in sections
    )
    title, what = map(html.escape, step)
    badge = f"{_BADGE}{_GREEN if ok else _ORANGE}"
    return (
        f'<div><div style="margin:4px 0"><span style="{badge}">{html.escape(headline)}</span></div>'
        f'<table style="{_TABLE}"><tbody>{body}</tbody></table>'
        f'<div style="margin:4px 0 10px;font-size:13px">{title}: '
        f'<code style="{_NEXT}">{what}</code></div></div>'
    )


def _rows(rows: Sequence[tuple[str, str]]) -> str:
    return "".join(
        f'<tr><th style="{_NAME}">{html.escape(name)}</th><td style="{_VALUE}">{markup}</td></tr>'
        for name, markup in _cells(rows)
    )


def _cells(rows: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Names and the markup of their values; a value without a name belongs to the one before."""
    values: list[str] = []
    named = ""
    for name, value in rows:
        if name and values:
            yield named, "".join(values)
            values = []
        named = name or named
        values.append(f"<div>{html.escape(value)}</div>")
    if values:
        yield named, "".join(values)
