"""The widget of replica values, in Chromium."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hosting import FRAMES, Hosted, darken
from playwright.sync_api import expect
from support.displayed import PerReplica, know_per_replica
from support.gallery import random, structure, walk, waves, with_nan
from support.tiers import THOROUGH

from tpunb._util.units import number_text
from tpunb.display.describe.replicas import Leaf, ReplicaValuesDescription
from tpunb.display.widgets.page_data import es_module
from tpunb.display.widgets.replicas import ReplicasWidget

pytestmark = THOROUGH

ATTACK = "<img src=x onerror=alert(1)>"
ROOT = "[data-testid=tpunb-replicas]"
PANEL = f"{ROOT} div[role=option]"
PICTURE = f"{ROOT} .tpunb-picture"

Host = Callable[[Callable[[], Any]], Hosted]


@pytest.fixture(autouse=True)
def distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    know_per_replica(monkeypatch)


def image(replica: int, count: int = 4) -> Any:
    rows, columns = np.mgrid[:32, :32]
    pictures = [
        np.stack([rows * 8, columns * 8, (rows + columns) * (number + replica) % 255], -1)
        for number in range(count)
    ]
    return np.array(pictures, np.uint8)


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
    expect(root).to_have_attribute("data-sections", re.compile("."))
    screenshot(root, "light")
    darken(page)
    screenshot(root, "dark")


def attribute(page: Any, name: str, value: str) -> None:
    expect(page.locator(ROOT)).to_have_attribute(f"data-{name}", value)


def pick(hosted: Hosted, label: str, value: str) -> None:
    """Choose a value of a control, and let the kernel draw the page."""
    hosted.page.get_by_label(label, exact=True).select_option(value)
    hosted.deliver()


def press(hosted: Hosted, title: str) -> None:
    hosted.page.get_by_title(title, exact=True).click()
    hosted.deliver()


def point(hosted: Hosted, number: int, across: float, down: float) -> Any:
    """Point at fractions of a picture's width and height; return what the page tells."""
    picture = hosted.page.locator(f"{PICTURE} > *").nth(number)
    box = picture.bounding_box()
    picture.hover(position={"x": box["width"] * across, "y": box["height"] * down})
    answer(hosted)
    return hosted.page.locator(f"{ROOT} .tpunb-tip")


def answer(hosted: Hosted) -> None:
    hosted.page.evaluate(FRAMES)
    hosted.deliver()


def pixel(page: Any, number: int, across: float, down: float) -> list[int]:
    """Return the colour of a picture at fractions of its width and height."""
    script = """([selector, number, across, down]) => {
        const image = document.querySelectorAll(selector)[number];
        const copy = document.createElement('canvas');
        [copy.width, copy.height] = [image.naturalWidth, image.naturalHeight];
        const context = copy.getContext('2d', { willReadFrequently: true });
        context.drawImage(image, 0, 0);
        const at = [Math.floor(copy.width * across), Math.floor(copy.height * down)];
        return [...context.getImageData(...at, 1, 1).data];
    }"""
    return list(page.evaluate(script, [f"{PICTURE} img", number, across, down]))


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
    }.items():
        attribute(page, name, value)
    expect(page.locator(PANEL)).to_have_count(8)
    selected = page.locator(f"{PANEL}[aria-selected=true] b")
    expect(selected).to_have_text(["replica 3", "replica 5"])


def test_numbers_are_exact(host: Host, page: Any) -> None:
    host(widget_of(np.array([2**63 - 1, -3]), np.array([2**53 + 1, 4])))
    attribute(page, "view", "table")
    expect(page.locator(f"{ROOT} pre")).to_have_text(
        ["9223372036854775807  -3", "9007199254740993  4"]
    )


NUMBERS = [
    (np.float32(0.1), "0.1"),
    (np.float32(0.69314718), "0.6931472"),
    (np.float64(12345.678), "12345.68"),
    (np.float32(123456789.0), "1.235e+08"),
    (12345, "12345"),
    (math.nan, "nan"),
    (-math.inf, "-inf"),
    (np.bool_(True), "True"),
]


def test_single_numbers_have_the_digits_of_32_bits(host: Host, page: Any) -> None:
    for value, _ in NUMBERS:
        host(widget_of(value, value))
    expect(page.locator(f"{ROOT} pre")).to_have_text([text for _, text in NUMBERS])


