"""The widget of replica values, in Chromium."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hosting import FRAMES, Hosted, darken
from playwright.sync_api import expect
from support.displayed import PerReplica, know_per_replica
from support.tiers import THOROUGH

from tpunb._util.units import number_text
from tpunb.display.describe.replicas import Leaf, ReplicaValuesDescription, describe_replica_values
from tpunb.display.widgets.page_data import es_module
from tpunb.display.widgets.replicas import ReplicasWidget

pytestmark = THOROUGH

ATTACK = "<img src=x onerror=alert(1)>"
ROOT = "[data-testid=tpunb-replicas]"
PANEL = f"{ROOT} [role=option]"

Host = Callable[[Callable[[], Any]], Hosted]


@pytest.fixture(autouse=True)
def distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    know_per_replica(monkeypatch)


def random(replica: int) -> np.random.Generator:
    return np.random.default_rng(replica)


def waves(replica: int, sides: tuple[int, int] = (40, 60)) -> Any:
    rows, columns = np.mgrid[: sides[0], : sides[1]]
    return np.sin(rows / 7 + replica / 3) * np.cos(columns / 9) + replica / 10


def with_nan(replica: int) -> Any:
    array = waves(replica)
    if replica == 2:
        array[10:16, 20:30] = np.nan
        array[30, 40:50] = np.inf
    return array.astype(np.float32)


def image(replica: int, count: int = 4) -> Any:
    rows, columns = np.mgrid[:32, :32]
    pictures = [
        np.stack([rows * 8, columns * 8, (rows + columns) * (number + replica) % 255], -1)
        for number in range(count)
    ]
    return np.array(pictures, np.uint8)


def walk(replica: int) -> Any:
    return random(replica).normal(size=2000).cumsum().astype(np.float32)


def structure() -> Any:
    return {
        "loss": PerReplica(*[np.float32(2.5 + math.sin(k)) for k in range(8)]),
        "logits": PerReplica(*[waves(k, (16, 24)) for k in range(8)]),
        "state": {
            "step": PerReplica(*[np.int64(120)] * 8),
            "slots": (PerReplica(*[walk(k) for k in range(8)]), "adam"),
        },
        "mask": PerReplica(*[np.eye(4, dtype=bool)] * 8),
    }


def widths(replica: int) -> Any:
    return np.float32(0.693 + random(replica).normal() / 100 + (5 if replica == 77 else 0))


GALLERY: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "scalars": (lambda: PerReplica(*[np.float32(2.5 + math.sin(k)) for k in range(8)]), {}),
    "small": (lambda: PerReplica(*[np.arange(12).reshape(3, 4) + (k == 3) for k in range(8)]), {}),
    "matrices": (lambda: PerReplica(*[with_nan(k) for k in range(8)]), {"selected": [2]}),
    "positive": (lambda: PerReplica(*[np.abs(waves(k)) for k in range(4)]), {}),
    "curves": (lambda: PerReplica(*[walk(k) for k in range(8)]), {}),
    "images": (lambda: PerReplica(*[image(k) for k in range(4)]), {}),
    "structure": (structure, {"section": 1}),
    "hostile": (
        lambda: PerReplica(*[np.array([ATTACK, f"replica {k}", "</script>"]) for k in range(4)]),
        {},
    ),
    "difference": (lambda: PerReplica(*[with_nan(k) for k in range(8)]), {"mode": "difference"}),
    "histogram": (lambda: PerReplica(*[waves(k) for k in range(8)]), {"view": "histogram"}),
    "table": (lambda: PerReplica(*[widths(k) for k in range(256)]), {"view": "table"}),
    "many": (lambda: PerReplica(*[waves(k, (20, 30)) for k in range(256)]), {}),
    "scalars-many": (lambda: PerReplica(*[widths(k) for k in range(256)]), {}),
    "gather": (lambda: PerReplica(*[waves(k) for k in range(8)]), {"mode": "gather"}),
    "mean": (lambda: PerReplica(*[waves(k) for k in range(8)]), {"mode": "mean"}),
    "equal": (lambda: PerReplica(*[waves(1)] * 8), {}),
    "slices": (
        lambda: PerReplica(*[random(k).normal(size=(4, 8, 12)) for k in range(4)]),
        {"slices": [1]},
    ),
    "plain": (lambda: waves(0), {}),
}


def widget_of(*values: Any, **state: Any) -> Callable[[], ReplicasWidget]:
    return lambda: ReplicasWidget(PerReplica(*values), **state)


@pytest.mark.parametrize("name", GALLERY)
def test_looks(name: str, host: Host, page: Any, screenshot: Any) -> None:
    make, state = GALLERY[name]
    host(lambda: ReplicasWidget(make(), **state))
    root = page.locator(ROOT)
    expect(root).to_have_attribute("data-busy", "false")
    screenshot(root, "light")
    darken(page)
    screenshot(root, "dark")


def attribute(page: Any, name: str, value: str) -> None:
    expect(page.locator(ROOT)).to_have_attribute(f"data-{name}", value)


def press(page: Any, label: str) -> None:
    page.get_by_role("button", name=label, exact=True).click()


def pixel(page: Any, place: int, across: float, down: float) -> list[int]:
    """Return the colour of a panel's canvas at fractions of its width and height."""
    script = """([selector, place, across, down]) => {
        const canvas = document.querySelectorAll(selector)[place].querySelector('canvas');
        const copy = document.createElement('canvas');
        [copy.width, copy.height] = [canvas.width, canvas.height];
        const context = copy.getContext('2d', { willReadFrequently: true });
        context.drawImage(canvas, 0, 0);
        const at = [Math.floor(canvas.width * across), Math.floor(canvas.height * down)];
        return [...context.getImageData(...at, 1, 1).data];
    }"""
    return list(page.evaluate(script, [PANEL, place, across, down]))


