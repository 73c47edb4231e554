"""Pictures of the places of arrays, without JAX."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
from support.placements import ARRAYS, MESH, described, placed, tree

from tpunb.display.describe.placement import TreePlacement, placement_of
from tpunb.display.describe.replicas import describe_replica_values
from tpunb.display.draw.placement.html import placement_html
from tpunb.display.draw.placement.layout import picture_of, slice_text, tree_summary
from tpunb.display.draw.placement.text import placement_text
from tpunb.display.draw.replicas.html import replicas_html
from tpunb.display.draw.replicas.text import replicas_text

MATRIX = """\
float32[4096, 8192] · 128 MiB · cut into 4 × 2 parts over data and model
  Mesh: data 4 × model 2. In parentheses: the place on (data, model).
  Each of 8 devices holds 16 MiB, 1/8 of it.
  ┌─────────────────────┬────────────────────────┐
  │ [0:1024, 0:4096]    │ [0:1024, 4096:8192]    │
  │ 16 MiB              │ 16 MiB                 │
  │ TPU 0 (0, 0)        │ TPU 1 (0, 1)           │
"""

COPIES = """\
float32[4096, 8192] · 128 MiB · cut into 4 parts over data, 2 copies of each
  Mesh: data 4 × model 2. In parentheses: the place on (data, model).
  Each of 8 devices holds 32 MiB, 1/4 of it; there are 2 copies, along model.
  ┌─────────────────────────────────────────────────────────────┐
  │ [0:1024, :]  32 MiB, 2 copies  TPU 0 (0, 0)  TPU 1 (0, 1)    │
"""


def squeezed(text: str) -> str:
    """Return a text without the padding and the rules of boxes."""
    return re.sub(r" +|─+", " ", text)


def test_a_matrix_has_rows_and_columns() -> None:
    text = placement_text(ARRAYS["matrix"])
    assert squeezed(text).startswith(squeezed(MATRIX).replace(" ┬ ┐", " ┬ ┐"))
    assert text.count("├") == 3


def test_copies_are_counted_with_their_axis() -> None:
    assert squeezed(placement_text(ARRAYS["copies"])).startswith(squeezed(COPIES))


def test_only_three_axes_that_are_cut_are_drawn() -> None:
    axes = {"x": 2, "y": 2, "z": 2, "w": 2}
    shape = (2, 4, 6, 8, 3)
    five = placed(shape, axes, (("x",), ("y",), (), ("z",), ()))
    picture = picture_of(five)
    assert (picture.vertical, picture.horizontal) == (1, 3)
    assert [plane.title for plane in picture.planes] == ["axis 0 at 0:1", "axis 0 at 1:2"]
    assert [slice_text(part, shape) for part in picture.planes[0].parts.values()] == [
        "[0:1, 0:2, :, 0:4, :]",
        "[0:1, 0:2, :, 4:8, :]",
        "[0:1, 2:4, :, 0:4, :]",
        "[0:1, 2:4, :, 4:8, :]",
    ]


def test_many_parts_leave_a_gap() -> None:
    (plane,) = picture_of(ARRAYS["slice"]).planes
    assert plane.rows[-2:] == (None, (64512, 65536))
    assert len(plane.rows) == 8
    four = placed(
        (16, 16, 4, 4), {"a": 4, "b": 4, "c": 2, "d": 2}, (("a",), ("b",), ("c",), ("d",))
    )
    picture = picture_of(four)
    assert (len(picture.planes), picture.omitted) == (4, 12)
    assert "and 12 more of these planes" in placement_text(four)
    assert "and 12 more of these planes" in placement_html(four)


@pytest.mark.parametrize("name", ARRAYS)
def test_text_is_narrow(name: str) -> None:
    assert max(map(len, placement_text(ARRAYS[name]).splitlines())) <= 100


def test_one_device_has_no_picture() -> None:
    text = placement_text(ARRAYS["one"])
    assert "TPU 0 holds all of it: 2 KiB." in text
    assert "7 other devices hold nothing of it." in text
    assert "┌" not in text
    assert "<table" not in placement_html(ARRAYS["one"])


def test_replicated_arrays_say_so() -> None:
    text = placement_text(ARRAYS["replicated"])
    assert "replicated on 8 devices" in text
    assert "holds all of it: 4 MiB; there are 8 copies, along data and model." in text
    assert "TPU 0, 1, 2, 3, 4, 5, 6, 7" in text


def test_devices_of_other_processes_are_named() -> None:
    text, html = placement_text(ARRAYS["hosts"]), placement_html(ARRAYS["hosts"])
    assert "4 devices of these belong to other processes." in text
    assert "TPU 7 (3, 1), process 1" in text
    assert "this one" in html


def test_the_host_memory_and_notes_are_said() -> None:
    text, html = placement_text(ARRAYS["strange"]), placement_html(ARRAYS["strange"])
    assert "It is in the host's memory (pinned_host)." in text
    assert "<b>a</b>" in text
    assert "&lt;b&gt;a&lt;/b&gt;" in html


def test_the_picture_has_a_text_and_a_table_of_devices() -> None:
    html = placement_html(ARRAYS["matrix"])
    assert (
        'aria-label="float32[4096, 8192] · 128 MiB · cut into 4 × 2 parts over data and model"'
        in html
    )
    assert "→ axis 1 of 8192, over model" in html
    assert "<summary" in html
    for number in range(8):
        assert f">TPU {number}<" in html
    assert html == placement_html(placed((4096, 8192), MESH, (("data",), ("model",))))


def test_a_tree_says_how_much_is_replicated() -> None:
    text = placement_text(tree())
    assert text.startswith("75% of 256 MiB is replicated on every device.")
    assert "the fullest holds 208 MiB; without copies, each would hold 32 MiB." in text
    assert "4 parts, 2 copies" in text
    assert "only on TPU 0" in text
    assert "deleted, or donated" in text
    assert max(map(len, text.splitlines())) <= 100
    assert "1 leaf is not of JAX, and not listed." in text


def test_a_large_tree_shows_its_largest_arrays_first() -> None:
    html = placement_html(tree(60))
    assert "All 63 arrays" in html
    assert html.count("<tr>") == 2 + 12 + 63


@pytest.mark.parametrize(
    ("found", "summary"),
    [
        (TreePlacement((), 8, 2**20, 2**17, 0), "Nothing of 1 MiB is replicated on every device."),
        (TreePlacement((), 8, 2**20, 2**20, 2**20), "All of 1 MiB is replicated on every device."),
        (TreePlacement((), 8, 2**20, 2**17, 1), "<1% of 1 MiB is replicated on every device."),
        (TreePlacement((), 8, 2**20, 1, 2**20 - 1), ">99% of 1 MiB is replicated on every device."),
        (TreePlacement((), 0, 0, 0, 0), "No device holds any of it."),
        (TreePlacement((), 8, 0, 0, 0), "Nothing of 0 B is replicated on every device."),
    ],
)
def test_summaries(found: TreePlacement, summary: str) -> None:
    assert tree_summary(found) == summary
    assert placement_html(found)


def test_values_that_are_not_read_say_why() -> None:
    shown = described(ARRAYS["matrix"])
    for form in (replicas_text(shown), replicas_html(shown)):
        assert "cut into 4 × 2 parts" in form
        assert "The values are not read" in form


def test_other_values_have_no_place() -> None:
    assert placement_of({"a": np.ones(3)}) is None
    assert describe_replica_values([np.ones(3)]).placement is None
    assert "jax" not in sys.modules
