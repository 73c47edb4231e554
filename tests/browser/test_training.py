"""A run of many steps in JupyterLab: watched, stopped and continued."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
from counterparts.children import WITHOUT_KERAS
from jupyter import Book
from playwright.sync_api import expect
from support.patience import wait_until
from support.tiers import THOROUGH

SETUP = f"""\
{WITHOUT_KERAS}import tensorflow as tf, tpunb
%load_ext tpunb
%tpu_connect --simulate 2
ds = tf.data.Dataset.range(64).map(lambda n: tf.cast(n, tf.float32)).batch(8, drop_remainder=True).repeat()
with strategy.scope():
    total = tf.Variable(0.0)"""
TRAINING = """\
%%tpu_run -d ds -n 1000000000 -p loss
total.assign_add(1.0)
loss = ctx.all_reduce("mean", tf.reduce_mean(batch));"""
FINISHED = """\
%%tpu_run -d ds -n 300 -p loss
loss = ctx.all_reduce("mean", tf.reduce_mean(batch)) + 1.0;"""
QUIET = """\
%%tpu_run -r half=mean
half = tf.constant(0.5)"""
LOOK = "int(total.numpy()), len(tpunb.history), tpunb.history.state"


CURVES = '[data-testid="tpunb-curves"]'


@pytest.mark.parametrize("book", ["lab"], indirect=True)
def test_a_run_in_a_front_end(book: Callable[..., Book], page: Any, screenshot: Any) -> None:
    """Watch and stop a run, then finish another run in the same notebook."""
    opened = book(SETUP, TRAINING, LOOK, FINISHED, QUIET, run=False)
    opened.run_all(wait=False)
    curves = page.locator(CURVES)
    expect(curves).to_have_attribute("data-state", "running")
    points = int(curves.get_attribute("data-points"))
    page.wait_for_function(
        f"points => Number(document.querySelector('{CURVES}').dataset.points) > points",
        arg=points + 100,
    )
    expect(page.get_by_text("steps/s").first).to_be_visible()
    screenshot(name="running")
    page.evaluate("window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
    expect(page.get_by_text("Stopped: after")).to_be_visible()
    expect(curves).to_have_attribute("data-state", "stopped")  # still live
    opened.run_cell(2)
    saved = opened.save()
    assert not [each for each in saved.cells[1].outputs if each.output_type == "error"]
    (display,) = [output for output in saved.cells[2].outputs if "data" in output]
    steps_made, steps_recorded, state = display.data["text/plain"].strip("()").split(", ")
    assert steps_made == steps_recorded
    assert int(steps_made) >= points
    assert state == "'stopped'"
    screenshot(name="stopped")
    opened.run_cell(3)
    opened.run_cell(4)
    check_finished_run(opened, page, screenshot)


def check_finished_run(opened: Book, page: Any, screenshot: Any) -> None:
    """The page has live curves and times; the file has a picture and text that never changes."""
    curves = page.locator(CURVES).nth(1)
    expect(curves).to_have_attribute("data-state", "finished")
    expect(curves).to_have_attribute("data-points", "300")
    expect(page.get_by_text("300 steps in ")).to_be_visible()
    expect(page.get_by_text("half 0.5 · 2 replicas, traced and run")).to_be_visible()
    screenshot(name="light")
    curves.get_by_role("button", name="Logarithmic scale of values").click()
    expect(curves).to_have_attribute("data-scale", "log")
    with page.expect_download() as download:
        curves.get_by_role("button", name="Download what is shown").click()
    assert len(download.value.path().read_text().splitlines()) == 301
    page.evaluate(
        "window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"
    )
    page.wait_for_function("document.body.dataset.jpThemeLight === 'false'")
    page.set_viewport_size({"width": 700, "height": 900})
    screenshot(name="dark")
    saved = opened.save()
    bundles = [output.data for output in saved.cells[3].outputs]
    assert [set(data) for data in bundles] == [{"text/plain", "image/png"}, {"text/plain"}]
    texts = [data["text/plain"] for data in bundles]
    assert texts == ["Training curves · loss · 300 steps", "300 steps"]
    assert saved.cells[4].outputs == []
    assert (opened.server.folder / opened.name).stat().st_size < 1_000_000


KILLED = f"""\
import os
import tpunb.display.widgets.curves as curves
curves._PICTURE_SECONDS = 0.2
{SETUP}
print("process", os.getpid())"""
STILL = f"document.querySelector('{CURVES}').isSameNode(window.first)"


@THOROUGH
def test_a_kernel_that_dies(book: Callable[..., Book], page: Any, screenshot: Any) -> None:
    """The page reports the kernel's death, and the file has the curves up to the last picture."""
    opened = book(KILLED, TRAINING, run=False)
    opened.run_all(wait=False)
    curves = page.locator(CURVES)
    expect(curves).to_have_attribute("data-state", "running")
    page.evaluate(f"window.first = document.querySelector('{CURVES}')")
    for _ in range(3):
        wait_for_another_picture(opened)
    assert page.evaluate(STILL)  # a new picture does not make the page draw the curves again
    process = int(page.locator("pre", has_text="process ").text_content().split()[-1])
    os.kill(process, signal.SIGKILL)
    expect(curves).to_have_attribute("data-state", "lost")
    expect(curves).to_contain_text("the kernel ended while this ran · step ")
    expect(page.get_by_text("steps/s")).to_have_count(0)
    expect(page.get_by_text(" left", exact=False)).to_have_count(0)
    ended = page.get_by_text(" of 1,000,000,000 · the kernel ended while this ran")
    expect(ended.last).to_be_visible()
    screenshot(name="lost")
    page.get_by_role(
        "button", name="Ok", exact=True
    ).click()  # the front end's note that it restarts the kernel
    points = int(curves.get_attribute("data-points"))
    assert 0 < steps_in_file(opened) <= points
    page.reload()
    opened.open()
    picture = page.locator("img[src^='data:image/png']")
    expect(picture.first).to_be_visible()
    screenshot(name="opened again")


def wait_for_another_picture(opened: Book) -> None:
    before = steps_in_file(opened)
    wait_until(lambda: steps_in_file(opened) > before)


def steps_in_file(opened: Book) -> int:
    """Save the notebook, and return the steps in the picture of its curves, or 0 without one."""
    outputs = opened.save().cells[1].outputs
    pictures = [each.data for each in outputs if "image/png" in each.get("data", {})]
    if not pictures:
        return 0
    match = re.fullmatch(
        r"Training curves · loss · ([\d,]+) of 1,000,000,000 steps", text_of(pictures)
    )
    assert match, pictures[0]["text/plain"]
    return int(match[1].replace(",", ""))


def text_of(bundles: list[Any]) -> str:
    """Return the text of the only bundle."""
    (bundle,) = bundles
    return str(bundle["text/plain"])