def test_the_roots_attributes(host: Host, page: Any) -> None:
    host(widget_of(*[waves(k) for k in range(8)], selected=[3, 5]))
    for name, value in {
        "replicas": "8",
        "sections": "1",
        "section": "0",
        "view": "heat",
        "mode": "values",
        "equal": "false",
        "selected": "3,5",
        "busy": "false",
    }.items():
        attribute(page, name, value)
    expect(page.locator(PANEL)).to_have_count(8)
    selected = page.locator(f"{PANEL}[aria-selected=true] strong")
    expect(selected).to_have_text(["replica 3", "replica 5"])


def test_numbers_are_exact(host: Host, page: Any) -> None:
    host(widget_of(np.array([2**63 - 1, -3]), np.array([2**53 + 1, 4])))
    attribute(page, "view", "numbers")
    expect(page.locator(f"{ROOT} td")).to_have_text(
        ["9223372036854775807", "-3", "9007199254740993", "4"]
    )
    expect(page.locator(f"{ROOT} .tpunb-replicas-unlike")).to_have_count(2)


NUMBERS = [
    (np.float32(0.1), "0.1"),
    (np.float64(12345.678), "12345.68"),
    (np.float32(123456789.0), "1.235e+08"),
    (12345, "12345"),
    (math.nan, "nan"),
    (-math.inf, "-inf"),
    (np.bool_(True), "True"),
]


def test_numbers_as_in_the_static_forms(host: Host, page: Any) -> None:
    for value, _ in NUMBERS:
        host(widget_of(value, value))
    shown = page.locator(f"{ROOT} .tpunb-replicas-single")
    expect(shown).to_have_text([text for _, text in NUMBERS])


def test_the_page_rounds_like_the_static_forms(page: Any) -> None:
    numbers = [digits * 10.0**power for digits in (-9.99996, 1.2345678) for power in range(-12, 13)]
    script = (
        f"(numbers) => {{ {es_module('common.js')}; return numbers.map((n) => numberText(n)); }}"
    )
    assert page.evaluate(script, numbers) == [number_text(number) for number in numbers]


