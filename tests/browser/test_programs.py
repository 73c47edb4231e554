"""The live display of compiled programs in a browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hosting import SCREENSHOTS, Hosted
from playwright.sync_api import expect
from support import programs as made

from tpunb.compiler.program import TpuPrograms
from tpunb.display.widgets.programs import ProgramsWidget

Host = Callable[[Callable[[], Any]], Hosted]
ROOT = "[data-testid=tpunb-programs]"


def several() -> TpuPrograms:
    return TpuPrograms([made.FITS, made.TOO_LARGE, made.REFUSED, made.UNKNOWN])


def shown(page: Any) -> Any:
    root = page.locator(ROOT)
    root.and_(page.locator("[data-rows]")).wait_for()
    return root


def bars(root: Any, kind: str) -> list[str]:
    script = "(all) => all.map((bar) => bar.style.width)"
    widths: list[str] = root.locator(f"[data-bar={kind}]").evaluate_all(script)
    return widths


def test_lines_with_their_shares(host: Host, page: Any) -> None:
    host(lambda: ProgramsWidget(made.FITS))
    root = shown(page)
    expect(root).to_have_attribute("data-verdict", "compiles")
    expect(root).to_have_attribute("data-rows", "8")
    assert bars(root, "time") == ["46%", "12%", "30%", "12%"]
    expect(root.locator("tbody tr").nth(2)).to_contain_text("46%")
    expect(root.locator("code").nth(2)).to_have_text(made.LINES[2].text)
    expect(root).to_contain_text("110 ms to 174 ms a call")
    expect(root.get_by_role("img").first).to_have_attribute(
        "aria-label", "Memory: 3.4 GiB of 15.48 GiB a core (22%)"
    )


def test_views_and_order_are_the_models(host: Host, page: Any) -> None:
    widget = host(lambda: ProgramsWidget(made.FITS))
    root = shown(page)
    root.get_by_label("sort by").select_option("time")
    expect(root.locator("code").first).to_have_text(made.LINES[2].text)
    root.get_by_role("button", name="The layers of the model").click()
    expect(root).to_have_attribute("data-view", "layers")
    expect(root.locator("tbody th").first).to_have_text("conv1")
    widget.deliver()
    assert (widget.widget.view, widget.widget.order) == ("layers", "time")
    widget.widget.view = "padding"
    expect(root).to_contain_text("512 MiB for 40.5 MiB of numbers, 12.6 times")
    root.get_by_title("Show line 6").click()
    expect(root.locator("tr[data-picked]")).to_contain_text("logits")


def test_types_by_keyboard(host: Host, page: Any) -> None:
    host(lambda: ProgramsWidget(several()))
    root = shown(page)
    expect(root).to_have_attribute("data-tpu", "v3-8")
    button = root.get_by_role("button", name="v2-8")
    button.focus()
    page.keyboard.press("Enter")
    expect(root).to_have_attribute("data-tpu", "v2-8")
    expect(root.get_by_role("button", name="v2-8")).to_be_focused()
    expect(root.locator(".tpunb-programs-over")).to_be_visible()
    expect(root).to_contain_text("1.62 GiB too much")
    expect(root.locator("tr[data-problem]")).to_contain_text("4 ✗")
    root.get_by_role("button", name="v5e-8").click()
    expect(root).to_have_attribute("data-verdict", "refused")
    expect(root.locator("li").first).to_contain_text("StringJoin has no kernel.")
    root.get_by_role("button", name="v6e-8").click()
    expect(root).to_have_attribute("data-rows", "0")


def test_another_program_in_place(host: Host, page: Any) -> None:
    hosted = host(lambda: ProgramsWidget(several(), chosen=3))
    root = shown(page)
    expect(root).to_have_attribute("data-tpu", "v6e-8")
    assert hosted.widget.update(made.TOO_LARGE)
    expect(root).to_have_attribute("data-tpu", "v2-8")


def test_text_is_no_markup(host: Host, page: Any) -> None:
    host(lambda: ProgramsWidget(TpuPrograms([made.hostile(), made.FITS])))
    root = shown(page)
    expect(root.locator("code")).to_have_text(made.HOSTILE)
    for name in ("layers", "operations", "collectives", "largest", "padding"):
        root.locator(f"[data-key='view {name}']").click()
        expect(root).to_have_attribute("data-view", name)
        assert root.locator("img").count() == 0


def test_huge_programs(host: Host, page: Any) -> None:
    host(lambda: ProgramsWidget(made.huge()))
    root = shown(page)
    expect(root).to_have_attribute("data-rows", "200")
    expect(root).to_contain_text("and 19,799 more")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [960, 380])
def test_nothing_sticks_out(theme: str, width: int, host: Host, page: Any) -> None:
    """Look at the pictures: build/screenshots/programs-*.png."""
    page.set_viewport_size({"width": width, "height": 900})
    if theme == "dark":
        page.evaluate("document.body.classList.add('dark')")
    host(lambda: ProgramsWidget(several(), chosen=1 if theme == "dark" else 0))
    root = shown(page)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(SCREENSHOTS / f"programs-{theme}-{width}.png"), full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert root.bounding_box()["width"] <= width
