"""Replica values and connections as text and HTML."""

from __future__ import annotations

import base64
import io
import math
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from support.markup import Tags

from tpunb._util.units import number_text
from tpunb.display.describe.connection import ConnectionDescription
from tpunb.display.describe.replicas import (
    ReplicaValuesDescription,
    Section,
    describe_replica_values,
)
from tpunb.display.describe.topology_description import describe_accelerator
from tpunb.display.describe.values import ReplicaValue
from tpunb.display.draw.replicas.html import replicas_html
from tpunb.display.draw.replicas.text import replicas_text
from tpunb.display.draw.static_forms import mimebundle
from tpunb.tpu.types import accelerator

pytestmark = pytest.mark.oldest

ATTACK = "<img src=x onerror=alert(1)>"


def on_replicas(*values: Any) -> ReplicaValuesDescription:
    """Describe a PerReplica of these values."""
    described = [describe_replica_values(value).sections[0] for value in values]
    prints = [section.values[0].fingerprint for section in described]
    section = replace(
        described[0],
        type_name="PerReplica",
        distributed=True,
        values=tuple(section.values[0] for section in described),
        differs=tuple(item != prints[0] for item in prints),
    )
    return ReplicaValuesDescription("PerReplica", len(values), (section,))


def html_of(description: Any) -> str:
    markup = mimebundle(description)["text/html"]
    assert isinstance(markup, str)
    return markup


def test_text_of_small_values() -> None:
    first = np.array([[1, 2], [3, 4.5]], np.float32)
    second = np.array([[1, math.nan], [3, math.inf]], np.float32)
    assert replicas_text(on_replicas(first, second)) == (
        "PerReplica of 2 replicas\n"
        "  float32 [2, 2]\n"
        "    replica 0  [[1, 2], [3, 4.5]]  min 1  mean 2.625  max 4.5  std 1.293\n"
        "    replica 1  [[1, nan], [3, inf]]  min 1  mean 2  max 3  std 1  1 NaN, 1 Inf"
    )


def test_text_of_equal_values() -> None:
    assert replicas_text(on_replicas(*[np.float32(0.1)] * 8)) == (
        "PerReplica of 8 replicas\n  float32 [] · all 8 replicas equal\n    0.1"
    )


def test_text_of_large_values_and_unequal_shapes() -> None:
    assert replicas_text(on_replicas(np.zeros((9, 9)), np.ones((8, 9)))) == (
        "PerReplica of 2 replicas\n"
        "    replica 0  float64 [9, 9]  min 0  mean 0  max 0  std 0\n"
        "    replica 1  float64 [8, 9]  min 1  mean 1  max 1  std 0"
    )


def test_the_text_truncates_no_number() -> None:
    """A number that does not fit is omitted: half of a number would be another number."""
    values = [[1234.567 * 10 ** (k % 9), -7.125e-5] * 5 for k in range(4)]
    for value in (values, np.array(values) * 1j, [12345678 + k for k in range(20)]):
        for line in replicas_text(
            on_replicas(*[np.array(value) * (1 + k) for k in range(2)])
        ).splitlines():
            assert len(line) <= 100
            shown = line.split("…")[0]
            assert shown == line or shown.endswith((", ", "  "))


def test_text_of_many_replicas() -> None:
    lines = replicas_text(on_replicas(*range(100))).splitlines()
    assert lines[-1].strip() == "and 36 more"
    assert len(lines) == 67


def test_text_of_a_structure() -> None:
    value = {"loss": np.float32(0.5), "name": "x", "nothing": None}
    assert replicas_text(describe_replica_values(value)) == (
        "dict\n"
        "  ['loss'] · float32 []\n"
        "    0.5\n"
        "  ['name'] · str []\n"
        "    'x'\n"
        "  ['nothing']\n"
        "    None"
    )


@pytest.mark.parametrize(
    "value",
    [
        ATTACK,
        np.array([ATTACK]),
        np.array([ATTACK.encode()]),
        {ATTACK: 1},
        [{ATTACK: np.zeros(3)}, type(ATTACK, (), {})()],
        np.array([ATTACK], dtype=object),
    ],
    ids=["str", "unicode", "bytes", "key", "class", "object"],
)
def test_text_from_data_is_escaped(value: Any) -> None:
    markup = html_of(describe_replica_values(value))
    tags = Tags(markup)
    assert tags.names <= {"div", "table", "thead", "tbody", "tr", "th", "td", "pre", "span"}
    assert tags.attributes == {"style", "role", "aria-label", "tabindex"}
    assert "onerror" in markup


