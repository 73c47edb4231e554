"""Topologies as text and as pictures."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from PIL import Image
from support.patience import calls
from support.topologies import assigned, described

from tpunb.display.describe.topology_description import UNASSIGNED, TopologyDescription
from tpunb.display.draw.static_forms import mimebundle
from tpunb.display.draw.topology_picture import topology_png
from tpunb.display.draw.topology_text import links_phrase, topology_text

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
    assert topology_png(half) != topology_png(described("v5e-4"))


def test_hosts_that_are_no_blocks_are_drawn_without_boxes() -> None:
    topology = replace(described("v5e-4"), hosts=(0, 1, 1, 0))
    assert "host 0" not in topology_text(topology)
    assert "[0] [1]\n[2] [3]" in topology_text(topology)
    assert topology_png(topology)


@pytest.mark.parametrize(
    "name", ["v5e-1", "v3-8", "v5e-64", "v4-64", "v5e-256", "v5p-17920", "13", "251"]
)
def test_pictures_are_deterministic_and_of_a_decent_size(name: str) -> None:
    topology = described(name)
    bundle = mimebundle(topology)
    assert set(bundle) == {"text/plain", "image/png"}
    picture = bundle["image/png"]
    assert isinstance(picture, bytes)
    assert picture == topology_png(described(name))
    assert b"Software" not in picture
    assert len(picture) < (250_000 if name == "v5e-256" else 100_000)
    with Image.open(io.BytesIO(picture)) as image:
        assert image.width <= 1000
        assert image.height <= 1300


@pytest.mark.parametrize("name", ["v5e-8", "v3-32", "v4-64", "v5e-256", "v5p-17920"])
def test_text_fits_a_terminal(name: str) -> None:
    assert max(map(len, topology_text(described(name)).splitlines())) <= 100


def test_the_largest_is_drawn_quickly() -> None:
    topology = described("v5p-17920")
    topology_png(topology)
    assert calls(lambda: topology_png(topology)) < 80_000  # for 8960 chips and 31 texts


def test_the_users_style_does_not_matter() -> None:
    mpl = pytest.importorskip("matplotlib")
    plain = topology_png(assigned("v3-8", 2))
    with mpl.rc_context({"font.family": ["serif"], "lines.linewidth": 9, "figure.dpi": 33}):
        assert topology_png(assigned("v3-8", 2)) == plain


def test_a_name_with_odd_characters() -> None:
    topology = replace(described("v5e-1"), name="$\\frac$ \u4f60\n")
    assert topology_png(topology)


def test_hosts_of_v5e_are_two_workers_each_as_tpu_vms() -> None:
    assert "a host is 2 workers on TPU VMs" in links_phrase(described("v5e-16"))
    assert "workers" not in links_phrase(described("v5e-8")) + links_phrase(described("v4-64"))
