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


SCAN = """([root, step]) => {
  const canvas = root.querySelector(".tpunb-mesh");
  const box = canvas.getBoundingClientRect();
  const found = [];
  canvas.blur();
  for (let y = 1.5; y < box.height; y += step) {
    for (let x = 1.5; x < box.width; x += step) {
      canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + x, clientY: box.top + y }));
      const core = root.getAttribute("data-hover");
      if (core !== "") found.push([Number(core), x, y]);
    }
  }
  canvas.dispatchEvent(new PointerEvent("pointerleave"));
  return found;
}"""


def places(page: Any, root: Any, step: float = 6) -> dict[int, tuple[float, float]]:
    """Find a point of each core, by pointing everywhere."""
    found: dict[int, list[tuple[float, float]]] = {}
    for core, x, y in page.evaluate(SCAN, [root.element_handle(), step]):
        found.setdefault(core, []).append((x, y))
    return {core: points[len(points) // 2] for core, points in found.items()}


def at(root: Any, place: tuple[float, float], **options: Any) -> None:
    root.locator(MESH).click(position={"x": place[0] - 1, "y": place[1] - 1}, **options)


def colours(root: Any) -> list[str]:
    """Return the colours of the cores in the drawing."""
    found = root.evaluate(
        "(root) => [...root.querySelectorAll('.tpunb-cores path')].map((path) => path.getAttribute('stroke'))"
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
        "level": level, "chips": chips, "cores": cores, "hosts": hosts, "replicas": 0,
        "logical-devices": 0, "colour": "host", "selected": "", "hover": "", "zoom": "1.00",
    }.items():  # fmt: skip
        expect(root).to_have_attribute(f"data-{key}", str(value))
    expect(root).to_contain_text(name)
    box, canvas = root.bounding_box(), root.locator(MESH).bounding_box()
    assert canvas["width"] <= box["width"] <= 1100
    assert 70 <= canvas["height"] <= 900
    points = page.evaluate(SCAN, [root.element_handle(), {"chips": 7, "dots": 2}[level]])
    assert {core for core, _, _ in points} == set(range(cores))
    # Centred: the space to the left of the cores equals the space to the right.
    left, right = min(x for _, x, _ in points), max(x for _, x, _ in points)
    assert abs(left - (canvas["width"] - right)) < 16
    screenshot(root, "light")
    darken(page)
    screenshot(root, "dark")


def test_the_drawing_follows_the_theme(host: Any, page: Any) -> None:
    host(lambda: TopologyWidget("v3-32"))
    root = drawn(page)
    assert colours(root) == ["#0072b2", "#d55e00", "#008f68", "#b3578c"]
    fill = "(root) => getComputedStyle(root.querySelector('svg g[fill^=var] path')).fill"
    assert root.evaluate(fill) == "rgb(255, 255, 255)"
    page.evaluate("document.body.classList.add('dark')")
    assert root.evaluate(fill) == "rgb(17, 17, 17)"


def test_the_largest_topology_responds_at_once(host: Any, page: Any) -> None:
    """Pointing at a core draws only its frame, however large the drawing is."""
    host(lambda: TopologyWidget("v5p-17920"))
    root = drawn(page)
    frames = root.evaluate(
        """(root) => {
          const mesh = root.querySelector(".tpunb-mesh");
          const box = mesh.getBoundingClientRect();
          const before = document.createElementNS;
          let count = 0;
          document.createElementNS = function (...parts) { count += 1; return before.apply(this, parts); };
          for (let k = 0; k < 1000; k += 1) {
            mesh.dispatchEvent(new PointerEvent("pointermove",
              { clientX: box.left + (k * 37) % box.width, clientY: box.top + (k * 17) % box.height }));
          }
          delete document.createElementNS;
          return count;
        }"""
    )
    assert frames <= 1000  # only the frame of the core under the pointer
    expect(root).to_have_attribute("data-cores", "8960")


def test_hovering_shows_a_tip(host: Any, page: Any) -> None:
    host(lambda: TopologyWidget(assigned("v3-32", 2, idle=2)))
    root = drawn(page)
    found = places(page, root)
    x, y = found[13]
    root.locator(MESH).hover(position={"x": x, "y": y})
    expect(root).to_have_attribute("data-hover", "13")
    tip = root.locator(".tpunb-tip")
    expect(tip).to_be_visible()
    for words in (
        "Core 13",
        "chip (2, 1, 0), core 1 of it",
        "host 1, TPU:5",
        "/job:worker/replica:0/task:1/device:TPU:5",
        "replica 6, logical device 1",
        "HBM 16 GiB",
    ):
        expect(tip).to_contain_text(words)
        expect(root.locator("[aria-live]")).to_contain_text(words)
    x, y = found[31]
    root.locator(MESH).hover(position={"x": x, "y": y})
    expect(tip).to_contain_text("in no replica")
    box, inside = root.bounding_box(), tip.bounding_box()
    assert inside["x"] >= box["x"]
    assert inside["x"] + inside["width"] <= box["x"] + box["width"]
    page.mouse.move(5, 5)
    expect(root).to_have_attribute("data-hover", "")
    expect(tip).to_be_hidden()


def test_without_an_assignment_no_replicas_are_shown(host: Any, page: Any) -> None:
    host(lambda: TopologyWidget("v5e-4"))
    root = drawn(page)
    root.locator(MESH).press("End")
    expect(root).to_have_attribute("data-hover", "3")
    assert "replica 3" not in root.locator(".tpunb-tip").inner_text()
    expect(root.get_by_label("Colour by")).to_have_count(0)


def test_the_keyboard(host: Any, page: Any) -> None:
    h = host(lambda: TopologyWidget(assigned("v4-32", 2)))
    root = drawn(page)
    canvas = root.locator(MESH)
    canvas.focus()
    for key, core in [
        ("ArrowRight", 1), ("ArrowRight", 1), ("ArrowDown", 3), ("PageDown", 7),
        ("PageUp", 3), ("ArrowUp", 1), ("ArrowLeft", 0), ("End", 15), ("Home", 0),
    ]:  # fmt: skip
        canvas.press(key)
        expect(root).to_have_attribute("data-hover", str(core))
    canvas.press("Enter")
    expect(root).to_have_attribute("data-selected", "0")
    canvas.press("PageDown")
    canvas.press("Shift+Enter")
    expect(root).to_have_attribute("data-selected", "0,2")
    h.deliver()
    assert h.widget.selected == [0, 2]
    canvas.press("Space")
    expect(root).to_have_attribute("data-selected", "2")
    canvas.press("Escape")
    expect(root).to_have_attribute("data-selected", "")
    expect(root).to_have_attribute("data-hover", "4")
    canvas.press("Escape")
    expect(root).to_have_attribute("data-hover", "")


def test_a_focused_core_is_scrolled_into_view(host: Any, page: Any) -> None:
    h = host(lambda: TopologyWidget("v5e-256"))
    root = drawn(page)
    canvas = root.locator(MESH)
    canvas.focus()
    for _ in range(5):
        canvas.press("+")
    expect(root).to_have_attribute("data-zoom", "7.59")
    canvas.press("Home")
    assert 0 in places(page, root)
    canvas.press("End")
    expect(root).to_have_attribute("data-hover", "255")
    assert 255 in places(page, root)
    assert 0 not in places(page, root)
    canvas.press("0")
    expect(root).to_have_attribute("data-zoom", "1.00")
    h.deliver()
    assert h.widget.zoom == 1


def test_selecting(host: Any, page: Any, screenshot: Any) -> None:
    h = host(lambda: TopologyWidget(assigned("v3-8", 2)))
    root = drawn(page)
    found = places(page, root)
    at(root, found[2])
    expect(root).to_have_attribute("data-selected", "1")
    at(root, found[7], modifiers=["Shift"])
    expect(root).to_have_attribute("data-selected", "1,3")
    h.deliver()
    assert h.widget.selected == [1, 3]
    expect(root.locator(".tpunb-veil")).to_have_count(1)  # the other cores are dimmed
    screenshot(root)
    at(root, found[6], modifiers=["Shift"])
    expect(root).to_have_attribute("data-selected", "1")
    at(root, found[3])
    expect(root).to_have_attribute("data-selected", "")
    at(root, found[0])
    root.get_by_test_id("tpunb-clear").click()
    expect(root).to_have_attribute("data-selected", "")
    expect(root.get_by_test_id("tpunb-clear")).to_be_hidden()
    # Python can select only existing replicas.
    h.widget.selected = [2, 99]
    expect(root).to_have_attribute("data-selected", "2")
    expect(root.get_by_test_id("tpunb-clear")).to_have_text("Deselect replica 2")


def test_idle_cores_cannot_be_selected(host: Any, page: Any) -> None:
    host(lambda: TopologyWidget(assigned("v3-8", 2, idle=2), selected=[0]))
    root = drawn(page)
    expect(root).to_contain_text("unassigned")
    at(root, places(page, root)[7])
    expect(root).to_have_attribute("data-selected", "0")


def test_the_selection_is_shared(host: Any, page: Any) -> None:
    first = host(lambda: TopologyWidget(assigned("v3-8", 2), link="a"))
    second = host(lambda: TopologyWidget(assigned("v4-32", 4), link="a"))
    host(lambda: TopologyWidget("v5e-4", link="b"))
    roots = [drawn(page, number) for number in range(3)]
    at(roots[0], places(page, roots[0])[4])
    expect(roots[1]).to_have_attribute("data-selected", "2")
    expect(roots[2]).to_have_attribute("data-selected", "")
    first.deliver()
    second.deliver()
    assert first.widget.selected == second.widget.selected == [2]


def test_walking_through_z(host: Any, page: Any) -> None:
    h = host(lambda: TopologyWidget("v4-128"))
    root = drawn(page)
    slider = root.get_by_label("z", exact=True)
    expect(root.locator("output")).to_have_text("all")
    slider.fill("2")
    expect(root).to_have_attribute("data-plane", "2")
    expect(root.locator("output")).to_have_text("2")
    h.deliver()
    assert h.widget.plane == 2
    page.evaluate(FRAMES)
    coordinates = described("v4-128").coordinates
    assert {coordinates[core][2] for core in places(page, root)} == {2}
    root.locator(MESH).press("Home")  # selecting a core of another plane shows its plane
    expect(root).to_have_attribute("data-plane", "0")
    expect(root).to_have_attribute("data-hover", "0")
    h.widget.plane = -1
    expect(root).to_have_attribute("data-plane", "all")
    expect(root.locator("output")).to_have_text("all")


def test_zoom_and_pan(host: Any, page: Any) -> None:
    h = host(lambda: TopologyWidget("v5p-17920"))
    root = drawn(page)
    mesh = root.locator(MESH)
    plus = root.get_by_role("button", name="Zoom in")
    minus = root.get_by_role("button", name="Zoom out")
    expect(minus).to_be_disabled()
    for _ in range(6):
        plus.click()
    expect(minus).to_be_enabled()
    expect(root).to_have_attribute("data-zoom", "11.39")
    page.evaluate(FRAMES)
    before = set(places(page, root))
    box = mesh.bounding_box()
    page.mouse.move(box["x"] + 400, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 100, box["y"] + 100, steps=3)
    page.mouse.up()
    page.evaluate(FRAMES)
    assert set(places(page, root)) != before
    expect(root).to_have_attribute("data-selected", "")
    h.deliver()
    assert h.widget.zoom == pytest.approx(1.5**6)
    root.get_by_role("button", name="Show the whole mesh again").click()
    expect(root).to_have_attribute("data-zoom", "1.00")


def test_the_wheel_scrolls_the_page(host: Any, page: Any) -> None:
    host(lambda: TopologyWidget("v5e-64"))
    root = drawn(page)
    prevented = """([root, ctrlKey]) => {
      const event = new WheelEvent("wheel", { deltaY: -200, ctrlKey, cancelable: true, bubbles: true });
      root.querySelector(".tpunb-mesh").dispatchEvent(event);
      return event.defaultPrevented;
    }"""
    assert page.evaluate(prevented, [root.element_handle(), False]) is False
    expect(root).to_have_attribute("data-zoom", "1.00")
    assert page.evaluate(prevented, [root.element_handle(), True]) is True
    expect(root).to_have_attribute("data-zoom", "1.65")


def test_colouring(host: Any, page: Any) -> None:
    h = host(lambda: TopologyWidget(assigned("v4-32", 4)))
    root = drawn(page)
    choice = root.get_by_label("Colour by")
    assert choice.locator("option").all_inner_texts() == ["host", "replica", "logical device"]
    seen = {root.locator(".tpunb-cores").inner_html()}
    for value in ("replica", "logical"):
        choice.select_option(value)
        expect(root).to_have_attribute("data-colour", value)
        seen.add(root.locator(".tpunb-cores").inner_html())
    assert len(seen) == 3
    expect(root.locator(".tpunb-legend")).to_contain_text("logical device 3")
    h.deliver()
    assert h.widget.colour == "logical"


def test_memory(host: Any, page: Any, screenshot: Any) -> None:
    sizes = [core * 2**24 for core in range(64)]
    h = host(lambda: TopologyWidget("v5e-64", memory=lambda: sizes))
    root = drawn(page)
    expect(root).to_have_attribute("data-memory", "")
    root.get_by_label("Colour by").select_option("memory")
    expect(root).to_have_attribute("data-memory", "waiting")
    expect(root.get_by_role("status")).to_have_text("Waiting for the kernel …")
    waiting = colours(root)
    h.deliver()
    expect(root).to_have_attribute("data-memory", "ready")
    expect(root.get_by_role("status")).to_have_count(0)
    legend = root.locator(".tpunb-legend")
    expect(legend).to_contain_text("1008 MiB · 6.15% of 16 GiB · least 0 B")
    assert colours(root) != waiting
    assert len(colours(root)) > 20
    root.locator(MESH).press("End")
    expect(root.locator(".tpunb-tip")).to_contain_text("variables 1008 MiB · 6.15% of 16 GiB")
    root.locator(MESH).press("Escape")
    screenshot(root, "light")
    darken(page)
    screenshot(root, "dark")
    sizes[:] = [2**30] * 64
    root.get_by_role("button", name="Ask again").click()
    expect(root).to_have_attribute("data-memory", "waiting")
    expect(legend).to_contain_text("least 0 B")  # the last answer stays until the next
    h.deliver()
    expect(legend).to_contain_text("1 GiB · 6.25% of 16 GiB · the same on every core")


def test_memory_that_cannot_be_read(host: Any, page: Any) -> None:
    def memory() -> list[int]:
        raise RuntimeError(HOSTILE)

    h = host(lambda: TopologyWidget("v5e-4", memory=memory, colour="memory"))
    root = drawn(page)
    expect(root).to_have_attribute("data-memory", "waiting")
    h.deliver()
    expect(root).to_have_attribute("data-memory", "failed")
    expect(root.get_by_role("status")).to_have_text(f"No answer: RuntimeError: {HOSTILE}")
    assert root.locator("img, script").count() == 0


def test_memory_cannot_be_chosen_without_a_source(host: Any, page: Any) -> None:
    h = host(lambda: TopologyWidget("v5e-4", colour="memory"))
    root = drawn(page)
    expect(root).to_have_attribute("data-colour", "host")
    assert not [message for message in h.inbox if "content" in message]


def test_the_description_can_be_replaced(host: Any, page: Any) -> None:
    h = host(lambda: TopologyWidget("v5e-8", memory=lambda: [1] * h_cores(), colour="memory"))

    def h_cores() -> int:
        return h.widget.description.num_cores

    root = drawn(page)
    h.deliver()
    expect(root).to_have_attribute("data-memory", "ready")
    h.widget.description = "v4-32"
    expect(root).to_have_attribute("data-cores", "16")
    expect(root).to_have_attribute("data-replicas", "16")
    expect(root.locator("h3")).to_have_text("v4-32")
    expect(root.get_by_label("z", exact=True)).to_be_visible()
    expect(root).to_have_attribute("data-memory", "waiting")
    h.deliver()
    expect(root).to_have_attribute("data-memory", "ready")
    page.evaluate(FRAMES)
    assert set(places(page, root)) == set(range(16))
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
    scattered = replace(topology, hosts=tuple(core * 7 % 3 for core in range(16)))
    host(lambda: TopologyWidget(scattered))
    assert set(places(page, drawn(page))) == set(range(16))
    some = [0, 3, 5, 15]
    holes = replace(
        topology,
        **{
            name: tuple(getattr(topology, name)[core] for core in some)
            for name in ("coordinates", "hosts", "ordinals", "replicas", "logical_devices")
        },
    )
    host(lambda: TopologyWidget(holes))
    root = drawn(page, 1)
    assert set(places(page, root)) == {0, 1, 2, 3}
    root.locator(MESH).press("Home")
    root.locator(MESH).press("ArrowDown")  # nothing is below: the focus stays
    expect(root).to_have_attribute("data-hover", "0")


def test_narrow_and_wide(host: Any, page: Any, screenshot: Any) -> None:
    host(lambda: TopologyWidget("v4-128"))
    root = drawn(page)
    wide = root.locator(MESH).bounding_box()["width"]
    page.set_viewport_size({"width": 380, "height": 900})
    page.wait_for_function("document.querySelector('.tpunb-mesh').clientWidth < 360")
    page.evaluate(FRAMES)  # the frame that draws it again
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    assert set(places(page, root, 3)) == set(range(64))
    screenshot(root)
    page.set_viewport_size({"width": 1100, "height": 900})
    page.wait_for_function(f"document.querySelector('.tpunb-mesh').clientWidth > {wide - 4}")


def test_a_reopened_view_keeps_its_settings(host: Any, page: Any) -> None:
    h = host(lambda: TopologyWidget(assigned("v4-32", 4)))
    root = drawn(page)
    root.get_by_label("Colour by").select_option("replica")
    root.get_by_label("z", exact=True).fill("1")
    root.get_by_role("button", name="Zoom in").click()
    root.locator(MESH).focus()
    root.locator(MESH).press("Enter")
    settings = {key: root.get_attribute(f"data-{key}") for key in ("colour", "plane", "zoom")}
    assert settings == {"colour": "replica", "plane": "1", "zoom": "1.50"}
    page.evaluate("hide('w0')")
    expect(page.locator(ROOT)).to_have_count(0)
    listeners = "[...widgets.w0.model.listeners.values()].reduce((sum, set) => sum + set.size, 0)"
    assert page.evaluate(listeners) == 0
    h.widget.selected = [3]
    page.evaluate("show('w0')")
    root = drawn(page)
    assert {key: root.get_attribute(f"data-{key}") for key in settings} == settings
    expect(root).to_have_attribute("data-selected", "3")


def test_two_views_of_one_model(host: Any, page: Any) -> None:
    host(lambda: TopologyWidget("v4-32"))
    drawn(page)
    page.evaluate(
        """async () => {
          const el = document.createElement("div");
          document.body.append(el);
          await widgets.w0.definition.render({ model: widgets.w0.model, el });
        }"""
    )
    first, second = drawn(page), drawn(page, 1)
    first.get_by_label("z", exact=True).fill("1")
    expect(second).to_have_attribute("data-plane", "1")
    second.get_by_role("button", name="Zoom in").click()
    expect(first).to_have_attribute("data-zoom", "1.50")


def test_the_memory_of_a_compiled_program(host: Any, page: Any) -> None:
    needs = replace(assigned("v3-8", 1), needed_bytes=4 * 2**30, usable_bytes=int(15.48 * 2**30))
    widget = host(lambda: TopologyWidget(needs)).widget
    root = drawn(page)
    assert widget.colour == "program"
    expect(root.locator(".tpunb-legend")).to_contain_text("15.48 GiB usable of 16 GiB")
    expect(root.locator(".tpunb-legend")).to_contain_text("needs 4 GiB")
    widget.description = replace(needs, needed_bytes=17 * 2**30)
    expect(root.locator(".tpunb-legend")).to_contain_text("1.52 GiB too much")
    root.locator(MESH).focus()
    page.keyboard.press("Home")
    expect(root.locator(".tpunb-tip")).to_contain_text("program needs 17 GiB")
