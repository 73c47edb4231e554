"""The picture of programs by time and memory."""

from __future__ import annotations

import base64
import re

from tpunb.display.draw.programs.frontier import frontier

GIB = 1 << 30
POINTS = [
    ("1", 1e-3, 4 * GIB, True, False),
    ("2", 2e-3, 6 * GIB, True, True),
    ("3", 4e-3, 2 * GIB, True, False),
    ("4", 0.0, 90 * GIB, False, False),
]


def drawn(points: list[tuple[str, float, int, bool, bool]]) -> tuple[str, str]:
    markup = frontier(points, {16 * GIB})
    svg = base64.b64decode(markup.partition("base64,")[2].partition('"')[0]).decode()
    return markup, svg


def test_the_frontier_joins_what_nothing_beats_in_both() -> None:
    markup, svg = drawn(POINTS)
    assert "4 programs by their time and memory; the fastest that fits is 1" in markup
    places = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)
    assert len(places) == 4
    lines = [line for line in re.findall(r'<path d="M([^"]+)"', svg) if line.count("L") == 1]
    assert f"{' '.join(places[0])}L{' '.join(places[2])}" in lines
    assert not any(" ".join(places[1]) in line for line in lines)


def test_what_does_not_fit_is_in_the_margin() -> None:
    _, svg = drawn(POINTS)
    places = [tuple(map(float, each)) for each in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg)]
    assert places[3][0] > max(across for across, _ in places[:3])
    assert places[3][1] < min(down for _, down in places[:3])
    assert "does not fit" in svg


def test_nothing_fits() -> None:
    markup, svg = drawn(POINTS[3:])
    assert "none fits" in markup
    assert svg.count("<circle") == 1
