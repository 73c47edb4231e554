"""The pictures of docs/gallery.md in both themes: they match the displays, and the page shows all.

The tests write them to build/screenshots/docs-NAME.png; docs/images has copies. After a visible
change, run `cd tests && python -m pictures`.
"""

from __future__ import annotations

import dataclasses
import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hosting import FRAMES, SCREENSHOTS, Hosted
from playwright.sync_api import expect
from support.gallery import WIDGETS, saved
from support.tiers import THOROUGH
from test_replicas import distributed  # noqa: F401
from test_topology import core, drawn

from tpunb.display.widgets.programs import ProgramsWidget
from tpunb.draw import chip, collective

pytestmark = THOROUGH

DOCS = Path(__file__).parents[2] / "docs"
WIDTH = 960
MOST_BYTES, MOST_WIDTH = 120_000, 1000
THEMES = ("light", "dark")

Host = Callable[[Callable[[], Any]], Hosted]
Scene = Callable[[Any, Any], Any]


def topology(host: Host, page: Any) -> Any:
    """Planes side by side, with the focus on a core whose replica is selected."""
    host(WIDGETS["topology"])
    root = drawn(page)
    core(root, 10).focus()
    expect(root).to_have_attribute("data-selected", "5")
    expect(root.locator(".tpunb-about")).to_contain_text("replica 5, logical device 0")
    return root


def replicas(host: Host, page: Any) -> Any:
    """A structure, with the pointer on the same element in all panels."""
    hosted = host(WIDGETS["replicas"])
    root = page.locator("[data-testid=tpunb-replicas]")
    root.locator("[role=option] img").nth(1).hover(position={"x": 40, "y": 60})
    page.evaluate(FRAMES)
    hosted.deliver()
    expect(root).to_have_attribute("data-sections", "6")
    expect(root).to_have_attribute("data-view", "heat")
    expect(root.locator(".tpunb-tip")).to_contain_text("replica 7")
    return root


def replicas_difference(host: Host, page: Any) -> Any:
    host(WIDGETS["replicas-difference"])
    root = page.locator("[data-testid=tpunb-replicas]")
    expect(root).to_have_attribute("data-mode", "difference")
    expect(root.locator("div[role=option]").nth(2)).to_contain_text("60 NaN")
    expect(root.locator("div[role=option]").nth(3)).to_contain_text("equal")
    return root


def curves(host: Host, page: Any) -> Any:
    """A training run with the cursor on it."""
    host(WIDGETS["curves"])
    root = page.locator("[data-testid=tpunb-curves]")
    expect(root).to_have_attribute("data-points", "320")
    expect(root).to_have_attribute("data-state", "running")
    expect(root.locator("canvas")).to_have_count(2)
    root.locator("[data-panel=loss] .u-over").hover(position={"x": 160, "y": 80})
    expect(root.locator(".tpunb-curves-where").first).to_contain_text("step ")
    return root


def curves_runs(host: Host, page: Any) -> Any:
    host(WIDGETS["curves-runs"])
    root = page.locator("[data-testid=tpunb-curves]")
    expect(root).to_have_attribute("data-runs", "3")
    expect(root).to_have_attribute("data-state", "finished")
    expect(root.locator("canvas")).to_have_count(2)
    return root


def programs(host: Host, page: Any) -> Any:
    host(WIDGETS["programs"])
    root = page.locator("[data-testid=tpunb-programs]")
    root.get_by_text("TPU v3-8 ·").click()
    expect(root.get_by_text("110 ms to 174 ms a call (estimated)")).to_be_visible()
    return root


def step(host: Host, page: Any) -> Any:
    """The upper half of a transformer's step on a mesh."""
    program = saved("step")
    assert program.memory
    assert program.time
    upper = dataclasses.replace(
        program,
        memory=dataclasses.replace(program.memory, largest=()),
        time=dataclasses.replace(program.time, by_operation=(), collectives=(), not_counted=()),
        notes=(),
    )
    host(lambda: ProgramsWidget(upper))
    root = page.locator("[data-testid=tpunb-programs]")
    expect(root).to_contain_text("Compiles and fits")
    section = root.locator("details").filter(has_text="collectives send").first
    rows = section.locator("table:has(thead), details")
    rows.evaluate_all("found => found.forEach((each) => each.remove())")
    return root


def too_large(host: Host, page: Any) -> Any:
    """Attention that does not fit, with the red bar at the red line."""
    host(WIDGETS["too-large"])
    root = page.locator("[data-testid=tpunb-programs]")
    expect(root).to_contain_text("Does not fit")
    return root


