"""The picture of an array on its devices, and the table of a tree's arrays, in Chromium."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hosting import FRAMES, Hosted
from playwright.sync_api import expect
from support.displayed import PerReplica, know_per_replica
from support.placements import ARRAYS, described, tree
from support.tiers import THOROUGH

from tpunb.display.describe.placement import ArrayPlacement, TreePlacement
from tpunb.display.describe.replicas import ReplicaValuesDescription, describe_replica_values
from tpunb.display.draw.replicas.html import replicas_html
from tpunb.display.widgets.replicas import ReplicasWidget

Host = Callable[[Callable[[], Any]], Hosted]
Axe = Callable[[], list[str]]

ROOT = "[data-testid=tpunb-replicas]"
PLACEMENTS: dict[str, ArrayPlacement | TreePlacement] = {
    **ARRAYS,
    "tree": tree(),
    "large tree": tree(60),
}


@pytest.fixture(autouse=True)
def distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    know_per_replica(monkeypatch)


def with_values(name: str = "matrix") -> ReplicaValuesDescription:
    """Return a description with values and a place."""
    values = describe_replica_values(PerReplica(*[np.arange(6.0) + k for k in range(8)]))
    return dataclasses.replace(values, placement=PLACEMENTS[name])


def test_the_picture_is_above_the_values(host: Host, page: Any) -> None:
    host(lambda: ReplicasWidget(with_values()))
    root = page.locator(ROOT)
    expect(root.get_by_role("group", name="cut into 4 × 2 parts")).to_contain_text(
        "[1024:2048, 4096:8192]"
    )
    expect(root.get_by_role("grid").get_by_role("row")).to_have_count(9)


def test_values_that_are_not_read_say_why(host: Host, page: Any) -> None:
    host(lambda: ReplicasWidget(described(ARRAYS["matrix"])))
    expect(page.locator(ROOT)).to_contain_text("The values are not read")


def test_open_sections_stay_open_when_the_cell_runs_again(host: Host, page: Any) -> None:
    hosted = host(lambda: ReplicasWidget(with_values()))
    devices = page.get_by_text("What each device holds")
    devices.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("rowheader", name="TPU 5")).to_be_visible()
    hosted.widget.update(with_values("copies"))
    expect(page.locator(ROOT)).to_contain_text("2 copies of each")
    expect(page.get_by_role("rowheader", name="TPU 5")).to_be_visible()
    hosted.widget.update(describe_replica_values(np.arange(3)))
    expect(page.locator(ROOT)).not_to_contain_text("What each device holds")


def test_a_trees_arrays_are_sorted_by_size(host: Host, page: Any) -> None:
    host(lambda: ReplicasWidget(described(tree())))
    rows = page.locator(f"{ROOT} tbody tr")
    expect(rows.first).to_contain_text("['embedding']")
    page.get_by_role("button", name="Sort by on a device").click()
    expect(rows.first).to_contain_text("['layers'][0]['kernel']")
    expect(rows.last).to_contain_text("['step']")


CUT = "(nodes) => nodes.filter((node) => node.scrollWidth > node.clientWidth).length"


def test_a_trees_columns_fit_a_page_of_700_pixels(host: Host, page: Any) -> None:
    page.set_viewport_size({"width": 700, "height": 900})
    leaves = [
        dataclasses.replace(leaf, path=f"['model']['decoder']{leaf.path}['projection']")
        for leaf in tree().leaves
    ]
    host(lambda: ReplicasWidget(described(dataclasses.replace(tree(), leaves=tuple(leaves)))))
    boxes = page.locator(f"{ROOT} [role=group]:has(> table)")
    expect(boxes.first).to_be_visible()
    assert boxes.evaluate_all(CUT) == 0


def show_as(page: Any, theme: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("(theme) => { document.body.className = theme; }", theme)
    page.evaluate(FRAMES)


@THOROUGH
@pytest.mark.parametrize("name", PLACEMENTS)
def test_looks(name: str, host: Host, page: Any, screenshot: Any, axe: Axe) -> None:
    """The live and the saved form fit the page in both themes, and screen readers can read them."""
    description = described(PLACEMENTS[name])
    host(lambda: ReplicasWidget(description))
    expect(page.locator(ROOT)).to_be_visible()
    for form in ("live", "saved"):
        if form == "saved":
            html = replicas_html(description)
            page.evaluate("(html) => { document.body.innerHTML = html; }", html)
        for theme in ("light", "dark"):
            for width in (400, 1400):
                show_as(page, theme, width)
                screenshot(name=f"{form}-{theme}-{width}")
                assert axe() == []
                assert page.evaluate("document.documentElement.scrollWidth") <= width
