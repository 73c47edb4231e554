"""Sends between cores as arrows on a TPU's mesh. Every arrow is a link, or inside a chip."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from tpunb._util.plain_text import hanging, plain
from tpunb._util.tables import Markup
from tpunb._util.units import and_more
from tpunb.display.describe.sends import Sends
from tpunb.display.draw import svg
from tpunb.display.draw.colours import FRAME, HOST_COLOURS

_CORE, _INSIDE, _RIM = 38, 24, 9
_ACROSS, _DOWN = 52, 50
_DIRECT, _DETOUR = HOST_COLOURS[0], HOST_COLOURS[1]
_MOST_LISTED = 4


def sends_title(sends: Sends) -> str:
    """Return the title: `"A ring of the 8 cores of v3-8"`."""
    if sends.is_ring:
        return f"A ring of the {sends.acc.num_devices} cores of {sends.acc.name}"
    return f"Sends between the cores of {sends.acc.name}"


def sends_sentences(sends: Sends) -> list[str]:
    """Return the pairs, and which of them have no link."""
    if sends.is_ring:
        following = dict(sends.pairs)
        order = [0]
        while len(order) < len(sends.pairs):
            order.append(following[order[-1]])
        sentence = f"{' → '.join(map(str, [*order, 0]))}."
    else:
        sentence = f"{', '.join(f'{a} → {b}' for a, b in sends.pairs)}."
    if not sends.detours:
        return [sentence, "Each core sends over one link, or inside its chip."]
    ways = [
        f"{way[0]} → {way[-1]} passes {', '.join(map(str, way[1:-1]))}" for way in sends.detours
    ]
    more = f", {and_more(len(ways) - _MOST_LISTED)}" if len(ways) > _MOST_LISTED else ""
    return [sentence, f"No direct link (dashed): {'; '.join(ways[:_MOST_LISTED])}{more}."]


def sends_text(sends: Sends) -> str:
    """Return sends as plain text."""
    lines = (hanging("  ", sentence, 100) for sentence in sends_sentences(sends))
    return plain("\n".join([sends_title(sends), *lines]))


def sends_html(sends: Sends) -> Markup:
    """Return the picture of sends, with its title and sentences."""
    drawing = _Drawing(sends)
    says = f"{sends_title(sends)}. {' '.join(sends_sentences(sends))}"
    drawn = svg.picture(drawing.parts(), drawing.width, drawing.height, says)
    return svg.titled(sends_title(sends), sends_sentences(sends), drawn)


class _Drawing:
    """The cores of a flat mesh, with arrows.

    Args:
        sends: The sends.
    """

    def __init__(self, sends: Sends) -> None:
        self._sends = sends
        acc = sends.acc
        per_chip = acc.devices_per_chip
        self._chip = per_chip * _CORE + (per_chip - 1) * _INSIDE + 2 * _RIM, _CORE + 2 * _RIM
        self._step = self._chip[0] + _ACROSS, self._chip[1] + _DOWN
        self._places = [place for host in acc.device_coordinates() for place in host]
        self.width = acc.mesh[0] * self._step[0] - _ACROSS + 4
        self.height = acc.mesh[1] * self._step[1] - _DOWN + 4

    def parts(self) -> Iterator[str]:
        """Yield links, chips, cores and arrows."""
        yield from self._links()
        for x, y, _, slot in self._places:
            if slot == 0:
                left, top = self._corner(x, y)
                yield svg.box(left, top, *self._chip, edge=FRAME)
        for core in range(len(self._places)):
            middle = across, down = self._centre(core)
            yield svg.box(across - _CORE / 2, down - _CORE / 2, _CORE, _CORE, svg.NEUTRAL)
            yield svg.words(*middle, str(core), fill="#fff", size=14, bold=True)
        yield from self._arrows()

    def _corner(self, x: int, y: int) -> svg.Point:
        return 2 + x * self._step[0], 2 + y * self._step[1]

    def _centre(self, core: int) -> svg.Point:
        x, y, _, slot = self._places[core]
        left, top = self._corner(x, y)
        return left + _RIM + slot * (_CORE + _INSIDE) + _CORE / 2, top + _RIM + _CORE / 2

    def _links(self) -> Iterator[str]:
        """Yield the links between the chips that are beside each other."""
        chips = {(x, y) for x, y, _, _ in self._places}
        for x, y in sorted(chips):
            left, top = self._corner(x, y)
            right, bottom = left + self._chip[0], top + self._chip[1]
            middle = (left + right) / 2, (top + bottom) / 2
            if (x + 1, y) in chips:
                yield svg.line([(right, middle[1]), (right + _ACROSS, middle[1])], FRAME, width=7)
            if (x, y + 1) in chips:
                yield svg.line([(middle[0], bottom), (middle[0], bottom + _DOWN)], FRAME, width=7)

    def _arrows(self) -> Iterator[str]:
        drawn: dict[tuple[int, int], int] = {}
        hops = {hop for way in self._sends.routes for hop in itertools.pairwise(way)}
        for way in self._sends.routes:
            for hop in itertools.pairwise(way):
                beside = drawn[hop] = drawn.get(hop, -1) + 1
                shift = (6 if hop[::-1] in hops else 0) + 8 * beside
                yield self._arrow(hop, shift, is_detour=len(way) > 2)

    def _arrow(self, hop: tuple[int, int], beside: float, *, is_detour: bool) -> str:
        """Return an arrow from the edge of a core to the edge of another."""
        begin, end = map(self._centre, hop)
        if self._passes_cores(begin, end):
            below = _CORE / 2 + 4.0 + beside
            begin, end = (begin[0], begin[1] + below), (end[0], end[1] + below)
            return svg.arrow(begin, end, _DETOUR if is_detour else _DIRECT, dashed=is_detour)
        length = math.dist(begin, end) or 1
        across, down = (end[0] - begin[0]) / length, (end[1] - begin[1]) / length
        edge = (_CORE / 2 + 2) / max(abs(across), abs(down))
        shift = -down * beside, across * beside
        ends = [
            (x + sign * edge * across + shift[0], y + sign * edge * down + shift[1])
            for sign, (x, y) in ((1, begin), (-1, end))
        ]
        return svg.arrow(
            ends[0], ends[1], _DETOUR if is_detour else _DIRECT, width=3, dashed=is_detour
        )

    def _passes_cores(self, begin: svg.Point, end: svg.Point) -> bool:
        """Return whether another core is on the way from a core to another in its row."""
        return begin[1] == end[1] and any(
            y == begin[1] and min(begin[0], end[0]) < x < max(begin[0], end[0])
            for x, y in map(self._centre, range(len(self._places)))
        )
