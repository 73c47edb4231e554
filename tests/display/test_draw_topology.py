"""Topologies as text and as drawings."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from support.markup import Tags
from support.patience import calls
from support.topologies import assigned, described

from tpunb.display.describe.topology_description import UNASSIGNED, TopologyDescription
from tpunb.display.draw.static_forms import mimebundle
from tpunb.display.draw.topology.colours import Colouring, by_host, by_memory, colourings
from tpunb.display.draw.topology.svg import topology_drawing, topology_html
from tpunb.display.draw.topology.text import links_phrase, topology_text

pytestmark = pytest.mark.oldest


V5E_8 = """\
v5e-8 · 8 chips · 8 cores · 1 host · 16 GiB HBM per core, 128 GiB in all
mesh 2×4×1 (x, y, z)

┌─ host 0 ┐
│ [0] [1] │
│ [2] [3] │
│ [4] [5] │
│ [6] [7] │
└─────────┘"""

V3_8 = """\
v3-8 · 4 chips · 8 cores · 1 host · 16 GiB HBM per core, 128 GiB in all
mesh 2×2×1 (x, y, z)
4 replicas of 2 logical devices (replica.device)

┌─ host 0 ────────────────┐
│ [r0.0 r0.1] [r1.0 r1.1] │
│ [r2.0 r2.1] [r3.0 r3.1] │
└─────────────────────────┘"""

V3_32 = """\
v3-32 · 16 chips · 32 cores · 4 hosts · 16 GiB HBM per core, 512 GiB in all
mesh 4×4×1 (x, y, z)

┌─ host 0 ────────┐ ┌─ host 1 ────────┐
│ [0 1]   [2 3]   │ │ [8 9]   [10 11] │
│ [4 5]   [6 7]   │ │ [12 13] [14 15] │
└─────────────────┘ └─────────────────┘
┌─ host 2 ────────┐ ┌─ host 3 ────────┐
│ [16 17] [18 19] │ │ [24 25] [26 27] │
│ [20 21] [22 23] │ │ [28 29] [30 31] │
└─────────────────┘ └─────────────────┘"""

V4_32 = """\
v4-32 · 16 chips · 16 cores · 4 hosts · 32 GiB HBM per core, 512 GiB in all
mesh 2×2×4 (x, y, z); a chip's 2 TensorCores act as one core

z = 0           z = 1           z = 2           z = 3
┌─ host 0 ──┐   ┌─ host 1 ──┐   ┌─ host 2 ──┐   ┌─ host 3 ──┐
│ [0]  [1]  │   │ [4]  [5]  │   │ [8]  [9]  │   │ [12] [13] │
│ [2]  [3]  │   │ [6]  [7]  │   │ [10] [11] │   │ [14] [15] │
└───────────┘   └───────────┘   └───────────┘   └───────────┘"""

V5P_17920 = """\
v5p-17920 · 8960 chips · 8960 cores · 2240 hosts · 95 GiB HBM per core, 831.2 TiB in all
mesh 16×20×28 (x, y, z), links wrap around along x, y and z; a chip's 2 TensorCores act as one core"""


@pytest.mark.parametrize(
    ("topology", "text"),
    [
        (described("v5e-8"), V5E_8),
        (assigned("v3-8", 2), V3_8),
        (described("v3-32"), V3_32),
        (described("v4-32"), V4_32),
        (described("v5p-17920"), V5P_17920),
    ],
    ids=lambda value: value.name if isinstance(value, TopologyDescription) else "",
)
def test_text(topology: TopologyDescription, text: str) -> None:
    assert topology_text(topology) == text


def test_cores_without_a_replica() -> None:
    topology = replace(described("v5e-1"), replicas=(UNASSIGNED,), logical_devices=(UNASSIGNED,))
    assert "[0]" in topology_text(topology)
    half = replace(described("v5e-4"), replicas=(0, 1, -1, -1), logical_devices=(0, 0, -1, -1))
    assert "2 replicas, 2 cores unassigned" in topology_text(half)
    assert "[–]" in topology_text(half)
    assert by_host(half).legend[-1].text == "unassigned"
    assert "–" in topology_drawing(half)


def test_irregular_hosts_are_drawn_without_boxes() -> None:
    topology = replace(described("v5e-4"), hosts=(0, 1, 1, 0))
    assert "host 0" not in topology_text(topology)
    assert "[0] [1]\n[2] [3]" in topology_text(topology)
    assert "host 0" not in topology_drawing(topology)
    assert "host 0" in topology_drawing(described("v5e-4"))


@pytest.mark.parametrize(
    "name", ["v5e-1", "v3-8", "v5e-64", "v4-64", "v5e-256", "v5p-17920", "13", "251"]
)
def test_drawings_are_deterministic_and_of_reasonable_size(name: str) -> None:
    topology = described(name)
    bundle = mimebundle(topology)
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/html"] == topology_html(described(name))
    assert len(bundle["text/html"]) < 100_000
    svg = ElementTree.fromstring(topology_drawing(topology))
    width, height = (float(svg.attrib[side]) for side in ("width", "height"))
    assert width <= 700
    assert height <= 1000


NUMBER = r"-?[\d.]+"


