"""The live topology in a browser: drawing, pointing, selecting, and remembering the view."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hosting import FRAMES, darken
from playwright.sync_api import expect
from support.tiers import THOROUGH
from support.topologies import assigned, described

from tpunb.display.widgets.topology import TopologyWidget

pytestmark = THOROUGH

MESH = ".tpunb-mesh"
ROOT = '[data-testid="tpunb-topology"]'
HOSTILE = "<img src=x onerror=alert(1)></script>"


def drawn(page: Any, number: int = 0) -> Any:
    """Return the widget's root once it is drawn."""
    root = page.locator(ROOT).nth(number)
    root.and_(page.locator("[data-level]")).wait_for()
    return root


def core(root: Any, number: int) -> Any:
    """Return the part of the drawing that shows a core or, in a mesh of dots, some cores."""
    return root.locator("[data-part]").nth(number)


def boxes(root: Any) -> list[dict[str, float]]:
    """Return the places of the cores on the page, with the thickness of their lines."""
    return root.evaluate(  # type: ignore[no-any-return]
        "(root) => [...root.querySelectorAll('[data-part]')].map((part) => part.getBoundingClientRect().toJSON())"
    )


def focused(root: Any) -> str:
    return str(root.locator("[data-part]:focus title").text_content())


def colours(root: Any) -> list[str]:
    """Return the colour of each core in the drawing."""
    found = root.evaluate(
        "(root) => [...root.querySelectorAll('.tpunb-cores path')].map((path) => path.getAttribute('fill'))"
    )
    return [str(colour) for colour in found]


