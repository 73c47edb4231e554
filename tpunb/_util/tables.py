"""HTML tables that work without scripts and style sheets.

Styles are inline. Colours are transparent or inherited, to fit light and dark pages. Text is
escaped unless it is `Markup`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

GREEN = "rgba(0,158,115,.35)"
ORANGE = "rgba(230,159,0,.35)"

_CELL = "padding:3px 10px;text-align:left;vertical-align:top"
_RULE = "border-bottom:1px solid rgba(128,128,128,.35)"
_BADGE = "padding:1px 8px;border-radius:9px;font-weight:600;background:"


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TableStyle:
    """The CSS of a table's elements.

    Attributes:
        table: The table's CSS; may be empty.
        heading: The CSS of cells that name a row or a column.
        cell: The CSS of the other cells.
        title: The CSS of titles across all columns.
    """

    table: str
    heading: str
    cell: str
    title: str = ""


LINED = TableStyle(
    "border-collapse:collapse;margin:4px 0 10px;font-size:13px",
    f"{_CELL};{_RULE};font-weight:600;white-space:nowrap",
    f"{_CELL};{_RULE}",
)
"""The style with a rule below each row."""

PLAIN = TableStyle("", _CELL, _CELL)
"""The page's own style."""

_LEFT = "text-align:left;vertical-align:top;border-bottom:1px solid rgba(128,128,128,.25)"
REPORT = TableStyle(
    "color:inherit;border-collapse:collapse;margin:4px 0 10px;font-size:13px;max-width:60em",
    f"padding:2px 12px 2px 0;{_LEFT};font-weight:400;opacity:.75;white-space:nowrap",
    f"padding:2px 12px 2px 0;{_LEFT}",
    "padding:10px 12px 2px 0;text-align:left;font-weight:600;"
    "border-bottom:1px solid rgba(128,128,128,.6)",
)
"""The style for many rows under titles, with names less prominent than values."""


def escaped(text: str) -> Markup:
    """Return text escaped as markup."""
    return text if isinstance(text, Markup) else Markup(html.escape(text))


def table(
    rows: Iterable[Sequence[str] | str],
    *,
    head: Sequence[str] = (),
    named: bool = False,
    style: TableStyle = LINED,
    attributes: Sequence[str] = (),
) -> Markup:
    """Return a table.

    Args:
        rows: The cells of each row. A string is a title across all columns.
        head: The names of the columns, if any.
        named: Whether the first cell of each row is its name.
        style: The table's style.
        attributes: The attributes of each row, which make a grid whose rows a page can select.
    """
    rows = list(rows)
    columns = max((len(row) for row in rows if not isinstance(row, str)), default=1)
    title = f'<tr><th colspan="{columns}" style="{style.title}">'
    body = "".join(
        f"{title}{escaped(row)}</th></tr>"
        if isinstance(row, str)
        else _row(row, int(named), style, *attributes[number : number + 1])
        for number, row in enumerate(rows)
    )
    names = f"<thead>{_row(head, len(head), style)}</thead>" if head else ""
    role = ' role="grid" aria-multiselectable="true"' if attributes else ""
    css = f' style="{style.table}"' if style.table else ""
    return Markup(f"<table{role}{css}>{names}<tbody>{body}</tbody></table>")


@dataclass(frozen=True, slots=True)
class Tile:
    """A cell of a picture.

    Attributes:
        content: Its text.
        style: Its CSS.
        title: What the page shows when it is pointed at.
    """

    content: str
    style: str
    title: str = ""


def tiles(rows: Iterable[Iterable[Tile]], style: str, *, spoken: bool = True) -> Markup:
    """Return a picture of rows of cells.

    Args:
        rows: The cells.
        style: The CSS of the whole, beside the space between the cells.
        spoken: Whether screen readers read the cells as a table.
    """
    # Front ends stripe the rows of tables.
    lines = (f'<tr style="background:none">{"".join(map(_tile, row))}</tr>' for row in rows)
    role = "" if spoken else ' role="presentation"'
    space = "border-collapse:separate;color:inherit"
    return Markup(f'<table{role} style="{space};{style}"><tbody>{"".join(lines)}</tbody></table>')


def _tile(tile: Tile) -> str:
    title = f' title="{html.escape(tile.title)}"' if tile.title else ""
    return f'<td{title} style="{tile.style}">{escaped(tile.content)}</td>'


def _row(cells: Sequence[str], headings: int, style: TableStyle, attributes: str = "") -> str:
    """Return a row whose first cells are headings."""
    names = "".join(_cell("th", style.heading, cell) for cell in cells[:headings])
    values = "".join(_cell("td", style.cell, cell) for cell in cells[headings:])
    return f"<tr{attributes}>{names}{values}</tr>"


_FIGURE = re.compile(r"\d.{0,15} .{0,15}")
_LONG_WORD = re.compile(r"(\S{31,})")
_PART = re.compile(r"[^/.:,=]{0,30}[/.:,=]{1,30}|[^/.:,=]{1,30}")


def _cell(tag: str, style: str, cell: str) -> str:
    """Return a cell. A number stays on one line with its unit or share; a long name may wrap.

    If a style allows breaks anywhere, browsers squeeze a narrow table until words and numbers
    break. So a path or a long name gets places to break, between its parts.
    """
    if isinstance(cell, Markup):
        return f'<{tag} style="{style}">{cell}</{tag}>'
    words = _LONG_WORD.split(cell)
    words[1::2] = ["\0".join(_PART.findall(word)) for word in words[1::2]]
    text = html.escape("".join(words)).replace("\0", "<wbr>")
    space = "normal" if len(words) > 1 else "nowrap" if _FIGURE.fullmatch(cell) else ""
    return f'<{tag} style="{style}{space and f";white-space:{space}"}">{text}</{tag}>'


_SCROLLED = 'role="group" aria-label="Table" tabindex="0" style="overflow-x:auto;max-width:100%"'
_SUMMARY = "font-size:13px;line-height:24px;font-weight:600;cursor:pointer"


def scrolled(content: str) -> Markup:
    """Return content that scrolls on a narrow page, with the keyboard too."""
    return Markup(f"<div {_SCROLLED}>{content}</div>")


def folded(title: str, content: str, *, is_open: bool = False) -> Markup:
    """Return a section that opens and closes when its title is pressed."""
    opened = " open" if is_open else ""
    summary = f'<summary style="{_SUMMARY}">{escaped(title)}</summary>'
    return Markup(f"<details{opened}>{summary}{content}</details>")


def lines(texts: Iterable[str]) -> Markup:
    """Return the content of a cell with one line for each text."""
    return Markup("".join(f"<div>{escaped(text)}</div>" for text in texts))


def block(text: str, *, bold: bool = False) -> Markup:
    """Return a line above or below a table, or no markup for an empty text."""
    weight = ";font-weight:600" if bold else ""
    style = f"font-size:13px;margin:4px 0{weight}"
    return Markup(f'<div style="{style}">{escaped(text)}</div>' if text else "")


def badge(text: str, colour: str) -> Markup:
    """Return text on a rounded, coloured background."""
    return Markup(f'<span style="{_BADGE}{colour}">{escaped(text)}</span>')
