"""A picture of programs by their time and their memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from tpunb._util.tables import Markup
from tpunb._util.units import byte_count, duration
from tpunb.display.draw.colours import FRAME, HOST_COLOURS, INK
from tpunb.display.draw.svg import line, picture, short, words

_WIDTH, _HEIGHT, _LEFT, _TOP = 460.0, 220.0, 70.0, 16.0
_FITS, _OWN = HOST_COLOURS[:2]


class Point(NamedTuple):
    """A program in the picture.

    Attributes:
        name: What is written beside it, such as its number in a table.
        seconds: The time of a call.
        peak: The bytes of a core.
        fits: Whether it fits.
        is_own: Whether it is the user's own.
    """

    name: str
    seconds: float
    peak: int
    fits: bool
    is_own: bool = False


def frontier(
    given: Sequence[tuple[str, float, int, bool, bool]], limits: Collection[int]
) -> Markup:
    """Return a picture of time against memory, with a line along the best programs that fit.

    Args:
        given: The programs: each a `Point`.
        limits: The bytes of a core on each TPU type, drawn as lines if they are in the picture.
    """
    points = [Point(*each) for each in given]
    fitting = [point for point in points if point.fits]
    most = 1.1 * max(point.peak for point in fitting or points)
    shown = [limit for limit in limits if limit <= most]
    slowest = 1.1 * max((point.seconds for point in fitting), default=0.0) or 1.0

    def place(seconds: float, peak: float) -> tuple[float, float]:
        return _LEFT + _WIDTH * seconds / slowest, _TOP + _HEIGHT * (1 - peak / most)

    best = list(_frontier(fitting))

    def parts() -> Iterator[str]:
        yield line([place(0, most), place(0, 0), place(slowest, 0)], FRAME, width=1)
        for peak in (most / 1.1, most / 2.2):
            yield words(
                _LEFT - 6, place(0, peak)[1], byte_count(round(peak)), anchor="end", size=11
            )
        for seconds in (slowest / 1.1, slowest / 2.2):
            across, down = place(seconds, 0)
            yield words(across, down + 12, duration(seconds), size=11)
        yield words(_LEFT + _WIDTH / 2, _TOP + _HEIGHT + 30, "time of a call", size=11)
        if len(fitting) < len(points):
            yield words(place(1.12 * slowest, 0)[0], _TOP + _HEIGHT + 12, "does not fit", size=11)
        for limit in shown:
            yield line([place(0, limit), place(slowest, limit)], _OWN, width=1, opacity=0.6)
        if len(best) > 1:
            yield line([place(each.seconds, each.peak) for each in best], _FITS, width=1.5)
        for point in points:
            # A program that does not fit has no time, and may need much more: it is in the margin.
            across, down = place(point.seconds, point.peak)
            if not point.fits:
                across, down = place(1.12 * slowest, min(point.peak, most))
            colour = INK if not point.fits else _OWN if point.is_own else _FITS
            fill = colour if point.fits else "none"
            yield (
                f'<circle cx="{short(across)}" cy="{short(down)}" r="5" fill="{fill}" '
                f'stroke="{colour}" stroke-width="1.5"/>'
            )
            yield words(across + 8, down - 7, point.name, size=11, anchor="start")

    fastest = f"the fastest that fits is {best[0].name}" if best else "none fits"
    said = f"{len(points)} programs by their time and memory; {fastest}"
    return picture(parts(), _LEFT + 1.12 * _WIDTH + 50, _TOP + _HEIGHT + 40, said)


def _frontier(points: Sequence[Point]) -> Iterator[Point]:
    """Yield the programs that no other one beats in both time and memory, the fastest first."""
    least = None
    for point in sorted(points, key=lambda each: (each.seconds, each.peak)):
        if least is None or point.peak < least:
            least = point.peak
            yield point
