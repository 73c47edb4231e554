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
from support import programs as made
from support.displayed import PerReplica
from support.placements import ARRAYS, described, tree
from support.tiers import THOROUGH
from test_curves import noise, trained, without_timer
from test_replicas import distributed, structure, with_nan  # noqa: F401
from test_topology import assigned, core, drawn

from tpunb.compiler.program import TpuProgram, TpuPrograms, load_program
from tpunb.display.widgets.curves import CurvesWidget
from tpunb.display.widgets.programs import ProgramsWidget
from tpunb.display.widgets.replicas import ReplicasWidget
from tpunb.display.widgets.topology import TopologyWidget
from tpunb.draw import chip, collective
from tpunb.tpu.types import accelerator
from tpunb.training.history import History

pytestmark = THOROUGH

DOCS = Path(__file__).parents[2] / "docs"
WIDTH = 960
MOST_BYTES, MOST_WIDTH = 120_000, 1000
THEMES = ("light", "dark")

Host = Callable[[Callable[[], Any]], Hosted]
Scene = Callable[[Any, Any], Any]


def topology(host: Host, page: Any) -> Any:
    """Planes side by side, with the focus on a core whose replica is selected."""
    host(lambda: TopologyWidget(assigned("v4-64", 2), selected=[5]))
    root = drawn(page)
    core(root, 10).focus()
    expect(root).to_have_attribute("data-selected", "5")
    expect(root.locator(".tpunb-about")).to_contain_text("replica 5, logical device 0")
    return root


def replicas(host: Host, page: Any) -> Any:
    """A structure, with the pointer on the same element in all panels."""
    hosted = host(lambda: ReplicasWidget(structure(), section=1))
    root = page.locator("[data-testid=tpunb-replicas]")
    root.locator("[role=option] img").nth(1).hover(position={"x": 40, "y": 60})
    page.evaluate(FRAMES)
    hosted.deliver()
    expect(root).to_have_attribute("data-sections", "6")
    expect(root).to_have_attribute("data-view", "heat")
    expect(root.locator(".tpunb-tip")).to_contain_text("replica 7")
    return root


def replicas_difference(host: Host, page: Any) -> Any:
    """The difference of a replica from the first replica."""
    values = [with_nan(2 if replica == 2 else 0) for replica in range(4)]
    host(lambda: ReplicasWidget(PerReplica(*values), mode="difference", selected=[2]))
    root = page.locator("[data-testid=tpunb-replicas]")
    expect(root).to_have_attribute("data-mode", "difference")
    expect(root.locator("div[role=option]").nth(2)).to_contain_text("60 NaN")
    expect(root.locator("div[role=option]").nth(3)).to_contain_text("equal")
    return root


def curves(host: Host, page: Any) -> Any:
    """A training run with 8 replicas, with the cursor on it."""
    history = trained(steps=320, total=1000)
    spread = History("mnist", total_steps=1000)
    for step, loss, accuracy in zip(
        history.steps("loss"), history.values("loss"), history.values("accuracy"), strict=True
    ):
        losses = [loss * (1 + 0.3 * noise(int(step) // 3, core)) for core in range(8)]
        spread.append(int(step), loss=losses, accuracy=float(accuracy))
        if step % 50 == 0:
            row = int(step) // 50 - 1
            spread.append(
                int(step),
                {name: history.values(name)[row] for name in ("val_loss", "val_accuracy")},
            )
    host(lambda: without_timer(CurvesWidget(spread, smoothing=60)))
    root = page.locator("[data-testid=tpunb-curves]")
    expect(root).to_have_attribute("data-points", "320")
    expect(root).to_have_attribute("data-state", "running")
    expect(root.locator("canvas")).to_have_count(2)
    root.locator("[data-panel=loss] .u-over").hover(position={"x": 160, "y": 80})
    expect(root.locator(".tpunb-curves-where").first).to_contain_text("step ")
    return root


def curves_runs(host: Host, page: Any) -> Any:
    """Three runs to compare."""
    runs = [trained("baseline"), trained("lr 3e-4", speed=1.4), trained("dropout", speed=0.7)]
    for run in runs:
        run.finish()
    host(lambda: without_timer(CurvesWidget(runs, smoothing=80, scale="log")))
    root = page.locator("[data-testid=tpunb-curves]")
    expect(root).to_have_attribute("data-runs", "3")
    expect(root).to_have_attribute("data-state", "finished")
    expect(root.locator("canvas")).to_have_count(2)
    return root


def programs(host: Host, page: Any) -> Any:
    """A training step compiled for several types."""
    types = TpuPrograms([made.FITS, made.TOO_LARGE, made.REFUSED, made.UNKNOWN])
    host(lambda: ProgramsWidget(types))
    root = page.locator("[data-testid=tpunb-programs]")
    root.get_by_text("TPU v3-8 ·").click()
    expect(root.get_by_text("110 ms to 174 ms a call (estimated)")).to_be_visible()
    return root


def step(host: Host, page: Any) -> Any:
    """The upper half of a transformer's step on a mesh, which the TPU's own compiler compiled."""
    program = load_program(Path(__file__).with_name("step.tpuprogram"))
    assert isinstance(program, TpuProgram)
    assert program.memory
    assert program.time
    upper = dataclasses.replace(
        program,
        memory=dataclasses.replace(program.memory, largest=()),
        time=dataclasses.replace(program.time, by_operation=(), collectives=(), not_counted=()),
        notes=(),
        provenance=None,
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
    program = load_program(Path(__file__).with_name("attention.tpuprogram"))
    assert isinstance(program, TpuProgram)
    host(lambda: ProgramsWidget(dataclasses.replace(program, provenance=None)))
    root = page.locator("[data-testid=tpunb-programs]")
    expect(root).to_contain_text("Does not fit")
    return root


def memory(host: Host, page: Any) -> Any:
    """A step of training with and without `jax.checkpoint`, which the TPU's compiler compiled."""
    folder = Path(__file__).parent
    programs = [
        load_program(folder / f"{name}.tpuprogram") for name in ("plain", "with_checkpoint")
    ]
    host(lambda: ProgramsWidget(programs))
    root = page.locator("[data-testid=tpunb-programs]")
    expect(root.get_by_role("img")).to_have_count(2)
    return root.locator("div:has(> div > img)").last


def pod(host: Host, page: Any) -> Any:
    """The largest Pod of v5p."""
    host(lambda: TopologyWidget(accelerator("v5p-17920")))
    return drawn(page)


def communication(host: Host, page: Any) -> Any:
    """A program whose cores send each other gradients and activations."""
    host(lambda: ProgramsWidget(made.COMMUNICATING))
    root = page.locator("[data-testid=tpunb-programs]")
    section = root.locator("details").filter(has_text="5 collectives send")
    expect(section).to_contain_text("all-reduce")
    return section


def array(host: Host, page: Any) -> Any:
    """An array of JAX that is cut over eight devices, with copies."""
    host(lambda: ReplicasWidget(described(ARRAYS["copies"])))
    root = page.locator("[data-testid=tpunb-replicas]")
    expect(root).to_contain_text("2 copies of each")
    return root


def tree_of_arrays(host: Host, page: Any) -> Any:
    """The parameters of a model, with the place of each."""
    host(lambda: ReplicasWidget(described(tree())))
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
