"""The live display of compiled programs in a browser."""

from __future__ import annotations

import re
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


def wait_for_tables(page: Any) -> Any:
    root = page.locator(ROOT)
    root.and_(page.locator("[data-tables]")).wait_for()
    return root


def line_numbers(root: Any) -> list[str]:
    """Return the displayed line numbers of the first table."""
    texts: list[str] = root.locator("table").first.locator("[data-code]").all_inner_texts()
    return texts


def test_the_page_shows_the_saved_form(host: Host, page: Any) -> None:
    host(lambda: ProgramsWidget(made.FITS))
    root = wait_for_tables(page)
    expect(root).to_contain_text("Compiles and fits: 3.4 GiB of 15.48 GiB a core (22%).")
    expect(root).to_contain_text("110 ms to 174 ms a call")
    assert line_numbers(root) == ["2", "3", "4", "5", "6", "7", "8", "9"]
    expect(root.get_by_role("img").first).to_have_attribute(
        "aria-label", re.compile(r"^3.4 GiB of 15.48 GiB a core \(22%\): variables 98 MiB")
    )


def test_clicking_a_header_sorts_the_table(host: Host, page: Any) -> None:
    host(lambda: ProgramsWidget(made.FITS))
    root = wait_for_tables(page)
    in_order = line_numbers(root)
    by_time = root.get_by_role("button", name="Sort by time").first
    by_time.focus()
    page.keyboard.press("Enter")
    assert line_numbers(root)[:4] == ["4", "8", "6", "9"]
    expect(root.locator("th[aria-sort]")).to_have_text("time")
    root.get_by_role("button", name="Sort by memory").first.click()
    assert line_numbers(root)[:2] == ["4", "8"]
    expect(root.locator("th[aria-sort]")).to_have_text("memory")
    root.get_by_role("button", name="Sort by memory").first.click()
    assert line_numbers(root) == in_order
    expect(root.locator("th[aria-sort]")).to_have_count(0)


def test_a_tensors_line_links_to_the_code(host: Host, page: Any) -> None:
    host(lambda: ProgramsWidget(made.FITS))
    root = wait_for_tables(page)
    root.get_by_text("Padding", exact=True).click()
    expect(root).to_contain_text("512 MiB for 40.5 MiB of numbers, 12.6 times")
    root.get_by_title("Show line 6").click()
    expect(root.locator("tr[data-picked]")).to_contain_text("logits")


def test_types_open_by_keyboard(host: Host, page: Any) -> None:
    host(lambda: ProgramsWidget(several()))
    root = wait_for_tables(page)
    fits = root.get_by_text("TPU v2-8 ·")
    expect(root.get_by_text("1.62 GiB too much", exact=True)).to_be_hidden()
    fits.focus()
    page.keyboard.press("Enter")
    expect(root.get_by_text("1.62 GiB too much", exact=True)).to_be_visible()
    expect(root.locator("[data-code='4']:visible")).to_have_text("4 ✗")
    root.get_by_text("TPU v5e-8 ·").click()
    expect(root.get_by_text("StringJoin has no kernel.")).to_be_visible()


def test_the_program_can_be_replaced(host: Host, page: Any) -> None:
    hosted = host(lambda: ProgramsWidget(made.FITS))
    root = wait_for_tables(page)
    root.get_by_text("Operations", exact=True).click()
    open_before = root.locator("details[open]").count()
    assert hosted.widget.update(made.FITS)
    expect(root.locator("details[open]")).to_have_count(open_before)
    assert hosted.widget.update(made.TOO_LARGE)
    expect(root).to_contain_text("TPU v2-8")


def test_text_is_escaped(host: Host, page: Any) -> None:
    host(lambda: ProgramsWidget(TpuPrograms([made.hostile(), made.FITS])))
    root = wait_for_tables(page)
    expect(root).to_contain_text(made.HOSTILE)
    # Our own pictures are images, in which no script runs.
    assert root.locator("script, img:not([src^='data:image/svg+xml'])").count() == 0


def test_huge_programs_show_the_largest_rows_first(host: Host, page: Any) -> None:
    host(lambda: ProgramsWidget(made.huge()))
    root = wait_for_tables(page)
    assert len(line_numbers(root)) == 10
    before = root.bounding_box()["height"]
    assert before < 1000
    root.get_by_text("80 of 19,999 lines").click()
    expect(root).to_contain_text("and 19,919 more")
    assert root.bounding_box()["height"] > 2 * before


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [960, 380])
def test_nothing_overflows(theme: str, width: int, host: Host, page: Any) -> None:
    """The pictures are in build/screenshots/programs-*.png."""
    page.set_viewport_size({"width": width, "height": 900})
    if theme == "dark":
        page.evaluate("document.body.classList.add('dark')")
    host(lambda: ProgramsWidget(several()))
    root = wait_for_tables(page)
    root.get_by_text("TPU v2-8 ·" if theme == "dark" else "TPU v3-8 ·").click()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(SCREENSHOTS / f"programs-{theme}-{width}.png"), full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert root.bounding_box()["width"] <= width


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_communication(theme: str, width: int, host: Host, page: Any, screenshot: Any) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("(theme) => { document.body.className = theme; }", theme)
    host(lambda: ProgramsWidget(made.COMMUNICATING))
    root = wait_for_tables(page)
    expect(root.get_by_role("img", name="exchange data along data", exact=False)).to_have_count(2)
    expect(root).to_contain_text("5 collectives send 10 MiB from each core in a call")
    root.get_by_text("5 collectives send").scroll_into_view_if_needed()
    screenshot()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
