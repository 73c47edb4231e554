"""The doctor's findings as an HTML table; every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tpunb._util.tables import GREEN, ORANGE, REPORT, badge, block, escaped, lines, table

_CODE = (
    "padding:6px 10px;border:1px solid rgba(128,128,128,.6);border-radius:4px;"
    "font-family:monospace;font-size:13px;display:inline-block;user-select:all"
)

Rows = Sequence[tuple[str, str]]


def doctor_html(
    headline: str, sections: Iterable[tuple[str, Rows]], step: tuple[str, str], *, ok: bool
) -> str:
    """Return the report as a table, its headline above it and the next step below it.

    Args:
        headline: The result in a sentence.
        sections: Titles, and rows of a name and a value.
        step: A title, and the next step.
        ok: Whether no problems were found.
    """
    rows = [row for title, section in sections for row in (title, *_merged(section))]
    title, advice = map(escaped, step)
    return (
        f"<div>{block(badge(headline, GREEN if ok else ORANGE))}"
        f"{table(rows, named=True, style=REPORT)}"
        f'<div style="margin:4px 0 10px;font-size:13px">{title}: '
        f'<code style="{_CODE}">{advice}</code></div></div>'
    )


def _merged(rows: Rows) -> Iterator[tuple[str, str]]:
    """Yield rows in which a value without a name has joined the row before it."""
    values: list[str] = []
    named = ""
    for name, value in rows:
        if name and values:
            yield named, lines(values)
            values = []
        named = name or named
        values.append(value)
    if values:
        yield named, lines(values)
