"""Results, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class Result:
    """One case.

    Attributes:
        case: What was measured.
        ours: Seconds of each repeat.
        peer_name: What it is held against.
        peer: Seconds of the peer in each repeat, or the limit.
        wanted: The ratio that is wanted at most; None where there is no wish.
    """

    case: str
    ours: tuple[float, ...]
    peer_name: str
    peer: tuple[float, ...]
    wanted: float | None = None

    @property
    def ratios(self) -> list[float]:
        """Ours over the peer's, repeat by repeat."""
        return [mine / theirs for mine, theirs in zip(self.ours, self.peer, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)

    def as_dict(self) -> dict[str, object]:
        """The result for programs, in seconds."""
        return {**dataclasses.asdict(self), "ratios": self.ratios, "ratio": self.ratio}


_HEADER = ("case", "ours", "peer or limit", "", "ratio", "spread", "wanted")


def table(results: Iterable[Result]) -> str:
    """The results in columns."""
    rows: list[Sequence[str]] = [_HEADER, *map(_row, results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _row(result: Result) -> Sequence[str]:
    low, high = min(result.ratios), max(result.ratios)
    return (
        result.case,
        _time(statistics.median(result.ours)),
        _time(statistics.median(result.peer)),
        result.peer_name,
        _number(result.ratio),
        f"{_number(low)} to {_number(high)}",
        "" if result.wanted is None else f"≤ {_number(result.wanted)}",
    )


def _number(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