def test_a_table_of_equal_values_has_one_row() -> None:
    markup = html_of(on_replicas(*[np.arange(3)] * 4))
    assert "all 4 replicas equal" in markup
    assert markup.count("<tr>") == 2


def test_differences_and_odd_numbers_are_marked() -> None:
    markup = html_of(on_replicas(np.array([1.0, 2.0]), np.array([1.0, 7.0])))
    assert markup.count("rgba(230,159,0,.35)") == 1
    markup = html_of(on_replicas(np.array([1.0, math.nan]), np.array([1.0, math.nan])))
    assert "1 NaN" in markup
    assert "all 2 replicas equal" in markup


def test_tables_are_theme_neutral_and_deterministic() -> None:
    description = on_replicas(np.array(["a"]), np.array(["b"]))
    markup = replicas_html(description)
    assert markup == replicas_html(description)
    assert "color:#" not in markup
    assert "<svg" not in markup


@pytest.mark.parametrize(
    "arrays",
    [
        [np.linspace(-1, 1, 2400).reshape(40, 60)] * 2,
        [np.arange(2400).reshape(40, 60) + k for k in range(70)],
        [np.random.default_rng(k).normal(size=500) for k in range(3)],
        [np.arange(500) * k for k in range(12)],
        [np.full((20, 20), np.nan), np.full((20, 20), np.inf)],
        [np.array([1e308, -1e308] * 100).reshape(20, 10)] * 2,
        [np.array([5e-324, 0] * 100)] * 2,
        [np.zeros((3, 20, 30, 3), np.uint8), np.ones((2, 20, 30, 3), np.uint8)],
        [np.random.default_rng(0).random((20, 30, 4))],
        [np.zeros((9, 9)), np.zeros(500)],
        [np.full(200, 2**63, np.uint64)],
        [np.zeros((20, 20), bool), np.ones((20, 20), bool)],
    ],
)
def test_panels(arrays: list[Any]) -> None:
    description = on_replicas(*arrays)
    markup = html_of(description)
    assert markup == replicas_html(description)
    assert len(markup) < 700_000
    tags = Tags(markup)
    pictures = [attributes for tag, attributes in tags.found if tag == "img"]
    assert all(picture["alt"] for picture in pictures)
    # A table, since the values are of different kinds.
    assert bool(pictures) == (arrays[0].shape != (9, 9))


def pictures_of(description: ReplicaValuesDescription) -> list[np.ndarray[Any, Any]]:
    """Return the pixels of the pictures in a description's HTML."""
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', html_of(description))
    return [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))
        for data in pictures
    ]


def test_heat_maps_share_a_scale() -> None:
    low, high = pictures_of(on_replicas(np.zeros((20, 20)), np.ones((20, 20))))
    assert low.shape == high.shape == (20, 20, 3)
    assert low[0, 0].tolist() == [0x44, 0x01, 0x54]
    assert high[0, 0].tolist() == [0xFD, 0xE7, 0x25]
    signed = np.outer(np.linspace(-1, 1, 21), np.ones(20))
    (about_zero,) = pictures_of(on_replicas(signed, signed))
    assert about_zero[10, 0].tolist() == pytest.approx([0xF7, 0xF6, 0xF6], abs=3)
    assert about_zero[0, 0, 2] > about_zero[0, 0, 0]  # blue below zero, red above
    assert about_zero[20, 0, 0] > about_zero[20, 0, 2]


def test_nan_and_infinity_have_separate_colours() -> None:
    value = np.ones((20, 20))
    value[0, 0], value[1, 1] = math.nan, -math.inf
    first, _ = pictures_of(on_replicas(value, np.zeros((20, 20))))
    assert first[0, 0].tolist() == [0xFF, 0x2F, 0xA4]
    assert first[1, 1].tolist() == [0xFF, 0xB0, 0x00]
    markup = html_of(on_replicas(value, np.zeros((20, 20))))
    assert "1 NaN, 1 Inf" in markup
    assert "replica 1 ≠ replica 0" in markup


def test_images_keep_their_pixels() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 20, 30, 3), np.uint8)
    picture, _ = pictures_of(on_replicas(images, images + np.uint8(1)))
    assert (picture[:20, :30] == images[0]).all()
    assert (picture[:20, 32:] == images[1]).all()


