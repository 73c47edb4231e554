"""The file of results, and the table of it on the documentation's page."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable
from pathlib import Path

from wheel_matrix.rows import PYTHONS, ROWS

PATH = Path(__file__).with_name("results.tsv")
PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
OK, REFUSED = "ok", "refused"

_BEGIN, _END = "<!-- wheel matrix -->\n", "<!-- /wheel matrix -->"


@dataclasses.dataclass(frozen=True)
class Result:
    """What one environment showed.

    Attributes:
        python: Its Python, such as 3.10.
        extra: The extras of the wheel.
        beside: What was installed beside it.
        tensorflow: The release of TensorFlow; empty without it.
        jax: The release of JAX.
        libtpu: The release of libtpu.
        result: `OK`, `REFUSED` with the package that has no wheel, or what went wrong.
        seconds: How long it took.
        mib: The size of the environment.
        date: The day.
    """

    python: str
    extra: str
    beside: str
    tensorflow: str
    jax: str
    libtpu: str
    result: str
    seconds: str
    mib: str
    date: str

    @property
    def fine(self) -> bool:
        """Whether it is as it should be."""
        return self.result.startswith((OK, REFUSED))

    @property
    def row(self) -> tuple[str, str, str]:
        """What identifies the row."""
        return self.python, self.extra, self.beside


def read() -> list[Result]:
    """Return the recorded results."""
    if not PATH.exists():
        return []
    with PATH.open(encoding="utf-8", newline="") as file:
        return [Result(**each) for each in csv.DictReader(file, delimiter="\t")]


def record(new: Result) -> None:
    """Add a result to the file, in the place of an older one, and write the page."""
    every = {each.row: each for each in read()} | {new.row: new}
    names = [field.name for field in dataclasses.fields(Result)]
    with PATH.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(dataclasses.asdict(every[row]) for row in sorted(every, key=_order))
    before, _, after = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    text = f"{before}{_BEGIN}{table(read())}{_END}{after.partition(_END)[2]}"
    PAGE.write_text(text, encoding="utf-8")


def shown() -> str:
    """Return the page's table."""
    return PAGE.read_text(encoding="utf-8").partition(_BEGIN)[2].partition(_END)[0]


def table(results: Iterable[Result]) -> str:
    """Return the results as Markdown: what was installed, and how each Python took it."""
    found = {each.row: each for each in results}
    heads = " | ".join(f"Python {python}" for python in PYTHONS)
    lines = [f"| installed | {heads} |", "|---" * (len(PYTHONS) + 1) + "|"]
    for row in ROWS:
        cells = (_cell(found.get((python, row.extra, row.beside))) for python in PYTHONS)
        lines.append(f"| {_installed(row.extra, row.beside)} | {' | '.join(cells)} |")
    days = sorted({each.date for each in found.values()})
    return "\n".join([*lines, "", f"Tried on {' and '.join(days)}.", ""])


def _installed(extra: str, beside: str) -> str:
    wheel = f"tpunb[{extra}]" if extra else "tpunb"
    return f"`{wheel}`" + (f" beside `{beside}`" if beside else "")


def _cell(result: Result | None) -> str:
    if result is None:
        return "–"
    if result.result != OK:
        return result.result
    packages = {"TensorFlow": result.tensorflow, "JAX": result.jax, "libtpu": result.libtpu}
    return (
        ", ".join(f"{name} {release}" for name, release in packages.items() if release) or "works"
    )


def _order(row: tuple[str, str, str]) -> tuple[int, int]:
    python, *installed = row
    places = [[each.extra, each.beside] for each in ROWS]
    return PYTHONS.index(python), places.index(installed)
