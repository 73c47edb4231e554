"""Results as a table for the terminal, as a table for a page, and as JSON."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from tpunb._util.units import byte_count, duration

__all__ = [
    "MeasurementError",
    "Result",
    "limit",
    "markdown",
    "quantity",
    "ratio_with_spread",
    "table",
]


class MeasurementError(Exception):
    """A process that measures failed."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One case.

    Attributes:
        case: What was measured.
        ours: The measurement of each repeat.
        peer_name: The name of the peer, or `"limit"`.
        peer: The peer's measurement in each repeat, or the limit.
        wanted: The largest ratio that is wanted; None for no limit.
        unit: The unit of all measurements: `"s"` or `"B"`.
        missing: The reason why the ratio is missing; empty if it is known.
    """

    case: str
    ours: tuple[float, ...]
    peer_name: str
    peer: tuple[float, ...]
    wanted: float | None = None
    unit: str = "s"
    missing: str = ""

    @property
    def ratios(self) -> list[float]:
        """Our measurement divided by the peer's, for each repeat."""
        return [mine / theirs for mine, theirs in zip(self.ours, self.peer, strict=False)]

    @property
    def ratio(self) -> float | None:
        """The median of the ratios."""
        return statistics.median(self.ratios) if self.ratios else None

    def as_dict(self) -> dict[str, object]:
        """Return the result for programs, in seconds or bytes."""
        return {**dataclasses.asdict(self), "ratios": self.ratios, "ratio": self.ratio}


_HEADER = ("case", "ours", "peer or limit", "", "ratio", "spread", "wanted")


def table(results: Iterable[Result]) -> str:
    """Return the results in columns."""
    rows: list[Sequence[str]] = [_HEADER, *map(_row, results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of a Markdown page."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def quantity(values: Sequence[float], unit: str) -> str:
    """Return the median of several measurements."""
    middle = statistics.median(values)
    return duration(middle) if unit == "s" else byte_count(middle)


def ratio_with_spread(result: Result) -> str:
    """Return a ratio, with its range if there are several."""
    if result.ratio is None:
        return result.missing
    spread = f" ({_spread(result)})" if len(result.ratios) > 1 else ""
    return f"{_number(result.ratio)}×{spread}"


def limit(result: Result) -> str:
    """Return the required ratio."""
    return "" if result.wanted is None else f"≤ {_number(result.wanted)}"


def _row(result: Result) -> Sequence[str]:
    if result.ratio is None:
        return (result.case, result.missing, "", result.peer_name, "", "", limit(result))
    return (
        result.case,
        quantity(result.ours, result.unit),
        quantity(result.peer, result.unit),
        result.peer_name,
        _number(result.ratio),
        _spread(result),
        limit(result),
    )


def _spread(result: Result) -> str:
    return f"{_number(min(result.ratios))}–{_number(max(result.ratios))}"


def _number(ratio: float) -> str:
    return f"{ratio:.2f}" if 0.1 <= ratio < 10 else f"{ratio:.2g}"
