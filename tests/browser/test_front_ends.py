"""Live displays in JupyterLab and Notebook 7: shown, updated, saved, reopened and frozen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from counterparts.children import WITHOUT_KERAS
from jupyter import Book, Server
from playwright.sync_api import expect
from support.tiers import THOROUGH

VIEW = "application/vnd.jupyter.widget-view+json"
SETUP = (
    WITHOUT_KERAS + "%load_ext tpunb\nimport tensorflow as tf, tpunb\n%tpu_connect --simulate v3-8"
)
VALUES = "%%tpu_run\ntf.random.stateless_normal([20, 20], [replica_id, 1])"
CURVES = """\
history = tpunb.History("run", total_steps=400)
curves = tpunb.show(history)
for step in range(200):
    history.append(step, loss=1 / (1 + step), val_loss=2 / (1 + step))"""
HOSTILE = """\
text = "<img src=x onerror='document.title=1'>"
with strategy.scope():
    variable = tf.Variable(1.0, name="<b>name</b>")
{text: {"</script>": tf.constant(text)}, "variable": variable}"""
HOSTILE_CURVES = """\
hostile = tpunb.History("<img src=x onerror='document.title=1'>")
hostile.append(1, {"</script><b>loss</b>": 1.0})
hostile"""

FREEZE = "history.finish()\ncurves.freeze()"

EARLY = """\
import time, tpunb
from IPython.display import display
from tpunb.display.widgets import TopologyWidget
opening = TopologyWidget.open
TopologyWidget.open = lambda self: None
early = TopologyWidget("v3-8")
view = {"version_major": 2, "version_minor": 0, "model_id": early._live_id}
forms = {"application/vnd.jupyter.widget-view+json": view, **early.static_bundle()}
display(forms, metadata={"tpunb": {}}, raw=True)"""
LATE = "TopologyWidget.open = opening\nearly._model_id = early._live_id\nearly.open()"


def widget(page: Any, name: str) -> Any:
    return page.locator(f'[data-testid="tpunb-{name}"]')


def errors(book: Book) -> list[Any]:
    """Return the outputs that the front end shows in red."""
    outputs = [output for cell in book.save().cells for output in cell.outputs]
    return [
        output
        for output in outputs
        if output.output_type == "error" or output.get("name") == "stderr"
    ]


def test_all_displays(book: Callable[..., Book], page: Any, screenshot: Any) -> None:
    """Work like a user: run cell by cell, repeat some cells, and freeze a display at the end."""
    opened = book(SETUP, VALUES, CURVES, HOSTILE, HOSTILE_CURVES, FREEZE, run=False)
    opened.run_cell(0)
    opened.run_cell(1)
    select_a_core(page)
    run_again(opened, page, 1)
    for number in (2, 3, 4):
        opened.run_cell(number)
    look_at_all(page)
    assert page.title() != "1"
    for name in ("topology", "replicas", "curves"):
        widget(page, name).first.scroll_into_view_if_needed()
        screenshot(name=name)
    opened.run_cell(5)
    expect(widget(page, "curves")).to_have_count(1)  # the hostile history
    expect(page.locator(".jp-Cell").nth(2).locator("img")).to_have_count(1)
    assert errors(opened) == []


def select_a_core(page: Any) -> None:
    """Select a core: a selection in one display appears in the other."""
    expect(widget(page, "replicas")).to_have_attribute("data-replicas", "8")
    widget(page, "topology").locator("[data-part]").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    for name in ("topology", "replicas"):
        expect(widget(page, name)).to_have_attribute("data-selected", "1")


def run_again(opened: Book, page: Any, number: int) -> None:
    """Run a cell again: its new display takes the place and the settings of the old display."""
    display = widget(page, "replicas")
    display.get_by_label("as", exact=True).select_option("table")
    expect(display).to_have_attribute("data-view", "table")
    opened.run_cell(number)
    expect(display).to_have_count(1)
    expect(display).to_have_attribute("data-view", "table")


def look_at_all(page: Any) -> None:
    expect(widget(page, "topology")).to_have_attribute("data-chips", "4")
    expect(widget(page, "topology")).to_have_attribute("data-cores", "8")
    expect(widget(page, "replicas").first).to_have_attribute("data-replicas", "8")
    expect(widget(page, "curves").first).to_have_attribute("data-points", "200")
    expect(widget(page, "curves").last).to_have_attribute("data-points", "1")
    expect(widget(page, "replicas").last).to_contain_text("<img src=x")
    expect(widget(page, "curves").last).to_contain_text("</script><b>loss</b>")


@THOROUGH
@pytest.mark.parametrize("book", ["lab"], indirect=True)
def test_a_display_may_arrive_before_its_widget(book: Callable[..., Book], page: Any) -> None:
    """If people share a notebook, outputs and widgets arrive separately."""
    opened = book("1", EARLY, LATE, run=False)
    opened.run_cell(0)
    opened.run_cell(1)
    expect(page.get_by_text("Error displaying widget: model not found")).to_be_visible()
    opened.run_cell(2)
    expect(widget(page, "topology")).to_be_visible()
    expect(page.get_by_text("Error displaying widget")).to_have_count(0)
    widget(page, "topology").get_by_label("Zoom").select_option("2.0")
    expect(widget(page, "topology")).to_have_attribute("data-zoom", "2")
    assert errors(opened) == []


@THOROUGH
@pytest.mark.parametrize("book", ["notebook"], indirect=True)
def test_saved_without_live_forms(book: Callable[..., Book], page: Any, server: Server) -> None:
    opened = book(SETUP, VALUES, CURVES, "history")
    expect(widget(page, "curves").first).to_have_attribute("data-points", "200")
    saved = opened.save()
    outputs = [output for cell in saved.cells for output in cell.outputs if "data" in output]
    assert sum("image/png" in output.data for output in outputs) == 1
    assert sum("<img" in output.data.get("text/html", "") for output in outputs) == 2
    assert not any(VIEW in output.data for output in outputs)
    # While the kernel runs, a reopened page shows live displays.
    opened.open()
    expect(widget(page, "topology")).to_have_attribute("data-chips", "4")
    expect(widget(page, "replicas")).to_have_attribute("data-replicas", "8")
    for number in range(2):
        expect(widget(page, "curves").nth(number)).to_have_attribute("data-points", "200")
    # Without the kernel, the page shows the saved pictures.
    server.end_sessions()
    opened.open()
    for words in ("v3-8", "replica 7"):
        expect(page.locator(f".jp-OutputArea-output img[alt^='{words}']")).to_have_count(1)
    expect(page.locator(".jp-OutputArea-output img[src^='data:image/png']").last).to_be_visible()
    expect(page.get_by_text("Error displaying widget")).to_have_count(0)
