"""The public drawings: their text, their alternative text, and their colours."""

from __future__ import annotations

import base64
import html
import re
from typing import Any

import numpy as np
import pytest

import tpunb
from tpunb.display.draw import svg
from tpunb.errors import TpunbError

TENS = list(range(0, 80, 10))
MESH = {"data": 4, "model": 2}
DRAWINGS = {
    "all_reduce": tpunb.draw.collective("all_reduce", TENS),
    "all_gather": tpunb.draw.collective("all_gather", TENS),
    "scatter": tpunb.draw.collective("reduce_scatter", np.arange(16).reshape(4, 4)),
    "permute": tpunb.draw.collective("ppermute", TENS, pairs=[(0, 1)]),
    "large": tpunb.draw.collective("all_gather", np.ones((8, 8, 24))),
    "planes": tpunb.draw.collective("all_reduce", np.ones((2, 2, 2, 2))),
    "empty": tpunb.draw.collective("all_gather", np.ones((2, 0))),
    "chip": tpunb.draw.chip("v5e-8"),
    "batch": tpunb.draw.batch(60, "v3-8", of=64),
    "one spec": tpunb.draw.sharding((64, 128), ("data", "model"), mesh=MESH),
    "specs": tpunb.draw.sharding((64, 128), (), ("data",), (None, "model"), mesh=MESH),
    "planned": tpunb.draw.sharding((4, 8, 6), ("data",), (None, None, "model"), mesh=MESH),
    "ring": tpunb.draw.sends("v3-8"),
    "tiles": tpunb.draw.tiles(9, 129),
    "detours": tpunb.draw.sends("v5e-8", [(core, (core + 1) % 8) for core in range(8)]),
}


def page(name: str) -> str:
    return DRAWINGS[name]._repr_html_()


def spoken(name: str) -> str:
    """Return the alternative texts of a drawing."""
    return html.unescape(" ".join(re.findall(r'alt="([^"]*)"', page(name))))


def pictures(name: str) -> str:
    data = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", page(name))
    return "".join(base64.b64decode(each).decode() for each in data)


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_has_text_of_at_most_100_columns(name: str) -> None:
    assert max(map(len, repr(DRAWINGS[name]).split("\n"))) <= 100


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_picture_fits_a_page_and_says_what_it_shows(name: str) -> None:
    for picture in re.findall(r"<img[^>]*>", page(name)):
        assert "max-width:100%" in picture
        assert len(re.findall(r'alt="[^"]{20,}"', picture)) == 1


def luminance(colour: str) -> float:
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_white_letters_are_readable_on_every_ground() -> None:
    grounds = {svg.NEUTRAL, *map(svg.core_colour, range(16))}
    assert all(1.05 / (luminance(ground) + 0.05) > 3.5 for ground in grounds)


@pytest.mark.parametrize("name", DRAWINGS)
def test_letters_are_white_on_a_ground_or_grey_on_the_page(name: str) -> None:
    inks = re.findall(r'<text[^>]*fill="([^"]+)"', pictures(name))
    assert set(inks) <= {"#fff", "#70777f"}


def test_a_collective_says_the_values_of_each_core() -> None:
    assert "core 3 has 30 before and 280 after" in spoken("all_reduce")
    assert "core 7 has 70 before and [0, 10, 20, 30, 40, 50, 60, 70] after" in spoken("all_gather")
    assert "Core 0 and 2 receive" not in spoken("permute")
    assert "Cores 0, 2, 3, 4, 5, 6 and 7 receive nothing, and get zeros." in spoken("permute")
    assert "float64[64, 24]" in spoken("large")


def test_an_all_reduce_is_drawn_with_all_its_numbers() -> None:
    drawn = re.findall(r">([^<>]+)</text>", pictures("all_reduce"))
    assert [text for text in drawn if text.isdigit()] == [*map(str, TENS), *["280"] * 8]
    assert "sum" in drawn


def test_the_colour_of_an_element_is_the_colour_of_its_core() -> None:
    fills = re.findall(r'<rect[^>]*fill="(#[^"]+)"', pictures("all_gather"))
    colours = [svg.core_colour(core) for core in range(8)]
    assert fills == colours * 9  # before; and afterwards on each core
    assert re.findall(r'<rect[^>]*fill="(#[^"]+)"', pictures("scatter"))[-4:] == [svg.NEUTRAL] * 4


def test_a_value_of_each_core_is_needed() -> None:
    with pytest.raises(TpunbError, match="one for each core"):
        tpunb.draw.collective("all_reduce", 3.0)


def test_a_chip_has_its_figures() -> None:
    text = repr(DRAWINGS["chip"])
    assert "197 TFLOP/s" in text
    assert "HBM, 16 GiB" in text
    assert "819 GB/s" in text
    assert "up to 4 links" in text
    assert "They act as one core" in repr(tpunb.draw.chip("v4-8"))


def test_a_last_batch_leaves_less_to_the_last_core() -> None:
    shares = DRAWINGS["batch"].description.shares
    assert [end - begin for begin, end in shares] == [8] * 7 + [4]
    assert "this last batch only 60: 7 cores with 8, 1 core with 4" in repr(DRAWINGS["batch"])


@pytest.mark.parametrize(
    ("rows", "options"), [(0, {}), (True, {}), ("64", {}), (70, {"of": 64}), (8, {"tpu": "v5e-32"})]
)
def test_a_batch_that_does_not_exist_is_refused(rows: Any, options: dict[str, Any]) -> None:
    with pytest.raises(TpunbError) as refused:
        tpunb.draw.batch(rows, **options)
    assert refused.value.fix