def test_the_page_rounds_like_the_static_forms(page: Any) -> None:
    numbers = [digits * 10.0**power for digits in (-9.99996, 1.2345678) for power in range(-12, 13)]
    script = (
        f"(numbers) => {{ {es_module('common.js')}; return numbers.map((n) => numberText(n)); }}"
    )
    assert page.evaluate(script, numbers) == [number_text(number) for number in numbers]


def test_the_table_has_the_standard_deviation(host: Host, page: Any) -> None:
    first = np.arange(100.0).reshape(10, 10)
    host(widget_of(first, 2 * first, view="table"))
    expect(page.locator(f"{ROOT} tbody td:last-child")).to_have_text(["28.87", "57.73"])


def test_the_colours_of_nan_and_infinity(host: Host, page: Any) -> None:
    host(widget_of(*[with_nan(k) for k in range(4)]))
    assert pixel(page, 2, 25 / 60, 13 / 40)[:3] == [255, 47, 164]
    assert pixel(page, 2, 45 / 60, 30.5 / 40)[:3] == [255, 176, 0]
    expect(page.locator(PANEL).nth(2)).to_contain_text("60 NaN, 10 Inf")


def test_one_scale_for_all_replicas(host: Host, page: Any) -> None:
    host(widget_of(np.zeros((9, 9)), np.full((9, 9), 1.0)))
    assert pixel(page, 0, 0.5, 0.5)[:3] == [0x44, 0x01, 0x54]
    assert pixel(page, 1, 0.5, 0.5)[:3] == [0xFD, 0xE7, 0x25]


def test_equal_replicas_have_one_panel(host: Host, page: Any) -> None:
    hosted = host(widget_of(*[waves(0)] * 8))
    attribute(page, "equal", "true")
    expect(page.locator(PANEL)).to_have_count(1)
    pick(hosted, "Show", "sum")
    expect(page.locator(PANEL)).to_contain_text("max 8")
    pick(hosted, "Show", "difference")
    expect(page.locator(PANEL)).to_contain_text("equal")


def test_modes_of_small_values(host: Host, page: Any) -> None:
    hosted = host(widget_of(*[np.arange(6.0).reshape(2, 3) + k for k in range(3)]))
    shown = page.locator(f"{ROOT} pre")
    pick(hosted, "Show", "difference")
    attribute(page, "mode", "difference")
    expect(shown.nth(2)).to_have_text("2  2  2\n2  2  2")
    pick(hosted, "to", "2")
    expect(shown.first).to_have_text("-2  -2  -2\n-2  -2  -2")
    pick(hosted, "Show", "mean")
    expect(shown).to_have_text("1  2  3\n4  5  6")
    pick(hosted, "Show", "sum")
    expect(shown).to_have_text(" 3   6   9\n12  15  18")
    pick(hosted, "Show", "gather")
    expect(shown).to_have_text("0  1  2\n3  4  5\n1  2  3\n4  5  6\n2  3  4\n5  6  7")


def test_different_shapes(host: Host, page: Any) -> None:
    hosted = host(widget_of(np.zeros((9, 9)), np.ones((8, 9))))
    expect(page.locator(PANEL)).to_have_count(2)
    pick(hosted, "Show", "difference")
    expect(page.get_by_role("alert")).to_have_text("The replicas' values have different shapes.")
    pick(hosted, "Show", "gather")
    expect(page.locator(PANEL)).to_have_count(1)


LARGE = [np.add.outer(np.arange(300.0), np.arange(400.0)) + k for k in range(4)]


def test_histograms_count_all_elements(host: Host, page: Any) -> None:
    hosted = host(widget_of(*LARGE, view="histogram"))
    tip = point(hosted, 0, 0.5, 0.6)
    expect(tip).to_contain_text("replica 3")
    counts = [int(line.split()[-1]) for line in tip.inner_text().splitlines()[1:]]
    # Samples have at most 96 by 96 elements.
    assert sum(counts) > 4 * 96


def test_errors_are_shown_in_place(host: Host, page: Any) -> None:
    hosted = host(widget_of(*LARGE))
    hosted.widget._leaves = [Leaf("", "PerReplica", (object(),) * 4, distributed=True)]
    pick(hosted, "Show", "sum")
    expect(page.get_by_role("alert")).to_have_text("Only numbers can be computed with.")
    pick(hosted, "Show", "values")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator(PANEL)).to_have_count(4)


