"""Counts, bytes and durations as text, in one form everywhere."""

from __future__ import annotations

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


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
