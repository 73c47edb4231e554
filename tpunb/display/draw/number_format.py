"""Numbers, shapes and counts in the form that text, tables and pictures share."""

from __future__ import annotations

import math

from tpunb._util.units import grouped

_THOUSAND, _TEN_MILLION = 1e3, 1e7


_EXACT = 2**53
"""Up to here a page's numbers hold every integer."""


Number = int | float | bool


def number_text(value: Number | None) -> str:
    """A number in a form that does not change from run to run."""
    if value is None:
        return "–"
    if isinstance(value, bool | int):
        return str(value) if abs(value) < _EXACT else f"{float(value):.4g}"
    if math.isnan(value):
        return "nan"
    # All seven digits of 32 bits: 12345.68 rounded to 12346 would look like an integer.
    return f"{value:.7g}" if _THOUSAND <= abs(value) < _TEN_MILLION else f"{value:.4g}"


def sampled_phrase(rows: int, columns: int = 1, *, of: str = "") -> str:
    """The part of a value that is drawn: `"1 in 2 rows drawn"`; empty where all of it is.

    Args:
        rows: One in so many of the rows, or of what `of` says.
        columns: The same of the columns.
        of: What the rows are called instead.
    """
    steps = ((rows, of or "rows"), (columns, "columns"))
    parts = [f"1 in {step} {what}" for step, what in steps if step > 1]
    return f"{' and '.join(parts)} drawn" if parts else ""


def and_more(count: int) -> str:
    """The last line of a list that is cut off: `"and 3 more"`."""
    return f"and {grouped(count)} more"


def shape_phrase(shape: tuple[int | None, ...] | None) -> str:
    """A shape as `"[2, 3]"`; `"None"` for an axis of unequal lengths."""
    return "" if shape is None else f"[{', '.join(map(str, shape))}]"
