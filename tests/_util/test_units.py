"""Counts, bytes and durations as text."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tpunb
from tpunb._util.units import byte_count, counted, duration, grouped


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (8960, "8960"), (9999, "9999"), (10_000, "10,000"), (-17_920, "-17,920")],
)
def test_grouped(count: int, text: str) -> None:
    assert grouped(count) == text


def test_counts_have_a_single_format() -> None:
    """Only `grouped`, and `groups` on a page, put commas into numbers."""
    package = Path(tpunb.__file__).parent
    others = [
        path.name
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FormattedValue)
        and node.format_spec is not None
        and "," in ast.unparse(node.format_spec)
    ]
    assert others == ["units.py"]
    scripts = {path.name: path.read_text(encoding="utf-8") for path in package.rglob("*.js")}
    pages = [name for name, text in scripts.items() if r"(\d{3})" in text and "vendor" not in name]
    assert [name for name in pages if "uPlot" not in name] == ["common.js"]


def test_counted() -> None:
    counts = (0, 1, 2, 262_144)
    texts = [counted(count, "step") for count in counts]
    assert texts == ["0 steps", "1 step", "2 steps", "262,144 steps"]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1000, "1000 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1023 * 1024, "1023 KiB"),
        (1008 * 2**20, "1008 MiB"),
        (16 * 2**30, "16 GiB"),
        (8960 * 95 * 2**30, "831.2 TiB"),
        (3000 * 2**40, "2.93 PiB"),
        (20 * 2**60, "20 EiB"),
        (3000 * 2**60, "3000 EiB"),
    ],
)
def test_byte_count(size: int, text: str) -> None:
    assert byte_count(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1e-9, "0 µs"),
        (250e-6, "250 µs"),
        (0.0009996, "1 ms"),
        (0.0126, "12.6 ms"),
        (0.9996, "1 s"),
        (1.523, "1.52 s"),
        (119, "119 s"),
        (119.9, "120 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h 0 min"),
        (93_784, "26 h 3 min"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    assert "e+" not in text
