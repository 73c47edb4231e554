"""A chip of a TPU: its TensorCores with their units, its memory and its links."""

from __future__ import annotations

from collections.abc import Iterator

from tpunb._util.plain_text import plain
from tpunb._util.tables import Markup
from tpunb._util.units import byte_count, counted, grouped
from tpunb.display.draw import svg
from tpunb.display.draw.colours import HOST_COLOURS, INK
from tpunb.tpu.chip_parts import ChipParts

_UNITS = (
    ("matrix units (MXU)", "multiply matrices", HOST_COLOURS[0]),
    ("vector unit (VPU)", "element by element, sums", HOST_COLOURS[2]),
    ("scalar unit", "control, addresses", HOST_COLOURS[4]),
)
_FAST = "VMEM: fast memory of the core"
_CORE, _GAP = 216, 20
_LINK = 40
_UNIT_HEIGHTS = 62, 44, 36


def chip_title(chip: ChipParts) -> str:
    """Return the title: `"A chip of v5e-8"`."""
    return f"A chip of {chip.name}"


def chip_facts(chip: ChipParts) -> list[str]:
    """Return sentences on the chip's cores, and where the figures hold."""
    cores = counted(chip.tensor_cores, "TensorCore")
    seen = "A program sees it as one core."
    if chip.tensor_cores > 1:
        seen = "A program sees each as a core."
        if chip.devices < chip.tensor_cores:
            seen = "They act as one core."
    return [f"It has {cores}. {seen}"]


def _peak(chip: ChipParts) -> str:
    return f"{chip.flops / 1e12:.4g} TFLOP/s in bfloat16"


def _units(chip: ChipParts) -> list[tuple[str, str, str]]:
    """Return the name, the work and the colour of the units of a TensorCore."""
    matrix, *others = _UNITS
    if chip.matrix_units == 1:
        return [("matrix unit (MXU)", "multiplies matrices", matrix[2]), *others]
    number = f"{chip.matrix_units} " if chip.matrix_units else ""
    return [(f"{number}{matrix[0]}", *matrix[1:]), *others]


def _memory(chip: ChipParts) -> str:
    each = f", {byte_count(chip.hbm_bytes // chip.devices)} a core" if chip.devices > 1 else ""
    return f"HBM, {byte_count(chip.hbm_bytes)}{each}"


def _per_second(figure: float) -> str:
    return f"{grouped(round(figure / 1e9))} GB/s"


def _links(chip: ChipParts) -> tuple[str, str]:
    return (
        f"up to {chip.links} links to neighbours",
        f"{_per_second(chip.link_bandwidth)} a link, each way",
    )


def chip_text(chip: ChipParts) -> str:
    """Return a chip as plain text."""
    bandwidth = _per_second(chip.hbm_bandwidth)
    core = "each TensorCore" if chip.tensor_cores > 1 else "TensorCore"
    inner = [f"{name}: {what}" for name, what, _ in _units(chip)]
    inner[0] += f", at most {_peak(chip)}"
    lines = [
        chip_title(chip),
        *(f"  {fact}" for fact in chip_facts(chip)),
        f"  {core}",
        *(f"    {line}" for line in (*inner, _FAST)),
        f"  {_memory(chip)}: the memory of arrays, read and written at {bandwidth}",
        f"  interconnect (ICI): {', '.join(_links(chip))}",
    ]
    return plain("\n".join(lines))


def chip_html(chip: ChipParts) -> Markup:
    """Return the picture of a chip, with its title and its facts."""
    width = chip.tensor_cores * (_CORE + _GAP) + _GAP
    height = sum(_UNIT_HEIGHTS) + 228
    says = chip_text(chip).replace("\n", ". ")
    parts = [*_drawn(chip, width, height)]
    return svg.titled(
        chip_title(chip),
        chip_facts(chip),
        svg.picture(parts, width + 2 * _LINK, height + 2 * _LINK, says),
    )


def _drawn(chip: ChipParts, width: float, height: float) -> Iterator[str]:
    middle = _LINK + width / 2
    yield from _drawn_links(width, height)
    yield svg.box(_LINK, _LINK, width, height, edge=INK)
    yield svg.words(middle, _LINK + 14, "chip", bold=True)
    for core in range(chip.tensor_cores):
        yield from _core(chip, _LINK + _GAP + core * (_CORE + _GAP), _LINK + 28)
    below = _LINK + sum(_UNIT_HEIGHTS) + 90
    for core in range(chip.tensor_cores):
        x = _LINK + _GAP + core * (_CORE + _GAP) + _CORE / 2
        yield svg.arrow((x, below + 15), (x, below), INK)
        yield svg.arrow((x, below + 15), (x, below + 30), INK)
    yield svg.box(_LINK + _GAP, below + 32, width - 2 * _GAP, 44, HOST_COLOURS[1])
    yield svg.words(middle, below + 46, _memory(chip), fill="#fff", bold=True)
    arrays = f"the memory of arrays, {_per_second(chip.hbm_bandwidth)}"
    yield svg.words(middle, below + 62, arrays, fill="#fff", size=11)
    yield svg.words(middle, below + 94, "interconnect (ICI)", bold=True)
    for row, text in enumerate(_links(chip)):
        yield svg.words(middle, below + 110 + 15 * row, text, size=11)


def _drawn_links(width: float, height: float) -> Iterator[str]:
    """Yield the links of a plane, one to each side."""
    middle = _LINK + width / 2, _LINK + height / 2
    yield svg.line([(0, middle[1]), (_LINK, middle[1])], INK, width=4)
    yield svg.line([(_LINK + width, middle[1]), (2 * _LINK + width, middle[1])], INK, width=4)
    yield svg.line([(middle[0], 0), (middle[0], _LINK)], INK, width=4)
    yield svg.line([(middle[0], _LINK + height), (middle[0], 2 * _LINK + height)], INK, width=4)


def _core(chip: ChipParts, left: float, top: float) -> Iterator[str]:
    yield svg.box(left, top, _CORE, sum(_UNIT_HEIGHTS) + 62, edge=svg.NEUTRAL)
    yield svg.words(left + _CORE / 2, top + 12, "TensorCore", bold=True)
    below = top + 24
    for number, ((name, what, colour), height) in enumerate(
        zip(_units(chip), _UNIT_HEIGHTS, strict=True)
    ):
        lines = [name, what, *([_peak(chip)] if number == 0 else [])]
        yield svg.box(left + 8, below, _CORE - 16, height - 4, colour)
        first = below + (height - 4) / 2 - 7.5 * (len(lines) - 1)
        for row, text in enumerate(lines):
            y = first + 15 * row
            size = 12 if row == 0 else 11
            yield svg.words(left + _CORE / 2, y, text, fill="#fff", size=size, bold=row == 0)
        below += height
    yield svg.box(left + 8, below, _CORE - 16, 28, svg.NEUTRAL)
    yield svg.words(left + _CORE / 2, below + 14, _FAST, fill="#fff", size=11)