@pytest.mark.parametrize("width", [700, 1600])
def test_no_number_is_cut(host: Host, page: Any, width: int, screenshot: Any) -> None:
    """Each panel is as wide as its numbers if there is room."""
    page.set_viewport_size({"width": width, "height": 700})
    signed = np.array([[-1234.5, -0.00012345, 3.0], [12345.678, -9876543.0, 1e-30]])
    host(widget_of(signed, signed * 2, signed / 3))
    expect(page.locator(PANEL)).to_have_count(3)
    screenshot()
    cut = "nodes => nodes.filter(node => node.scrollWidth > node.clientWidth).length"
    assert page.locator(f"{ROOT} .tpunb-replicas-scroll").evaluate_all(cut) == 0
    expect(page.locator(f"{ROOT} td").nth(3)).to_have_text("12345.68")


def test_booleans_are_counted_and_integers_are_exact(host: Host, page: Any) -> None:
    truth = np.array([[True, False, True]] * 2)
    host(widget_of(truth, ~truth))
    expect(page.locator(f"{ROOT} .tpunb-replicas-facts")).to_have_text(
        ["4 of 6 True", "2 of 6 True"]
    )
    host(widget_of(np.int64(2**40), np.int64(1)))
    expect(page.locator(ROOT).last).to_contain_text("1099511627776")


def test_ragged_values_keep_their_rows(host: Host, page: Any, screenshot: Any) -> None:
    flat = describe_replica_values(PerReplica(np.array([1, 2, 3, 3]), np.array([1, 2, 3, 4])))
    (section,) = flat.sections
    values = tuple(
        replace(value, kind="ragged", shape=(3, None), texts=("4 values in 3 rows",), rows=rows)
        for value, rows in zip(section.values, [((2, 0, 2),), ((2, 0, 2),)], strict=True)
    )
    described = replace(flat, sections=(replace(section, values=values),))
    host(lambda: ReplicasWidget(described))
    rows = page.locator(f"{PANEL} >> nth=1 >> tr")
    assert rows.all_inner_texts() == ["1\t2", "empty", "3\t4"]
    expect(page.locator(".tpunb-replicas-unlike")).to_have_text(["4"])
    screenshot(page.locator(ROOT))
    press(page, "Gather")
    expect(page.locator(f"{PANEL} tr")).to_have_count(6)


def test_axes_have_labels(host: Host, page: Any, screenshot: Any) -> None:
    host(widget_of(*[waves(k) for k in range(4)], view="histogram"))
    axes = page.locator(f"{ROOT} .tpunb-replicas-axis")
    expect(axes).to_have_count(5)  # the strip's, and one below each histogram
    expect(axes.first).to_have_text("replica 0replica 3")
    screenshot()


def test_the_table_has_the_standard_deviation(host: Host, page: Any) -> None:
    first = np.arange(100.0).reshape(10, 10)
    host(widget_of(first, 2 * first, view="table"))
    deviations = page.locator(f"{ROOT} tbody tr td:nth-child(5)")
    expect(deviations).to_have_text(["28.87", "57.73"])


def test_the_colours_of_nan_and_infinity(host: Host, page: Any) -> None:
    host(widget_of(*[with_nan(k) for k in range(4)]))
    page.evaluate(FRAMES)
    assert pixel(page, 2, 25 / 60, 13 / 40)[:3] == [255, 47, 164]
    assert pixel(page, 2, 45 / 60, 30.5 / 40)[:3] == [255, 176, 0]
    expect(page.locator(f"{ROOT} .tpunb-replicas-legend")).to_contain_text("NaN")
    expect(page.locator(f"{ROOT} .tpunb-replicas-legend")).to_contain_text("Inf")
    expect(page.locator(PANEL).nth(2)).to_contain_text("60 NaN, 10 Inf")


def test_one_scale_for_all_replicas(host: Host, page: Any) -> None:
    host(widget_of(np.zeros((9, 9)), np.full((9, 9), 1.0)))
    page.evaluate(FRAMES)
    assert pixel(page, 0, 0.5, 0.5)[:3] == [0x44, 0x01, 0x54]
    assert pixel(page, 1, 0.5, 0.5)[:3] == [0xFD, 0xE7, 0x25]
    expect(page.locator(f"{ROOT} .tpunb-replicas-legend")).to_have_text("01")