def test_slices(host: Host, page: Any) -> None:
    values = [np.arange(4 * 8 * 12.0).reshape(4, 8, 12) + 1000 * k for k in range(2)]
    hosted = host(widget_of(*values))
    axis = page.get_by_label("axis 0")
    axis.fill("0")
    axis.press("Enter")
    hosted.deliver()
    expect(page.locator(PANEL).first).to_contain_text("min 0 mean 47.5 max 95")
    axis.focus()
    page.keyboard.press("ArrowUp")
    hosted.deliver()
    expect(page.locator(PANEL).first).to_contain_text("min 96 mean 143.5 max 191")
    expect(axis).to_be_focused()
    expect(point(hosted, 0, 0.01, 0.01)).to_contain_text("[1, 0, 0]")
    axis.fill("99")
    axis.press("Enter")
    hosted.deliver()
    expect(page.locator(PANEL).first).to_contain_text("max 383")
    axis.fill("")
    axis.press("Enter")
    hosted.deliver()
    expect(page.locator(PANEL).first).to_contain_text("min 0 mean 191.5 max 383")


def test_a_repeated_choice_asks_for_nothing(host: Host, page: Any) -> None:
    hosted = host(lambda: ReplicasWidget(structure()))
    page.get_by_title("['loss']").click()
    assert hosted.inbox == []
    expect(page.locator(ROOT)).not_to_have_attribute("aria-busy", "true")


def test_pages(host: Host, page: Any) -> None:
    hosted = host(widget_of(*[np.full((9, 9), k) for k in range(150)]))
    expect(page.locator(PANEL)).to_have_count(64)
    expect(page.locator(ROOT)).to_contain_text("1–64 of 150")
    press(hosted, "later replicas")
    panels = page.locator(f"{PANEL} b")
    expect(panels.first).to_have_text("replica 64")
    press(hosted, "later replicas")
    expect(panels).to_have_count(22)
    expect(page.get_by_title("later replicas")).to_be_focused()


def test_the_table_lists_all_and_sorts(host: Host, page: Any) -> None:
    hosted = host(widget_of(*[widths(k) for k in range(300)]))
    rows = page.locator(f"{ROOT} tbody tr")
    expect(rows).to_have_count(256)
    press(hosted, "Sort by values")
    press(hosted, "Sort by values")
    attribute(page, "view", "table")
    expect(rows.first).to_contain_text("replica 77")
    rows.first.click()
    attribute(page, "selected", "77")
    hosted.widget.update(hosted.widget.description)
    expect(rows.first).to_contain_text("replica 77")
    expect(rows.first).to_have_attribute("aria-selected", "true")


def test_means_mark_outliers(host: Host, page: Any) -> None:
    host(widget_of(*[widths(k) for k in range(256)]))
    strip = page.locator(f"{ROOT} .tpunb-strip")
    expect(strip).to_have_attribute("data-odd", "77")
    strip.locator("[data-part]").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(f"{ROOT} .tpunb-about")).to_contain_text("replica 1")
    page.keyboard.press("Enter")
    attribute(page, "selected", "1")


def test_2048_replicas(host: Host, page: Any) -> None:
    values = [np.float32(k == 1999) for k in range(2048)]
    host(widget_of(*values, view="table", order="-mean"))
    expect(page.locator(f"{ROOT} tbody tr").first).to_contain_text("replica 1999")
    expect(page.locator(f"{ROOT} .tpunb-strip [data-part]")).to_have_count(1)


def test_all_panels_show_the_cursor(host: Host, page: Any, screenshot: Any) -> None:
    hosted = host(widget_of(*[np.arange(200.0).reshape(10, 20) + 1000 * k for k in range(3)]))
    tip = point(hosted, 0, 5.5 / 20, 4.5 / 10)
    expect(tip).to_have_text("[4, 5]\nreplica 0  85\nreplica 1  1085\nreplica 2  2085")
    expect(page.locator(f"{ROOT} [aria-live]")).to_have_text(
        "[4, 5], replica 0  85, replica 1  1085, replica 2  2085"
    )
    expect(page.locator(ROOT)).to_have_attribute("data-pointed", "")
    screenshot(page.locator(ROOT))
    hosted.widget.update(PerReplica(*[np.ones((10, 20)) * k for k in range(3)]))
    expect(tip).to_have_text("[4, 5]\nreplica 0  0\nreplica 1  1\nreplica 2  2")
    page.mouse.move(5, 5)
    answer(hosted)
    expect(tip).to_be_hidden()