def memory(host: Host, page: Any) -> Any:
    """A step of training with and without `jax.checkpoint`, which the TPU's compiler compiled."""
    host(WIDGETS["memory"])
    root = page.locator("[data-testid=tpunb-programs]")
    expect(root.get_by_role("img")).to_have_count(2)
    return root.locator("div:has(> div > img)").last


def pod(host: Host, page: Any) -> Any:
    """The largest Pod of v5p."""
    host(WIDGETS["pod"])
    return drawn(page)


def communication(host: Host, page: Any) -> Any:
    """A program whose cores send each other gradients and activations."""
    host(WIDGETS["communication"])
    root = page.locator("[data-testid=tpunb-programs]")
    section = root.locator("details").filter(has_text="5 collectives send")
    expect(section).to_contain_text("all-reduce")
    return section


def array(host: Host, page: Any) -> Any:
    """An array of JAX that is cut over eight devices, with copies."""
    host(WIDGETS["array"])
    root = page.locator("[data-testid=tpunb-replicas]")
    expect(root).to_contain_text("2 copies of each")
    return root


def tree_of_arrays(host: Host, page: Any) -> Any:
    """The parameters of a model, with the place of each."""
    host(WIDGETS["tree-of-arrays"])
    root = page.locator("[data-testid=tpunb-replicas]")
    expect(root).to_contain_text("is replicated on every device")
    return root


def drawing(value: Any) -> Scene:
    """Return the scene of a drawing, which needs no kernel."""

    def scene(host: Host, page: Any) -> Any:
        page.evaluate("(html) => { document.body.innerHTML = html; }", value._repr_html_())
        return page.locator("body > *").first

    return scene


SCENES: dict[str, Scene] = {
    "topology": topology,
    "replicas": replicas,
    "replicas-difference": replicas_difference,
    "curves": curves,
    "curves-runs": curves_runs,
    "programs": programs,
    "step": step,
    "too-large": too_large,
    "memory": memory,
    "pod": pod,
    "communication": communication,
    "array": array,
    "tree-of-arrays": tree_of_arrays,
    "collective": drawing(collective("all_gather", [10, 20, 30, 40])),
    "chip": drawing(chip("v5e-8")),
}


def shoot(page: Any, root: Any, path: Path) -> tuple[int, int]:
    """Take a picture of a part of the page with the page's margin; return its size."""
    page.evaluate(FRAMES)
    box = root.bounding_box()
    top = max(0, math.floor(box["y"]) - 16)
    clip = {"x": 0, "y": top, "width": page.viewport_size["width"]}
    bottom = math.ceil(box["y"] + box["height"]) + 16
    page.screenshot(path=str(path), clip={**clip, "height": bottom - top})
    return size_of(path)


def size_of(path: Path) -> tuple[int, int]:
    """Return the width and height of a PNG."""
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    return width, height


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", SCENES)
def test_scene(name: str, theme: str, host: Host, page: Any) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.set_viewport_size({"width": WIDTH, "height": 1000})
    if theme == "dark":
        page.evaluate("document.body.classList.add('dark')")
    root = SCENES[name](host, page)
    path = SCREENSHOTS / f"docs-{name}-{theme}.png"
    width, height = shoot(page, root, path)
    published = DOCS / "images" / path.name
    assert published.exists(), "cd tests && python -m pictures"
    # Other fonts may change the height by a few pixels.
    assert size_of(published)[0] == width
    assert abs(size_of(published)[1] - height) < 60


def test_the_page_shows_all_pictures() -> None:
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    named = set(re.findall(r'"images/([^"]+)"', text))
    published = {path.name for path in (DOCS / "images").glob("*.png")}
    assert named == published == {f"docs-{name}-{theme}.png" for name in SCENES for theme in THEMES}
    for name in published:
        path = DOCS / "images" / name
        assert path.stat().st_size < MOST_BYTES, name
        assert size_of(path)[0] <= MOST_WIDTH, name
    for name in SCENES:
        light, dark = (DOCS / "images" / f"docs-{name}-{theme}.png" for theme in THEMES)
        assert light.read_bytes() != dark.read_bytes()
    pictures = re.findall(r"<picture>(.*?)</picture>", text, re.DOTALL)
    assert len(pictures) == len(SCENES)
    for picture in pictures:
        assert 'media="(prefers-color-scheme: dark)"' in picture
        (alternative,) = re.findall(r'alt="([^"]*)"', picture)
        assert len(alternative) > 40