def test_equal_replicas_have_one_panel(host: Host, page: Any) -> None:
    host(widget_of(*[waves(0)] * 8))
    attribute(page, "equal", "true")
    expect(page.locator(f"{ROOT} .tpunb-replicas-badge")).to_have_text("all 8 replicas equal")
    expect(page.locator(PANEL)).to_have_count(1)
    press(page, "Sum")
    expect(page.locator(PANEL)).to_contain_text("max 8")
    press(page, "Difference")
    expect(page.locator(PANEL)).to_contain_text("equal")


def test_small_values_are_computed_at_once(host: Host, page: Any) -> None:
    hosted = host(widget_of(*[np.arange(6.0).reshape(2, 3) + k for k in range(3)]))
    press(page, "Difference")
    attribute(page, "mode", "difference")
    expect(page.locator(PANEL).nth(2).locator("td")).to_have_text(["2"] * 6)
    page.get_by_label("difference to").select_option("2")
    expect(page.locator(PANEL).first.locator("td")).to_have_text(["-2"] * 6)
    press(page, "Mean")
    expect(page.locator(f"{ROOT} td")).to_have_text(["1", "2", "3", "4", "5", "6"])
    press(page, "Sum")
    expect(page.locator(f"{ROOT} td")).to_have_text(["3", "6", "9", "12", "15", "18"])
    press(page, "Gather")
    expect(page.locator(f"{ROOT} td")).to_have_count(18)
    assert not [message for message in hosted.inbox if "content" in message]


def test_scalars_can_be_gathered(host: Host, page: Any) -> None:
    host(widget_of(*[np.float32(k) for k in range(4)], mode="gather"))
    expect(page.locator(f"{ROOT} td")).to_have_text(["0", "1", "2", "3"])


def test_different_shapes(host: Host, page: Any) -> None:
    host(widget_of(np.zeros((9, 9)), np.ones((8, 9))))
    expect(page.locator(PANEL)).to_have_count(2)
    press(page, "Difference")
    expect(page.get_by_role("alert")).to_have_text("The replicas' values have different shapes.")
    press(page, "Gather")
    expect(page.locator(PANEL)).to_have_count(1)


LARGE = [np.add.outer(np.arange(300.0), np.arange(400.0)) + k for k in range(4)]


def test_statistics_of_all_elements_come_from_the_kernel(host: Host, page: Any) -> None:
    values = [*LARGE[:3], LARGE[3].copy()]
    # This element is not in the page's samples.
    values[3][1, 1] = 1e6
    hosted = host(widget_of(*values, mode="difference"))
    attribute(page, "busy", "true")
    expect(page.locator(PANEL).nth(3)).to_contain_text("max |Δ| 3")
    expect(page.get_by_role("status")).to_have_text("computing…")
    hosted.deliver()
    attribute(page, "busy", "false")
    expect(page.locator(PANEL).nth(3)).to_contain_text("max |Δ| 999998")
    expect(page.get_by_role("status")).to_be_empty()


def test_histograms_count_all_elements(host: Host, page: Any) -> None:
    hosted = host(widget_of(*LARGE, view="histogram"))
    attribute(page, "busy", "true")
    hosted.deliver()
    attribute(page, "busy", "false")
    page.locator(f"{PANEL} canvas").first.hover(position={"x": 130, "y": 60})
    tip = page.locator(f"{ROOT} .tpunb-tip")
    expect(tip).to_contain_text("replica 3")
    counts = [int(line.split()[-1]) for line in tip.inner_text().splitlines()[1:]]
    # Samples have at most 96 by 96 elements.
    assert sum(counts) > 4 * 96


def test_late_answers_are_dropped(host: Host, page: Any) -> None:
    hosted = host(widget_of(*LARGE, mode="sum"))
    late = hosted.inbox[:]
    hosted.inbox.clear()
    press(page, "Mean")
    attribute(page, "mode", "mean")
    requests = hosted.inbox[:]
    hosted.inbox[:] = late
    hosted.deliver()
    attribute(page, "busy", "true")
    hosted.inbox[:] = requests
    hosted.deliver()
    attribute(page, "busy", "false")
    expect(page.locator(PANEL)).to_contain_text("max 699.5")


