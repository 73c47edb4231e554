"""Numbers, shapes, bytes and durations as text, in one form everywhere."""

from __future__ import annotations

import math

Number = int | float | bool

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_THOUSAND, _TEN_MILLION = 1e3, 1e7
_EXACT = 2**53
"""Up to here a page's numbers hold every integer."""


def grouped(count: int) -> str:
    """An integer with commas from five digits on: `"8960"`, `"17,920"`."""
    return f"{count:,}" if abs(count) >= 10_000 else str(count)


def counted(count: int, noun: str) -> str:
    """A count and its noun in the right number: `"1 core"`, `"2 cores"`."""
    return f"{grouped(count)} {noun}" if count == 1 else f"{grouped(count)} {noun}s"


def byte_count(size: float) -> str:
    """Bytes in the largest binary unit that gives at least 1, as `memoryText` in `common.js`."""
    power = 0
    while size >= 1024 and power < len(_BYTE_UNITS) - 1:
        size, power = size / 1024, power + 1
    # Four digits: three would turn 1000 to 1023 of a unit into 1e+03.
    return f"{size:.4g} {_BYTE_UNITS[power]}"


def duration(seconds: float) -> str:
    """A duration to about three digits: `"250 µs"`, `"1.52 s"`, `"3 min"`, `"2 h 5 min"`.

    Round the argument where whole seconds are enough.
    """
    if not seconds:
        return "0 s"
    # Each limit is where rounding to three digits would reach the next unit.
    if seconds < 999.5e-6:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


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