def core_boxes(svg: str) -> set[tuple[float, float]]:
    """Return the places of the cores in the SVG: the left end and the middle of each short line."""
    group = ElementTree.fromstring(svg).find("{*}g[@class='tpunb-cores']")
    assert group is not None
    boxes = set()
    for path in group:
        x = y = 0.0
        for right, down, width in re.findall(
            f"m({NUMBER}) ({NUMBER})h({NUMBER})", path.attrib["d"]
        ):
            x, y = x + float(right), y + float(down)
            boxes.add((round(x, 1), round(y, 1)))
            x += float(width)
    return boxes


@pytest.mark.parametrize("name", ["v5e-1", "v3-32", "v4-64", "v5e-256", "v3-2048", "v5p-17920"])
def test_every_core_is_drawn_once_inside_the_page(name: str) -> None:
    topology = described(name)
    svg = topology_drawing(topology)
    boxes = core_boxes(svg)
    assert len(boxes) == topology.num_cores
    root = ElementTree.fromstring(svg)
    assert all(0 < x < float(root.attrib["width"]) for x, _ in boxes)
    assert all(0 < y < float(root.attrib["height"]) for _, y in boxes)
    planes = [core_boxes(topology_drawing(topology, plane=z)) for z in range(topology.mesh[2])]
    assert set.union(*planes) == boxes
    assert sum(map(len, planes)) == len(boxes)


def test_the_picture_has_a_text_alternative() -> None:
    markup = topology_html(assigned("v3-8", 2))
    tags = Tags(markup)
    assert tags.names <= {"div", "img"}
    assert 'alt="v3-8: 4 chips · 8 cores' in markup
    data = markup.partition("base64,")[2].partition('"')[0]
    assert base64.b64decode(data).decode() == topology_drawing(assigned("v3-8", 2))


def colours_of(colouring: Colouring) -> list[str]:
    return [colouring.fills[place] for place in colouring.places]


def test_colourings() -> None:
    unassigned, parts = described("v3-32"), assigned("v3-8", 2)
    assert [colouring.name for colouring in colourings(unassigned)] == ["host"]
    assert [colouring.name for colouring in colourings(parts)] == ["host", "replica", "logical"]
    hosts = colours_of(by_host(unassigned))
    assert len(set(hosts)) == 4
    assert hosts[:8] == hosts[:1] * 8
    assert [item.text for item in by_host(unassigned).legend] == [f"host {n}" for n in range(4)]
    by_part = colours_of(colourings(parts)[2])
    assert by_part == by_part[:2] * 4
    assert "later logical devices fainter" in [item.text for item in by_host(parts).legend]


def test_colours_of_memory() -> None:
    topology = described("v5e-4")
    heat = by_memory(topology, [0, 2**29, 2**30, 2**30])
    assert len(set(colours_of(heat))) == 3
    assert heat.legend[0].text == "0 B to 1 GiB · 6.25% of 16 GiB · least 0 B"
    assert "the same on every core" in by_memory(topology, [7] * 4).legend[0].text
    assert by_memory(topology, [0] * 4).fills


def test_colours_of_a_program() -> None:
    needs = replace(assigned("v3-8", 1), needed_bytes=4 * 2**30, usable_bytes=int(15.48 * 2**30))
    scale, need = colourings(needs)[-1].legend
    assert scale.text == "0 B to 15.48 GiB usable of 16 GiB"
    assert need.text == "needs 4 GiB"
    over = colourings(replace(needs, needed_bytes=17 * 2**30))[-1]
    assert over.legend[1].text == "needs 17 GiB · 1.52 GiB too much"
    assert over.fills != colourings(needs)[-1].fills
    assert over.fills[0] in topology_drawing(replace(needs, needed_bytes=17 * 2**30))


def luminance(colour: str) -> float:
    """Return WCAG's relative luminance."""
    parts = [part / 255 for part in bytes.fromhex(colour[1:])]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_labels_are_readable_on_every_colour() -> None:
    ramp = by_memory(described("v5e-64"), list(range(64)))
    for colouring in (ramp, *colourings(assigned("v3-32", 2, idle=2))):
        for fill, ink in zip(colouring.fills, colouring.inks, strict=True):
            light, dark = sorted(map(luminance, (fill, ink)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) > 3, (fill, ink)


@pytest.mark.parametrize("name", ["v5e-8", "v3-32", "v4-64", "v5e-256", "v5p-17920"])
def test_text_fits_a_terminal(name: str) -> None:
    assert max(map(len, topology_text(described(name)).splitlines())) <= 100


def test_the_largest_topology_is_drawn_with_few_calls() -> None:
    topology = described("v5p-17920")
    assert calls(lambda: topology_drawing(topology)) < 300_000  # for 8960 chips


def test_a_name_with_unusual_characters() -> None:
    topology = replace(described("v5e-1"), name='$\\frac$ \u4f60\n"><script>alert(1)</script>')
    assert "script" not in Tags(topology_html(topology)).names


def test_a_v5e_host_has_two_workers() -> None:
    assert "a host is 2 workers on TPU VMs" in links_phrase(described("v5e-16"))
    assert "workers" not in links_phrase(described("v5e-8")) + links_phrase(described("v4-64"))
