"""Numbers, shapes, bytes and durations as text, in the same form everywhere."""

from __future__ import annotations

import math

Number = int | float | bool

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_THOUSAND, _TEN_MILLION = 1e3, 1e7
_EXACT = 2**53
"""The limit up to which a page's numbers represent every integer."""


def grouped(count: int) -> str:
    """Return an integer with commas from five digits on: `"8960"`, `"17,920"`."""
    return f"{count:,}" if abs(count) >= 10_000 else str(count)


_PLURALS = {"axis": "axes", "entry": "entries"}


def counted(count: int, noun: str) -> str:
    """Return a count and its noun in the right number: `"1 core"`, `"2 cores"`, `"2 axes"`."""
    return f"{grouped(count)} {noun if count == 1 else _PLURALS.get(noun, f'{noun}s')}"


def byte_count(size: float) -> str:
    """Return bytes in the largest binary unit that gives at least 1, like `common.js`."""
    power = 0
    while size >= 1024 and power < len(_BYTE_UNITS) - 1:
        size, power = size / 1024, power + 1
    # Four digits: three would turn 1000 to 1023 of a unit into 1e+03.
    return f"{size:.4g} {_BYTE_UNITS[power]}"


def duration(seconds: float) -> str:
    """Return a duration with about three digits: `"250 µs"`, `"1.52 s"`, `"3 min"`.

    An hour or more is `"2 h 5 min"`. Round the argument if whole seconds are enough.
    """
    if not seconds:
        return "0 s"
    # Each limit is the point from which rounding to three digits would reach the next unit.
    if seconds < 999.5e-6:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def rate(per_second: float) -> str:
    """Return a number per second with three digits."""
    digits = f"{per_second:.3g}"
    return grouped(round(float(digits))) if per_second >= 100 else digits


def number_text(value: Number | None) -> str:
    """Return a number in a form that is the same in every run."""
    if value is None:
        return "–"
    if isinstance(value, bool | int):
        return str(value) if abs(value) < _EXACT else f"{float(value):.4g}"
    if math.isnan(value):
        return "nan"
    # Keep all seven digits of 32 bits: rounding 12345.68 to 12346 would show an integer.
    return f"{value:.7g}" if _THOUSAND <= abs(value) < _TEN_MILLION else f"{value:.4g}"


def percent(fraction: float) -> str:
    """Return a share in whole percents; `"<1%"` for less."""
    return "<1%" if 0 < fraction < 0.005 else f"{100 * fraction:.0f}%"


def sampled_phrase(rows: int, columns: int = 1, *, of: str = "") -> str:
    """Return a phrase for the visible part of a value, or an empty string if all is visible.

    An example is `"1 in 2 rows drawn"`.

    Args:
        rows: The step between drawn rows.
        columns: The step between drawn columns.
        of: The name of the rows, if they are not called rows.
    """
    steps = ((rows, of or "rows"), (columns, "columns"))
    parts = [f"1 in {step} {name}" for step, name in steps if step > 1]
    return f"{' and '.join(parts)} drawn" if parts else ""


def and_more(count: int) -> str:
    """Return the last line of a list that is cut: `"and 3 more"`."""
    return f"and {grouped(count)} more"


def shape_phrase(shape: tuple[int | None, ...] | None) -> str:
    """Return a shape such as `"[2, 3]"`, with `"None"` for an axis of unequal lengths."""
    return "" if shape is None else f"[{', '.join(map(str, shape))}]"