def test_the_parts_of_a_batch_are_those_of_tensorflow(tf: Any) -> None:
    from tensorflow.python.data.experimental.ops.distribute import batch_sizes_for_worker

    for rows in (1, 7, 8, 60, 64):
        drawn = tpunb.draw.batch(rows, 8).description.shares
        expected = batch_sizes_for_worker(rows, 1, 8, 0).numpy().tolist()
        assert [end - begin for begin, end in drawn] == expected
    del tf


def test_a_spec_says_what_a_core_holds() -> None:
    assert "P('data'): Each core holds 8 KiB: 1 of 4 parts. 2 copies along model" in spoken("specs")
    assert "[0:16, :] on 0 1; [16:32, :] on 2 3" in spoken("specs")
    assert "cut into 4 × 2 parts over data and model" in page("one spec")


def test_a_spec_that_jax_refuses_says_so() -> None:
    drawn = tpunb.draw.sharding((10, 4), (), ("data",), mesh=MESH)
    assert "JAX will refuse it: axis 0 of 10 cannot be cut into 4 equal parts" in repr(drawn)


@pytest.mark.parametrize(
    ("specs", "options", "words"),
    [
        ((), {}, "There is no spec"),
        ((("dat",),), {}, "Did you mean `data`"),
        ((("other",),), {}, "Its axes are 'data', 'model'"),
        (((3,),), {}, "the name of a mesh axis"),
        ((3,), {}, "the name of a mesh axis"),
        ((("data", "data"),), {}, "more than once"),
        (((None, None, "data"),), {}, "3 entries, and the array has 2 axes"),
        ((("data",),), {"mesh": 8}, "not a mesh"),
        ((("data",),), {"mesh": {"data": 0}}, "no size 0"),
        ((("data",),), {"mesh": {"data": 4096}}, "at most 1024"),
        ((("data",),), {"shape": 8}, "not the shape"),
        ((("data",),), {"dtype": "float33"}, "not a type"),
    ],
)
def test_a_spec_that_does_not_fit_is_refused(
    specs: Any, options: dict[str, Any], words: str
) -> None:
    arguments = {"shape": (8, 8), "mesh": MESH, **options}
    with pytest.raises(TpunbError) as refused:
        tpunb.draw.sharding(arguments.pop("shape"), *specs, **arguments)
    assert words in str(refused.value)
    assert refused.value.fix


def test_a_ring_uses_links_only() -> None:
    ring = DRAWINGS["ring"].description
    assert ring.is_ring
    assert not ring.detours
    assert ring.pairs[:4] == ((0, 1), (1, 2), (2, 3), (3, 7))
    assert "0 → 1 → 2 → 3 → 7 → 6 → 5 → 4 → 0" in repr(DRAWINGS["ring"])


def test_a_send_without_a_link_is_marked() -> None:
    drawn = DRAWINGS["detours"].description
    assert [(way[0], way[-1]) for way in drawn.detours] == [(1, 2), (3, 4), (5, 6), (7, 0)]
    assert "7 → 0 passes 5, 3, 1" in repr(DRAWINGS["detours"])
    assert "stroke-dasharray" in pictures("detours")
    assert "stroke-dasharray" not in pictures("ring")


@pytest.mark.parametrize(
    ("tpu", "pairs", "words"),
    [
        ("v5e-8", [(0, 8)], "no core 8"),
        ("v5e-8", [3], "a core that receives"),
        ("v5e-256", None, "at most 64 cores"),
        ("v4-16", None, "flat meshes"),
        (3, None, "form no ring"),
    ],
)
def test_sends_that_cannot_be_drawn_are_refused(tpu: Any, pairs: Any, words: str) -> None:
    with pytest.raises(TpunbError) as refused:
        tpunb.draw.sends(tpu, pairs)
    assert words in str(refused.value)
    assert refused.value.fix


@pytest.mark.parametrize(
    ("rows", "columns", "stored"),
    [
        (8, 128, 1024),
        (9, 129, 16 * 256),
        (20, 300, 24 * 384),
        (5, 768, 8 * 768),
        (96, 10, 96 * 128),
    ],
)
def test_tiles_are_filled_up(rows: int, columns: int, stored: int) -> None:
    tiles = tpunb.draw.tiles(rows, columns).description
    assert round(tiles.factor * rows * columns) == stored
    assert tiles.down * tiles.across * 8 * 128 == stored


def test_padding_is_said() -> None:
    assert "4 tiles, 16 × 256 numbers: 3.53 times its size" in repr(DRAWINGS["tiles"])
    assert "without padding" in repr(tpunb.draw.tiles(16, 256))
    assert pictures("tiles").count(">padding<") == 3


@pytest.mark.parametrize("sides", [(4, 128), (8, True), ("8", 128), (97, 128), (8, 769)])
def test_a_matrix_without_a_picture_is_refused(sides: Any) -> None:
    with pytest.raises(TpunbError) as refused:
        tpunb.draw.tiles(*sides)
    assert refused.value.fix


def test_a_drawing_can_be_shown_in_the_middle_of_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    assert tpunb.show(DRAWINGS["ring"]) is None
    assert "A ring of the 8 cores of v3-8" in capsys.readouterr().out
