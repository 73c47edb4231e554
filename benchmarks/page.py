"""The documentation's page with the figures, `docs/maintainers/benchmarks.md`."""

from __future__ import annotations

import datetime
import importlib.metadata
import math
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.report import Result, limit, markdown, quantity, ratio_with_spread
from benchmarks.sizes import StepResult
from benchmarks.sizes import as_markdown as sizes_as_markdown
from tpunb._util.atomic_files import write_file
from tpunb._util.units import byte_count, counted
from tpunb.machine.resources import measure, processors

__all__ = ["PAGE", "put"]

PAGE = Path(__file__).parents[1] / "docs" / "maintainers" / "benchmarks.md"

_HEADER = ("case", "tpunb", "compared with", "", "ratio (spread)", "wanted")


def put(kind: str, results: Sequence[Result], page: Path = PAGE) -> None:
    """Replace the figures on the page.

    Args:
        kind: The kind of the figures. They stand between `<!-- KIND -->` and `<!-- /KIND -->`.
        results: The figures.
        page: The page.

    Raises:
        ValueError: The page has no such lines.
    """
    begin, end = f"<!-- {kind} -->", f"<!-- /{kind} -->"
    before, opened, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (opened and closed):
        raise ValueError(f"{page.name} has no place for {kind}")
    text = f"{_measured_on()}\n\n{_tables(results)}"
    write_file(page, f"{before}{begin}\n{text}\n{end}{after}")


def _tables(results: Sequence[Result]) -> str:
    """Return tables of steps by model and size, or a table of cases."""
    steps = [each for each in results if isinstance(each, StepResult) and each.wanted is None]
    return sizes_as_markdown(steps) if steps else _cases(results)


def _cases(results: Iterable[Result]) -> str:
    """Return a table of cases."""
    rows = [
        (
            each.case,
            quantity(each.ours, each.unit),
            quantity(each.peer, each.unit),
            each.peer_name,
            ratio_with_spread(each),
            limit(each),
        )
        for each in results
    ]
    return markdown(_HEADER, rows)


def _measured_on() -> str:
    """Return the kind of machine, the date and the software of the measurement."""
    memory = byte_count(measure().total or 0)
    found = importlib.metadata.packages_distributions()["tensorflow"]
    version = importlib.metadata.version(found[0])
    return (
        f"{datetime.date.today()}: {counted(processors(), 'processor')}, {memory} of memory, "
        f"{platform.system()}, Python {platform.python_version()}, TensorFlow {version}; {_load()}."
    )


def _load() -> str:
    """Return the load of the machine. The benchmarks themselves cause at most 2 of it."""
    minutes = os.getloadavg()[1] if hasattr(os, "getloadavg") else math.nan
    return f"five minutes' load {minutes:.1f}"
