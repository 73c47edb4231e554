"""A batch cut into the parts of the cores."""

from __future__ import annotations

from collections.abc import Iterator

from tpunb._util.plain_text import aligned, plain
from tpunb._util.tables import Markup
from tpunb._util.units import counted
from tpunb.display.describe.batch_shares import BatchShares
from tpunb.display.draw import svg
from tpunb.display.draw.colours import FRAME, INK

_PITCH, _BOX = 78, 66
_BAR, _BETWEEN = 26, 46


def batch_title(batch: BatchShares) -> str:
    """Return the title: `"A batch of 64 rows on v5e-8"`."""
    return f"A batch of {counted(batch.rows, 'row')} on {batch.name}"


def batch_sentence(batch: BatchShares) -> str:
    """Return how the batch is divided."""
    sizes = [end - begin for begin, end in batch.shares]
    if batch.is_even:
        return f"Each of {len(sizes)} cores gets {counted(sizes[0], 'row')}."
    unlike = sorted(set(sizes), reverse=True)
    listed = ", ".join(f"{counted(sizes.count(size), 'core')} with {size}" for size in unlike)
    what = f"{batch.rows} rows do not divide evenly by {len(sizes)} cores"
    if batch.rows < batch.full:
        what = f"A full batch has {batch.full} rows, and this last batch only {batch.rows}"
    return f"{what}: {listed}."


def _rows(begin: int, end: int) -> str:
    if end - begin < 2:
        return f"row {begin}" if end > begin else "no row"
    return f"{begin} to {end - 1}"


def batch_text(batch: BatchShares) -> str:
    """Return the parts of a batch as plain text."""
    rows = [
        (str(core), _rows(*share), counted(share[1] - share[0], "row"))
        for core, share in enumerate(batch.shares)
    ]
    lines = [batch_title(batch), f"  {batch_sentence(batch)}"]
    return plain("\n".join([*lines, *aligned([("core", "rows", ""), *rows], "  ")]))


def batch_html(batch: BatchShares) -> Markup:
    """Return the picture of a batch, with its title and a sentence."""
    cores = len(batch.shares)
    says = f"{batch_title(batch)}. {batch_sentence(batch)} " + "; ".join(
        f"core {core}: {_rows(*share)}" for core, share in enumerate(batch.shares)
    )
    width, height = cores * _PITCH, _BAR + _BETWEEN + 78
    drawn = svg.picture(_drawn(batch, width), width, height, says)
    return svg.titled(batch_title(batch), [batch_sentence(batch)], drawn)


def _drawn(batch: BatchShares, width: float) -> Iterator[str]:
    top = 18
    yield svg.words(0, 8, f"the batch: rows 0 to {batch.rows - 1}", anchor="start", size=11)
    scale = width / batch.full
    if batch.rows < batch.full:
        yield svg.box(1, top, width - 2, _BAR, edge=FRAME, dashed=True)
    for core, (begin, end) in enumerate(batch.shares):
        if end > begin:
            fill = svg.core_colour(core)
            yield svg.box(begin * scale + 1, top, (end - begin) * scale - 2, _BAR, fill)
        yield from _core(core, (begin, end), (begin + end) / 2 * scale, top + _BAR)


def _core(core: int, share: tuple[int, int], x: float, top: float) -> Iterator[str]:
    middle, below = core * _PITCH + _PITCH / 2, top + _BETWEEN
    begin, end = share
    fill = svg.core_colour(core)
    if end > begin:
        yield svg.arrow((x, top + 3), (middle, below - 3), fill)
        yield svg.box(middle - _BOX / 2, below, _BOX, 40, fill)
    else:
        yield svg.box(middle - _BOX / 2, below, _BOX, 40, edge=FRAME, dashed=True)
    ink = "#fff" if end > begin else INK
    yield svg.words(middle, below + 12, _rows(begin, end), fill=ink, bold=True)
    yield svg.words(middle, below + 28, counted(end - begin, "row"), fill=ink, size=11)
    yield svg.words(middle, below + 51, f"core {core}", size=11)