def test_errors_are_shown_in_place(host: Host, page: Any) -> None:
    hosted = host(widget_of(*LARGE, mode="sum"))
    hosted.widget._leaves = [Leaf("", "PerReplica", (object(),) * 4, distributed=True)]
    hosted.deliver()
    expect(page.get_by_role("alert")).to_have_text("Only numbers can be computed with.")
    attribute(page, "busy", "false")
    press(page, "Values")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator(PANEL)).to_have_count(4)


def test_descriptions_need_no_kernel(host: Host, page: Any) -> None:
    description = describe_replica_values(PerReplica(*LARGE))
    hosted = host(lambda: ReplicasWidget(description, mode="difference"))
    attribute(page, "busy", "false")
    assert not [message for message in hosted.inbox if "content" in message]
    expect(page.locator(ROOT)).to_contain_text("computed from the elements drawn")


def test_slices(host: Host, page: Any) -> None:
    values = [np.arange(4 * 8 * 12.0).reshape(4, 8, 12) + 1000 * k for k in range(2)]
    host(widget_of(*values))
    press(page, "Show one slice of the first axes")
    expect(page.locator(PANEL).first).to_contain_text("min 0 mean 47.5 max 95")
    page.get_by_label("axis 0").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(PANEL).first).to_contain_text("min 96 mean 143.5 max 191")
    expect(page.get_by_label("axis 0")).to_be_focused()
    page.locator(f"{PANEL} canvas").first.hover(position={"x": 2, "y": 2})
    expect(page.locator(f"{ROOT} .tpunb-tip")).to_contain_text("[1, 0, 0]")


def test_slices_of_large_values(host: Host, page: Any) -> None:
    values = [np.arange(300 * 200 * 20.0).reshape(20, 300, 200) + k for k in range(2)]
    hosted = host(widget_of(*values, slices=[3]))
    expect(page.locator(f"{ROOT} .tpunb-facts", has_text="computing")).to_be_visible()
    hosted.deliver()
    expect(page.locator(PANEL).first).to_contain_text("min 180000")
    expect(page.locator(PANEL)).to_have_count(2)
    press(page, "Histogram")
    attribute(page, "busy", "true")
    hosted.deliver()
    expect(page.locator(f"{PANEL} canvas")).to_have_count(2)
    page.get_by_label("axis 0").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(f"{ROOT} .tpunb-replicas-stale canvas")).to_have_count(2)
    hosted.deliver()
    expect(page.locator(PANEL).first).to_contain_text("min 240000")
    expect(page.locator(f"{ROOT} .tpunb-replicas-stale")).to_have_count(0)


def test_a_repeated_choice_stays(host: Host, page: Any) -> None:
    host(widget_of(*[waves(k) for k in range(4)]))
    # As in a front end, setting an unchanged value has no effect.
    page.evaluate(
        "const { model } = widgets.w0, set = model.set.bind(model);"
        "model.set = (name, value) => model.get(name) === value || set(name, value)"
    )
    press(page, "Values")
    expect(page.get_by_role("button", name="Values")).to_have_attribute("aria-pressed", "true")


def test_pages(host: Host, page: Any) -> None:
    hosted = host(widget_of(*[np.full((9, 9), k) for k in range(150)]))
    expect(page.locator(PANEL)).to_have_count(64)
    expect(page.locator(f"{ROOT} .tpunb-replicas-pager")).to_contain_text("replicas 0–63 of 150")
    press(page, "later replicas")
    attribute(page, "busy", "true")
    hosted.deliver()
    expect(page.locator(f"{PANEL} strong").first).to_have_text("replica 64")
    press(page, "later replicas")
    attribute(page, "busy", "true")
    hosted.deliver()
    expect(page.locator(PANEL)).to_have_count(22)
    expect(page.get_by_role("button", name="later replicas")).to_be_disabled()