SIZES = {
    "v5e-1": ("chips", 1, 1, 1),
    "v3-8": ("chips", 4, 8, 1),
    "v6e-8": ("chips", 8, 8, 1),
    "v4-32": ("chips", 16, 16, 4),
    "v5e-256": ("chips", 256, 256, 32),
    "v3-2048": ("dots", 1024, 2048, 256),
    "v5p-8192": ("dots", 4096, 4096, 1024),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(host: Any, page: Any, screenshot: Any, name: str) -> None:
    level, chips, cores, hosts = SIZES[name]
    host(lambda: TopologyWidget(name))
    root = drawn(page)
    for key, value in {
        "level": level, "chips": chips, "cores": cores, "replicas": 0, "colour": "host",
        "selected": "", "zoom": "1",
    }.items():  # fmt: skip
        expect(root).to_have_attribute(f"data-{key}", str(value))
    expect(root).to_contain_text(name)
    expect(root.locator("[data-part]")).to_have_count(cores if level == "chips" else hosts)
    box, mesh = root.bounding_box(), root.locator(MESH).bounding_box()
    assert mesh["width"] <= box["width"] <= 1100
    assert 70 <= mesh["height"] <= 900
    # Centred: the space to the left of the cores equals the space to the right.
    left = min(part["left"] for part in boxes(root)) - mesh["x"]
    right = mesh["x"] + mesh["width"] - max(part["right"] for part in boxes(root))
    assert abs(left - right) < 16
    screenshot(root, "light")
    darken(page)
    screenshot(root, "dark")


def test_the_drawing_follows_the_theme(host: Any, page: Any) -> None:
    host(lambda: TopologyWidget("v3-32"))
    root = drawn(page)
    assert list(dict.fromkeys(colours(root))) == ["#0072b2", "#d55e00", "#008f68", "#b3578c"]
    fill = "(root) => getComputedStyle(root.querySelector('svg g[fill^=var] path')).fill"
    assert root.evaluate(fill) == "rgb(255, 255, 255)"
    page.evaluate("document.body.classList.add('dark')")
    assert root.evaluate(fill) == "rgb(17, 17, 17)"


def test_a_core_says_what_it_is(host: Any, page: Any) -> None:
    host(lambda: TopologyWidget(assigned("v3-32", 2, idle=2)))
    root = drawn(page)
    core(root, 13).focus()
    for words in (
        "Core 13",
        "chip (2, 1, 0), core 1 of it",
        "host 1",
        "/job:worker/replica:0/task:1/device:TPU:5",
        "replica 6, logical device 1",
        "HBM 16 GiB",
    ):
        expect(core(root, 13).locator("title")).to_contain_text(words)
        expect(root.locator(".tpunb-about")).to_contain_text(words)
    core(root, 31).focus()
    expect(root.locator(".tpunb-about")).to_contain_text("in no replica")
    core(root, 31).blur()
    expect(root.locator(".tpunb-about")).to_be_empty()


def test_without_an_assignment_no_replicas_are_shown(host: Any, page: Any) -> None:
    host(lambda: TopologyWidget("v5e-4"))
    root = drawn(page)
    core(root, 0).press("End")
    assert focused(root).startswith("Core 3\n")
    assert "replica 3" not in focused(root)
    expect(root.get_by_label("Colour by")).to_have_count(0)


def test_the_keyboard(host: Any, page: Any) -> None:
    h = host(lambda: TopologyWidget(assigned("v4-32", 2)))
    root = drawn(page)
    core(root, 0).focus()
    for key, number in [
        ("ArrowRight", 1), ("ArrowDown", 3), ("ArrowRight", 6), ("ArrowLeft", 3),
        ("ArrowUp", 1), ("ArrowLeft", 0), ("ArrowLeft", 0), ("End", 15), ("Home", 0),
    ]:  # fmt: skip
        page.keyboard.press(key)
        assert focused(root).startswith(f"Core {number}\n"), key
    page.keyboard.press("Enter")
    expect(root).to_have_attribute("data-selected", "0")
    core(root, 4).press("Shift+Enter")
    expect(root).to_have_attribute("data-selected", "0,2")
    h.deliver()
    assert h.widget.selected == [0, 2]
    page.keyboard.press("Shift+Space")
    expect(root).to_have_attribute("data-selected", "0")
    page.keyboard.press("Escape")
    expect(root).to_have_attribute("data-selected", "")
    assert focused(root).startswith("Core 4\n")
    page.keyboard.press("Tab")  # one core is a stop of Tab, not all of them
    expect(root.locator("[data-part]:focus")).to_have_count(0)


def test_the_focus_stays_when_the_view_changes(host: Any, page: Any) -> None:
    h = host(lambda: TopologyWidget(assigned("v4-32", 2)))
    root = drawn(page)
    root.get_by_label("Colour by").focus()
    root.get_by_label("Colour by").select_option("replica")
    h.deliver()
    expect(root).to_have_attribute("data-colour", "replica")
    expect(root.get_by_label("Colour by")).to_be_focused()
    core(root, 7).focus()
    h.widget.colour = "host"
    expect(root).to_have_attribute("data-colour", "host")
    assert focused(root).startswith("Core 7\n")


def test_a_focused_core_is_scrolled_into_view(host: Any, page: Any) -> None:
    h = host(lambda: TopologyWidget("v5e-256"))
    root = drawn(page)
    root.get_by_label("Zoom").select_option("8.0")
    expect(root).to_have_attribute("aria-busy", "true")
    h.deliver()
    expect(root).to_have_attribute("data-zoom", "8")
    assert root.get_attribute("aria-busy") is None
    assert h.widget.zoom == 8
    core(root, 0).press("End")
    mesh, last = root.locator(MESH).bounding_box(), boxes(root)[255]
    assert mesh["x"] < last["left"] < mesh["x"] + mesh["width"]
    assert boxes(root)[0]["left"] < mesh["x"]


def test_selecting(host: Any, page: Any, screenshot: Any) -> None:
    h = host(lambda: TopologyWidget(assigned("v3-8", 2)))
    root = drawn(page)
    core(root, 2).click()
    expect(root).to_have_attribute("data-selected", "1")
    core(root, 7).click(modifiers=["Shift"])
    expect(root).to_have_attribute("data-selected", "1,3")
    h.deliver()
    assert h.widget.selected == [1, 3]
    dimmed = "(part) => getComputedStyle(part).opacity"
    assert [core(root, number).evaluate(dimmed) for number in (0, 2)] == ["0.28", "1"]
    screenshot(root)
    core(root, 6).click(modifiers=["Shift"])
    expect(root).to_have_attribute("data-selected", "1")
    core(root, 3).click()
    expect(root).to_have_attribute("data-selected", "")
    core(root, 0).click()
    root.locator("svg").click(position={"x": 2, "y": 2})  # beside the chips
    expect(root).to_have_attribute("data-selected", "")
    # Python can select only existing replicas.
    h.widget.selected = [2, 99]
    expect(root).to_have_attribute("data-selected", "2")


def test_idle_cores_cannot_be_selected(host: Any, page: Any) -> None:
    host(lambda: TopologyWidget(assigned("v3-8", 2, idle=2), selected=[0]))
    root = drawn(page)
    expect(root).to_contain_text("unassigned")
    core(root, 7).click()
    expect(root).to_have_attribute("data-selected", "0")


def test_a_host_of_dots_is_selected(host: Any, page: Any) -> None:
    h = host(lambda: TopologyWidget("v5p-8192"))
    root = drawn(page)
    core(root, 1).press("Enter")
    expect(root).to_have_attribute("data-selected", "4,5,6,7")
    h.deliver()
    assert h.widget.selected == [4, 5, 6, 7]


def test_the_selection_is_shared(host: Any, page: Any) -> None:
    first = host(lambda: TopologyWidget(assigned("v3-8", 2), link="a"))
    second = host(lambda: TopologyWidget(assigned("v4-32", 4), link="a"))
    host(lambda: TopologyWidget("v5e-4", link="b"))
    roots = [drawn(page, number) for number in range(3)]
    core(roots[0], 4).click()
    expect(roots[1]).to_have_attribute("data-selected", "2")
    expect(roots[2]).to_have_attribute("data-selected", "")
    first.deliver()
    second.deliver()
    assert first.widget.selected == second.widget.selected == [2]


def test_walking_through_z(host: Any, page: Any, screenshot: Any) -> None:
    h = host(lambda: TopologyWidget("v4-128"))
    root = drawn(page)
    expect(root).to_have_attribute("data-plane", "all")
    root.get_by_label("z", exact=True).select_option("2")
    h.deliver()
    expect(root).to_have_attribute("data-plane", "2")
    assert h.widget.plane == 2
    titles = root.locator("[data-part] title").all_text_contents()
    assert len(titles) == 16
    assert all(", 2)\n" in title for title in titles)
    screenshot(root)
    h.widget.plane = -1
    expect(root).to_have_attribute("data-plane", "all")
    expect(root.get_by_label("z", exact=True)).to_have_value("-1")


def test_colouring(host: Any, page: Any) -> None:
    h = host(lambda: TopologyWidget(assigned("v4-32", 4)))
    root = drawn(page)
    choice = root.get_by_label("Colour by")
    assert choice.locator("option").all_inner_texts() == ["host", "replica", "logical device"]
    seen = {tuple(colours(root))}
    for value in ("replica", "logical"):
        choice.select_option(value)
        h.deliver()
        expect(root).to_have_attribute("data-colour", value)
        seen.add(tuple(colours(root)))
    assert len(seen) == 3
    expect(root.locator(".tpunb-legend")).to_contain_text("logical device 3")
    assert h.widget.colour == "logical"


def test_memory(host: Any, page: Any, screenshot: Any) -> None:
    sizes = [number * 2**24 for number in range(64)]
    h = host(lambda: TopologyWidget("v5e-64", memory=lambda: sizes))
    root = drawn(page)
    root.get_by_label("Colour by").select_option("memory")
    h.deliver()
    expect(root).to_have_attribute("data-colour", "memory")
    legend = root.locator(".tpunb-legend")
    expect(legend).to_contain_text("1008 MiB · 6.15% of 16 GiB · least 0 B")
    assert len(set(colours(root))) > 20
    core(root, 63).focus()
    expect(root.locator(".tpunb-about")).to_contain_text("variables 1008 MiB · 6.15% of 16 GiB")
    screenshot(root, "light")
    darken(page)
    screenshot(root, "dark")
    sizes[:] = [2**30] * 64
    root.get_by_role("button", name="Refresh").click()
    expect(legend).to_contain_text("least 0 B")  # the last answer stays until the next
    h.deliver()
    expect(legend).to_contain_text("1 GiB · 6.25% of 16 GiB · the same on every core")
    expect(root.get_by_role("button", name="Refresh")).to_be_focused()


def test_memory_that_cannot_be_read(host: Any, page: Any) -> None:
    def memory() -> list[int]:
        raise RuntimeError(HOSTILE)

    host(lambda: TopologyWidget("v5e-4", memory=memory, colour="memory"))
    root = drawn(page)
    expect(root.get_by_role("status")).to_have_text(f"No answer: RuntimeError: {HOSTILE}")
    assert root.locator("img, script").count() == 0


def test_memory_cannot_be_chosen_without_a_source(host: Any, page: Any) -> None:
    h = host(lambda: TopologyWidget("v5e-4", colour="memory"))
    root = drawn(page)
    expect(root).to_have_attribute("data-colour", "host")
    assert not [message for message in h.inbox if "content" in message]


def test_the_description_can_be_replaced(host: Any, page: Any) -> None:
    cores = [8]
    h = host(lambda: TopologyWidget("v5e-8", memory=lambda: [1] * cores[0], colour="memory"))

    root = drawn(page)
    cores[0] = 16
    h.widget.description = "v4-32"
    expect(root).to_have_attribute("data-cores", "16")
    expect(root).to_have_attribute("data-replicas", "16")
    expect(root.locator("h3")).to_have_text("v4-32")
    expect(root.get_by_label("z", exact=True)).to_be_visible()
    expect(root.locator("[data-part]")).to_have_count(16)
    h.widget.description = "v5e-1"
    expect(root).to_have_attribute("data-cores", "1")
    expect(root.get_by_label("z", exact=True)).to_have_count(0)


def test_hostile_names(host: Any, page: Any) -> None:
    host(lambda: TopologyWidget(replace(described("v5e-4"), name=HOSTILE)))
    root = drawn(page)
    expect(root.locator("h3")).to_have_text(HOSTILE)
    assert root.locator("img, script").count() == 0


def test_irregular_hosts_and_holes(host: Any, page: Any) -> None:
    topology = described("v5e-16")
    scattered = replace(topology, hosts=tuple(number * 7 % 3 for number in range(16)))
    host(lambda: TopologyWidget(scattered))
    assert len(boxes(drawn(page))) == 16
    some = [0, 3, 5, 15]
    holes = replace(
        topology,
        **{
            name: tuple(getattr(topology, name)[number] for number in some)
            for name in ("coordinates", "hosts", "ordinals", "replicas", "logical_devices")
        },
    )
    host(lambda: TopologyWidget(holes))
    root = drawn(page, 1)
    assert len(boxes(root)) == 4
    core(root, 0).press("ArrowUp")  # nothing is above: the focus stays
    assert focused(root).startswith("Core 0\n")


def test_narrow_and_wide(host: Any, page: Any, screenshot: Any) -> None:
    host(lambda: TopologyWidget("v4-128"))
    root = drawn(page)
    wide = root.locator(MESH).bounding_box()["width"]
    for width in (700, 380):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(f"document.querySelector('.tpunb-mesh').clientWidth < {width - 20}")
        page.evaluate(FRAMES)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        mesh = root.locator(MESH).bounding_box()
        assert all(
            mesh["x"] < part["left"] and part["right"] < mesh["x"] + mesh["width"]
            for part in boxes(root)
        )
        screenshot(root, str(width))
    page.set_viewport_size({"width": 1100, "height": 900})
    page.wait_for_function(f"document.querySelector('.tpunb-mesh').clientWidth > {wide - 4}")


def test_a_reopened_view_keeps_its_settings(host: Any, page: Any) -> None:
    h = host(lambda: TopologyWidget(assigned("v4-32", 4)))
    root = drawn(page)
    root.get_by_label("Colour by").select_option("replica")
    root.get_by_label("z", exact=True).select_option("1")
    root.get_by_label("Zoom").select_option("2.0")
    h.deliver()
    core(root, 0).press("Enter")
    settings = {"colour": "replica", "plane": "1", "zoom": "2"}
    for key, value in settings.items():
        expect(root).to_have_attribute(f"data-{key}", value)
    page.evaluate("hide('w0')")
    expect(page.locator(ROOT)).to_have_count(0)
    listeners = "[...widgets.w0.model.listeners.values()].reduce((sum, set) => sum + set.size, 0)"
    assert page.evaluate(listeners) == 0
    h.widget.selected = [3]
    page.evaluate("show('w0')")
    root = drawn(page)
    for key, value in settings.items():
        expect(root).to_have_attribute(f"data-{key}", value)


def test_two_views_of_one_model(host: Any, page: Any) -> None:
    h = host(lambda: TopologyWidget("v4-32"))
    drawn(page)
    page.evaluate(
        """async () => {
          const el = document.createElement("div");
          document.body.append(el);
          await widgets.w0.definition.render({ model: widgets.w0.model, el });
        }"""
    )
    first, second = drawn(page), drawn(page, 1)
    first.get_by_label("z", exact=True).select_option("1")
    h.deliver()
    for root in (first, second):
        expect(root).to_have_attribute("data-plane", "1")


def test_the_memory_of_a_compiled_program(host: Any, page: Any) -> None:
    needs = replace(assigned("v3-8", 1), needed_bytes=4 * 2**30, usable_bytes=int(15.48 * 2**30))
    widget = host(lambda: TopologyWidget(needs)).widget
    root = drawn(page)
    assert widget.colour == "program"
    expect(root.locator(".tpunb-legend")).to_contain_text("15.48 GiB usable of 16 GiB")
    expect(root.locator(".tpunb-legend")).to_contain_text("needs 4 GiB")
    widget.description = replace(needs, needed_bytes=17 * 2**30)
    expect(root.locator(".tpunb-legend")).to_contain_text("1.52 GiB too much")
    core(root, 0).focus()
    expect(root.locator(".tpunb-about")).to_contain_text("program needs 17 GiB")
