"""A run of many steps in JupyterLab and Notebook 7: watched, stopped, taken up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jupyter import Book
from playwright.sync_api import expect

SETUP = """\
import tensorflow as tf, tpunb
%load_ext tpunb
%tpu_connect --simulate 2
ds = tf.data.Dataset.range(64).map(lambda n: tf.cast(n, tf.float32)).batch(8, drop_remainder=True).repeat()
with strategy.scope():
    total = tf.Variable(0.0)"""
TRAINING = """\
%%tpu_run -d ds -n 1000000 -p loss
total.assign_add(1.0)
loss = ctx.all_reduce("mean", tf.reduce_mean(batch));"""
LOOK = "int(total.numpy()), len(tpunb.history), tpunb.history.state"


def test_watched_and_stopped(book: Callable[..., Book], page: Any, screenshot: Any) -> None:
    opened = book(SETUP, TRAINING, LOOK, run=False)
    opened.run_all(wait=False)
    curves = page.locator('[data-testid="tpunb-curves"]')
    expect(curves).to_have_attribute("data-state", "running")
    points = int(curves.get_attribute("data-points"))
    page.wait_for_function(
        "points => Number(document.querySelector('[data-testid=tpunb-curves]').dataset.points) > points",
        arg=points + 100,
    )
    expect(page.get_by_text("steps/s").first).to_be_visible()
    screenshot(name="running")
    page.evaluate("window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
    expect(page.get_by_text("Stopped: after")).to_be_visible()
    expect(curves).to_have_count(0)  # frozen
    expect(page.locator(".jp-Cell").nth(1).locator("img")).to_have_count(1)
    opened.run_cell(2)
    (shown,) = [output for output in opened.save().cells[2].outputs if "data" in output]
    made, kept, state = shown.data["text/plain"].strip("()").split(", ")
    assert made == kept
    assert int(made) >= points
    assert state == "'stopped'"
    screenshot(name="stopped")