def test_panels_with_text_from_data() -> None:
    value = {f"$x^$ \u4f60\n{ATTACK}": np.zeros((20, 20)), "s": "$\\frac{"}
    markup = html_of(describe_replica_values(value))
    assert markup.count("<img") == 1
    assert "onerror" not in Tags(markup).attributes


CONNECTION = ConnectionDescription(
    kind="virtual",
    tpu="local",
    accelerator="v5e-8",
    replicas=8,
    cores=8,
    hosts=1,
    topology=describe_accelerator(accelerator("v5e-8")),
    versions=(("tensorflow", "2.21.0"), ("keras", "3.12.0")),
    notes=("No TPU answered: <b>this</b> one is made of CPU cores.",),
)


def test_the_summary_of_a_connection() -> None:
    assert mimebundle(CONNECTION)["text/plain"] == (
        "virtual TPU v5e-8 (simulated on CPU)\n"
        "  name      local\n"
        "  replicas  8\n"
        "  cores     8 on 1 host\n"
        "  topology  8 chips, mesh 2×4×1 (x, y, z)\n"
        "  HBM       16 GiB per core\n"
        "  versions  tensorflow 2.21.0, keras 3.12.0\n"
        "No TPU answered: <b>this</b> one is made of CPU cores."
    )
    markup = html_of(CONNECTION)
    assert "virtual TPU v5e-8 (simulated on CPU)" in markup
    assert "b" not in Tags(markup).names


def test_the_summary_of_hardware() -> None:
    hardware = replace(CONNECTION, kind="hardware", logical_devices=2, replicas=4)
    text = mimebundle(hardware)["text/plain"]
    assert isinstance(text, str)
    assert text.startswith("TPU hardware v5e-8\n")
    assert "4 of 2 logical devices each" in text


HOSTILE_CURVES = {
    "the largest numbers": [np.linspace(-1, 1, 200) * 1.7e308] * 2,
    "nothing finite": [np.full(200, math.nan), np.full(200, math.inf)],
    "one finite element": [np.where(np.arange(200) == 5, 1.0, math.nan)],
    "gaps": [np.where(np.arange(200) % 3, np.arange(200), math.nan)],
    "a constant": [np.full(200, 1e308)],
    "unequal lengths": [np.full(200, 3.0), np.full(100, 4.0)],
    "large integers": [np.arange(200) + 2**62],
}


@pytest.mark.parametrize("name", HOSTILE_CURVES)
def test_curves_of_any_numbers(name: str) -> None:
    """NumPy must not warn either: pytest turns warnings into errors."""
    markup = html_of(on_replicas(*HOSTILE_CURVES[name]))
    (data,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', markup)
    svg = base64.b64decode(data).decode()
    assert "nan" not in svg.partition("<text")[0]
    assert ElementTree.fromstring(svg).tag.endswith("svg")


def test_rounded_numbers_do_not_look_like_integers() -> None:
    shown = [number_text(value) for value in (12345.678, -1234.5678, 999.96, 1e7, 2**40, 2**60)]
    assert shown == ["12345.68", "-1234.568", "1000", "1e+07", "1099511627776", "1.153e+18"]


def test_booleans_are_counted() -> None:
    truth = np.array([[True, False, True]] * 2)
    assert "4 of 6 True" in replicas_text(describe_replica_values({"truth": truth}))


def ragged(*rows: list[float]) -> ReplicaValue:
    flat = describe_replica_values(np.array([x for row in rows for x in row])).sections[0].values[0]
    lengths = tuple(map(len, rows))
    return replace(flat, kind="ragged", texts=("some values",), rows=(lengths,), fingerprint=rows)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (ragged([1, 2], [3, 3]), "[[1, 2],\n [3, 3]]"),
        (ragged([1, 2], [3, 4]), "[[1, 2],\n [3, <4>]]"),
        (ragged([1], [3, 3], [5]), "[[1<]>,\n [3, 3],\n <[><5><]>]"),
        (ragged([1, 2]), "[[1, 2]<]>"),
    ],
)
def test_only_the_differences_of_ragged_rows_are_marked(value: ReplicaValue, expected: str) -> None:
    first = ragged([1, 2], [3, 3])
    section = Section("", "PerReplica", True, (first, value), (False, value != first))
    page = replicas_html(ReplicaValuesDescription("PerReplica", 2, (section,)))
    marked = re.sub(r'<span style="background[^>]*>(.*?)</span>', r"<\1>", page)
    assert f">{expected}</pre>" in marked