def test_the_table_lists_all_and_sorts(host: Host, page: Any) -> None:
    host(widget_of(*[widths(k) for k in range(256)], view="table"))
    rows = page.locator(f"{ROOT} tbody tr")
    expect(rows).to_have_count(256)
    press(page, "max")
    press(page, "max")
    expect(rows.first.locator("td").first).to_have_text("77")
    expect(page.locator(f"{ROOT} th[aria-sort=descending]")).to_have_text("max ▾")
    rows.first.click()
    attribute(page, "selected", "77")
    expect(rows.first).to_have_attribute("aria-selected", "true")


def test_odd_replicas_stand_out(host: Host, page: Any) -> None:
    host(widget_of(*[widths(k) for k in range(256)]))
    strip = page.locator(f"{ROOT} .tpunb-replicas-strip canvas")
    expect(strip).to_have_attribute("data-odd", "77")
    strip.focus()
    page.keyboard.press("Home")
    expect(page.locator(f"{ROOT} [aria-live]")).to_contain_text("replica 0")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    attribute(page, "selected", "1")


def test_2048_replicas(host: Host, page: Any) -> None:
    host(widget_of(*[np.float32(k) for k in range(2048)], view="table"))
    expect(page.locator(f"{ROOT} tbody tr")).to_have_count(2048)


def test_all_panels_show_the_cursor(host: Host, page: Any, screenshot: Any) -> None:
    host(widget_of(*[np.arange(200.0).reshape(10, 20) + 1000 * k for k in range(3)]))
    before = pixel(page, 2, 5.5 / 20, 4.05 / 10)
    canvas = page.locator(f"{PANEL} canvas").first
    box = canvas.bounding_box()
    canvas.hover(position={"x": box["width"] * 5.5 / 20, "y": box["height"] * 4.5 / 10})
    tip = page.locator(f"{ROOT} .tpunb-tip")
    expect(tip).to_have_text("[4, 5]\nreplica 0  85\nreplica 1  1085\nreplica 2  2085")
    expect(page.locator(f"{ROOT} [aria-live]")).to_have_text(
        "[4, 5], replica 0  85, replica 1  1085, replica 2  2085"
    )
    page.evaluate(FRAMES)
    assert pixel(page, 2, 5.5 / 20, 4.05 / 10) != before
    screenshot(page.locator(ROOT))
    page.mouse.move(5, 5)
    expect(tip).to_be_hidden()


def test_curves(host: Host, page: Any, screenshot: Any) -> None:
    host(widget_of(*[np.arange(500.0) * (k + 1) for k in range(3)]))
    attribute(page, "view", "curves")
    canvas = page.get_by_role("img", name="3 curves; arrow keys tell the values")
    canvas.focus()
    page.keyboard.press("End")
    tip = page.locator(f"{ROOT} .tpunb-tip")
    expect(tip).to_have_text("[499]\nreplica 0  499\nreplica 1  998\nreplica 2  1497")
    screenshot(page.locator(ROOT))
    page.keyboard.press("ArrowLeft")
    expect(tip).to_contain_text("[498]")
    page.locator(PANEL).nth(1).click()
    attribute(page, "selected", "1")


def test_the_keyboard_moves_and_selects(host: Host, page: Any) -> None:
    host(widget_of(*[waves(k) for k in range(8)]))
    panels = page.locator(PANEL)
    panels.first.focus()
    page.keyboard.press("ArrowRight")
    expect(panels.nth(1)).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(panels.nth(5)).to_be_focused()
    page.keyboard.press("Enter")
    attribute(page, "selected", "5")
    expect(panels.nth(5)).to_be_focused()
    page.keyboard.press("End")
    page.keyboard.press("Control+Enter")
    attribute(page, "selected", "5,7")
    page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("Shift+ArrowRight")
    expect(page.locator(f"{ROOT} .tpunb-tip")).to_contain_text("[0, 1]")


def test_the_selection_is_shared(host: Host, page: Any) -> None:
    hosted = host(widget_of(*[waves(k) for k in range(4)], link="a"))
    host(widget_of(*[waves(k) for k in range(4)], link="a"))
    host(widget_of(*[waves(k) for k in range(4)], link="b"))
    page.locator(ROOT).first.locator("[role=option]").nth(2).click()
    hosted.deliver()
    assert hosted.widget.selected == [2]
    roots = page.locator(ROOT)
    expect(roots.nth(1)).to_have_attribute("data-selected", "2")
    expect(roots.nth(2)).to_have_attribute("data-selected", "")


