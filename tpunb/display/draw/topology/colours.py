"""The meaning of the colours of cores, with a legend, for the drawing and the live form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tpunb._util.units import byte_count, counted
from tpunb.display.describe.topology_description import (
    UNASSIGNED,
    TopologyDescription,
    group_shades,
)
from tpunb.display.draw.colours import HOST_COLOURS, rgb

HEAT = ("#f7c96b", "#ee9a50", "#e8743b", "#c5413f", "#a3224a")
"""Colours of a scale, from nothing to everything."""

IDLE = "#a9b0b7"
_OVER = "#cc3311"
_DARK, _LIGHT = "#1f2328", "#ffffff"
_STEPS = 32
_FAINTER = 0.28
"""The share of white in the colour of a replica's last logical device."""


@dataclass(frozen=True, slots=True)
class LegendItem:
    """A part of a legend.

    Attributes:
        text: The text.
        colours: The colour in front of the text, or the colours of a scale; empty for none.
    """

    text: str
    colours: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Colouring:
    """A colour for each core.

    Attributes:
        name: The property that the colours show, in code: `"host"`.
        label: The same for a reader.
        fills: The colours.
        inks: A colour for text on each fill.
        places: The index in `fills` of each core's colour.
        legend: The meaning of the colours.
    """

    name: str
    label: str
    fills: tuple[str, ...]
    inks: tuple[str, ...]
    places: tuple[int, ...]
    legend: tuple[LegendItem, ...]


def colourings(topology: TopologyDescription) -> list[Colouring]:
    """Return the possible colourings of a topology's cores, by host first."""
    several_parts = topology.num_logical_devices > 1
    known: tuple[tuple[bool, Callable[[TopologyDescription], Colouring]], ...] = (
        (True, by_host),
        (topology.num_replicas > 0, _by_replica),
        (several_parts, _by_logical_device),
        (topology.usable_bytes > 0, by_program),
    )
    return [make(topology) for applies, make in known if applies]


def by_host(topology: TopologyDescription) -> Colouring:
    """Colour cores by host; later logical devices of a replica are fainter."""
    shades = group_shades(topology, topology.hosts, len(HOST_COLOURS))
    parts = max(1, topology.num_logical_devices - 1)
    fills = []
    for core, host in enumerate(topology.hosts):
        part = max(0, topology.logical_devices[core])
        fills.append(mixed(HOST_COLOURS[shades[host]], _LIGHT, _FAINTER * part / parts))
    more = ["later logical devices fainter"] if topology.num_logical_devices > 1 else []
    legend = _swatches("host", topology.num_hosts, shades)
    return _colouring("host", "host", topology, fills, [*legend, *map(LegendItem, more)])


def _by_replica(topology: TopologyDescription) -> Colouring:
    shades = group_shades(topology, topology.replicas, len(HOST_COLOURS))
    fills = [HOST_COLOURS[shades[max(0, replica)]] for replica in topology.replicas]
    legend = _swatches("replica", topology.num_replicas, shades)
    return _colouring("replica", "replica", topology, fills, legend)


def _by_logical_device(topology: TopologyDescription) -> Colouring:
    count = topology.num_logical_devices
    shades = [number % len(HOST_COLOURS) for number in range(count)]
    fills = [HOST_COLOURS[shades[max(0, device)]] for device in topology.logical_devices]
    legend = _swatches("logical device", count, shades)
    return _colouring("logical", "logical device", topology, fills, legend)


def by_program(topology: TopologyDescription) -> Colouring:
    """Colour cores by the share of their memory that the compiled program needs."""
    needed, usable = topology.needed_bytes, topology.usable_bytes
    over = f" · {byte_count(needed - usable)} too much" if needed > usable else ""
    fill = _OVER if over else _heat(needed / usable)
    of = f" of {byte_count(topology.hbm_bytes)}" if topology.hbm_bytes else ""
    legend = [
        LegendItem(f"0 B to {byte_count(usable)} usable{of}", HEAT),
        LegendItem(f"needs {byte_count(needed)}{over}", (fill,)),
    ]
    return _colouring("program", "compiled program", topology, [fill] * topology.num_cores, legend)


def by_memory(topology: TopologyDescription, sizes: Sequence[int]) -> Colouring:
    """Colour cores by the memory of variables on them.

    Args:
        topology: The topology.
        sizes: The bytes on each core.
    """
    least, most = min(sizes), max(sizes)
    same = " · the same on every core" if least == most else f" · least {byte_count(least)}"
    text = f"0 B to {size_phrase(topology, most)}{same}"
    fills = [_heat(size / most if most else 0.0) for size in sizes]
    # A core without a replica holds variables too.
    return _colouring(
        "memory", "memory", topology, fills, [LegendItem(text, HEAT)], with_idle=False
    )


def size_phrase(topology: TopologyDescription, size: int) -> str:
    """Return bytes, and their share of a core's memory if the memory is known."""
    if not topology.hbm_bytes:
        return byte_count(size)
    share = 100 * size / topology.hbm_bytes
    text = "less than 0.01" if 0 < share < 0.01 else f"{float(f'{share:.3g}'):g}"
    return f"{byte_count(size)} · {text}% of {byte_count(topology.hbm_bytes)}"


def _swatches(word: str, count: int, shades: Sequence[int]) -> list[LegendItem]:
    if count > len(HOST_COLOURS):
        return [LegendItem(f"{counted(count, word)}, neighbours in different colours")]
    return [
        LegendItem(f"{word} {number}", (HOST_COLOURS[shades[number]],)) for number in range(count)
    ]


def _colouring(
    name: str,
    label: str,
    topology: TopologyDescription,
    fills: Iterable[str],
    legend: Sequence[LegendItem],
    *,
    with_idle: bool = True,
) -> Colouring:
    """Return a colouring in which cores without a replica are grey."""
    of_cores = list(fills)
    if with_idle and topology.num_replicas and UNASSIGNED in topology.replicas:
        pairs = zip(of_cores, topology.replicas, strict=True)
        of_cores = [IDLE if replica == UNASSIGNED else fill for fill, replica in pairs]
        legend = [*legend, LegendItem("unassigned", (IDLE,))]
    numbers = {fill: number for number, fill in enumerate(dict.fromkeys(of_cores))}
    places = tuple(numbers[fill] for fill in of_cores)
    return Colouring(name, label, tuple(numbers), tuple(map(_ink, numbers)), places, tuple(legend))


def _heat(fraction: float) -> str:
    """Return the colour of a fraction of the scale, one of some thirty."""
    place = round(_STEPS * min(max(fraction, 0.0), 1.0)) / _STEPS * (len(HEAT) - 1)
    low = min(len(HEAT) - 2, int(place))
    return mixed(HEAT[low], HEAT[low + 1], place - low)


def mixed(colour: str, other: str, share: float) -> str:
    """Return a colour with a share of another colour."""
    pairs = zip(rgb(colour), rgb(other), strict=True)
    return "#" + "".join(f"{round(mine + (its - mine) * share):02x}" for mine, its in pairs)


def _ink(fill: str) -> str:
    """Return white, or a dark colour if white cannot be read: below WCAG's contrast of 3."""
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (channel / 255 for channel in rgb(fill))
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return _LIGHT if 1.05 / (luminance + 0.05) >= 3 else _DARK