def test_curves(host: Host, page: Any, screenshot: Any) -> None:
    hosted = host(widget_of(*[np.arange(500.0) * (k + 1) for k in range(3)]))
    attribute(page, "view", "curves")
    tip = point(hosted, 0, 0.999, 0.5)
    expect(tip).to_have_text("[499]\nreplica 0  499\nreplica 1  998\nreplica 2  1497")
    screenshot(page.locator(ROOT))
    page.locator(f"{PICTURE} [data-part]").first.focus()
    page.keyboard.press("Shift+ArrowLeft")
    answer(hosted)
    expect(tip).to_contain_text("[498]")
    page.locator(PANEL).nth(1).click()
    attribute(page, "selected", "1")


def test_the_keyboard_moves_and_selects(host: Host, page: Any) -> None:
    hosted = host(widget_of(*[waves(k) for k in range(8)]))
    panels = page.locator(PANEL)
    panels.first.focus()
    page.keyboard.press("ArrowRight")
    expect(panels.nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    attribute(page, "selected", "1")
    expect(panels.nth(1)).to_be_focused()
    page.keyboard.press("End")
    page.keyboard.press("Shift+Enter")
    attribute(page, "selected", "1,7")
    for _ in range(2):
        page.keyboard.press("Shift+ArrowRight")
        answer(hosted)
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
    hosted.deliver()
    attribute(page, "section", "2")
    attribute(page, "equal", "true")
    expect(tree.get_by_role("button", name="step")).to_be_focused()
    tree.get_by_role("button", name="[1]").click()
    hosted.deliver()
    expect(page.locator(ROOT)).to_contain_text("'adam'")
    tree.get_by_text("slots").click()
    expect(tree.get_by_role("button", name="[1]")).to_be_hidden()
    tree.get_by_role("button", name="logits").click()
    hosted.deliver()
    expect(tree.get_by_role("button", name="[1]")).to_be_hidden()
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
    pick(hosted, "as", "histogram")
    pick(hosted, "Show", "difference")
    page.locator(PANEL).nth(7).click()
    hosted.deliver()
    hosted.widget.update(PerReplica(*[waves(k + 1) for k in range(4)]))
    expect(page.locator(PANEL)).to_have_count(4)
    attribute(page, "view", "histogram")
    attribute(page, "mode", "difference")
    attribute(page, "selected", "")
    hosted.widget.update("now a string")
    expect(page.locator(ROOT)).to_contain_text("'now a string'")


def test_views_open_and_close(host: Host, page: Any) -> None:
    hosted = host(widget_of(*LARGE))
    pick(hosted, "Show", "mean")
    page.evaluate("hide('w0')")
    assert page.evaluate("[...widgets.w0.model.listeners.values()].every((all) => all.size === 0)")
    page.evaluate("show('w0')")
    attribute(page, "mode", "mean")


def test_without_a_kernel_the_page_says_what_to_do(host: Host, page: Any) -> None:
    host(widget_of(*[waves(k) for k in range(4)]))
    page.evaluate(
        "const { model } = widgets.w0;"
        "model.widget_manager = { get_model: async () => ({ comm_live: false }) };"
        "model.fire('comm_live_update')"
    )
    expect(page.get_by_role("status")).to_contain_text("Run the cell again")
    expect(page.get_by_label("Show", exact=True)).to_be_disabled()
    expect(page.locator(PANEL)).to_have_count(4)


def test_narrow_and_wide(host: Host, page: Any, screenshot: Any) -> None:
    host(lambda: ReplicasWidget(structure(), section=1))
    for width in (700, 420):
        page.set_viewport_size({"width": width, "height": 1600})
        page.evaluate(FRAMES)
        screenshot(page.locator(ROOT), str(width))
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


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
        expect(page.locator(ROOT).nth(number)).to_contain_text(re.compile(r"\w"))