def test_a_structure(host: Host, page: Any) -> None:
    hosted = host(lambda: ReplicasWidget(structure()))
    attribute(page, "sections", "6")
    tree = page.get_by_role("navigation", name="parts")
    expect(tree.get_by_role("button")).to_have_count(6)
    tree.get_by_role("button", name="step").click()
    attribute(page, "section", "2")
    attribute(page, "equal", "true")
    expect(tree.get_by_role("button", name="step")).to_be_focused()
    tree.get_by_role("button", name="[1]").click()
    attribute(page, "view", "text")
    expect(page.locator(PANEL)).to_contain_text("'adam'")
    tree.get_by_text("slots").click()
    expect(tree.get_by_role("button", name="[1]")).to_be_hidden()
    tree.get_by_role("button", name="logits").click()
    expect(tree.get_by_role("button", name="[1]")).to_be_hidden()
    hosted.deliver()
    assert hosted.widget.section == 1


ATTACKS = [
    ATTACK,
    {ATTACK: np.float32(1), "</script>": "</script>"},
    [{ATTACK: np.zeros(3)}, type(ATTACK, (), {})()],
    PerReplica(*[np.array([ATTACK.encode()])] * 3),
]


def test_text_from_data_is_escaped(host: Host, page: Any) -> None:
    for number, value in enumerate(ATTACKS):
        host(lambda value=value: ReplicasWidget(value))
        expect(page.locator(ROOT).nth(number)).to_contain_text("onerror")
    assert page.locator(f"{ROOT} img, {ROOT} script").count() == 0


def test_updates_keep_the_settings(host: Host, page: Any) -> None:
    hosted = host(widget_of(*[waves(k) for k in range(8)]))
    press(page, "Histogram")
    press(page, "Difference")
    page.locator(PANEL).nth(7).click()
    hosted.deliver()
    hosted.widget.update(PerReplica(*[waves(k + 1) for k in range(4)]))
    expect(page.locator(PANEL)).to_have_count(4)
    attribute(page, "view", "histogram")
    attribute(page, "mode", "difference")
    attribute(page, "selected", "")
    hosted.widget.update("now a string")
    attribute(page, "view", "text")
    expect(page.locator(PANEL)).to_have_text("'now a string'")


def test_views_open_and_close(host: Host, page: Any) -> None:
    hosted = host(widget_of(*LARGE))
    press(page, "Mean")
    attribute(page, "busy", "true")
    hosted.deliver()
    page.evaluate("hide('w0')")
    assert page.evaluate("[...widgets.w0.model.listeners.values()].every((all) => all.size === 0)")
    page.evaluate("show('w0')")
    attribute(page, "mode", "mean")
    attribute(page, "busy", "true")
    hosted.deliver()
    attribute(page, "busy", "false")


def test_narrow_and_wide(host: Host, page: Any, screenshot: Any) -> None:
    host(lambda: ReplicasWidget(structure(), section=1))

    def columns(count: int) -> None:
        # Wait for the layout, which the browser updates several times after a change of size.
        script = "(count) => new Set([...document.querySelectorAll('[role=option]')].map((node) => node.offsetLeft)).size === count"
        page.wait_for_function(script, arg=count)

    columns(4)
    page.set_viewport_size({"width": 420, "height": 900})
    columns(2)
    page.set_viewport_size({"width": 420, "height": 1600})
    screenshot(page.locator(ROOT))
    overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert overflow <= 0


ODD = [
    None,
    {},
    [],
    np.zeros((0, 4)),
    1 + 2j,
    object(),
    ReplicaValuesDescription("x", 0, ()),
    np.array("x"),
]


def test_odd_values(host: Host, page: Any) -> None:
    for number, value in enumerate(ODD):
        host(lambda value=value: ReplicasWidget(value))
        expect(page.locator(ROOT).nth(number)).to_have_attribute("data-busy", "false")
