"""The training curves in a browser: the drawing and the controls."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hosting import FRAMES, darken
from playwright.sync_api import expect
from support.gallery import noise, trained, without_timer

from tpunb.display.widgets.curves import CurvesWidget
from tpunb.display.widgets.page_data import es_module
from tpunb.training.history import History

ROOT = "[data-testid=tpunb-curves]"
HOSTILE = "<img src=x onerror=alert(1)> </script>"


def both_themes(page: Any, screenshot: Any, name: str) -> None:
    page.wait_for_function("document.fonts.ready")
    screenshot(page.locator(ROOT), f"{name}-light")
    before = page.locator(ROOT).get_attribute("data-frames")
    darken(page)
    page.wait_for_function(f"document.querySelector('{ROOT}').dataset.frames > {before}")
    screenshot(page.locator(ROOT), f"{name}-dark")


def test_running(host: Any, page: Any, screenshot: Any) -> None:
    history = trained(steps=320, total=1000)
    host(lambda: without_timer(CurvesWidget(history)))
    root = page.locator(ROOT)
    expect(root).to_have_attribute("data-points", "320")
    both_themes(page, screenshot, "running")


def test_log_and_smoothing(host: Any, page: Any, screenshot: Any) -> None:
    host(lambda: CurvesWidget(trained(), scale="log", smoothing=85))
    root = page.locator(ROOT)
    expect(root).to_have_attribute("data-scale", "log")
    expect(root).to_have_attribute("data-smoothing", "85")
    both_themes(page, screenshot, "log")


def test_spread(host: Any, page: Any, screenshot: Any) -> None:
    history = History("8 replicas")
    for step in range(300):
        base = 2 * math.exp(-step / 90) + 0.2
        history.append(step, loss=[base * (1 + 0.35 * noise(step // 3, core)) for core in range(8)])
    history.finish()
    host(lambda: CurvesWidget(history))
    expect(page.locator(ROOT)).to_have_attribute("data-state", "finished")
    both_themes(page, screenshot, "spread")


def test_runs(host: Any, page: Any, screenshot: Any) -> None:
    runs = [trained("baseline"), trained("lr 3e-4", speed=1.4), trained("dropout", speed=0.7)]
    for run in runs:
        run.finish()
    host(lambda: CurvesWidget(runs, smoothing=60))
    root = page.locator(ROOT)
    expect(root).to_have_attribute("data-runs", "3")
    both_themes(page, screenshot, "runs")


def test_nan(host: Any, page: Any, screenshot: Any) -> None:
    history = trained(steps=200, total=500)
    for step in range(201, 260):
        history.append(step, loss=math.nan, accuracy=0.1)
        if step >= 204:
            history.append(step, val_loss=math.nan)
    history.append(260, lr=0.001)
    history.finish(stopped=True)
    host(lambda: CurvesWidget(history))
    root = page.locator(ROOT)
    expect(root).to_have_attribute("data-state", "stopped")
    expect(root.get_by_text("NaN at 201")).to_be_visible()
    expect(root.get_by_text("NaN at 204")).to_be_visible()  # its label is below the first label
    both_themes(page, screenshot, "nan")


def test_waiting(host: Any, page: Any, screenshot: Any) -> None:
    host(lambda: CurvesWidget(History("mnist", total_steps=200)))
    root = page.locator(ROOT)
    expect(root).to_have_attribute("data-state", "waiting")
    expect(
        root.locator(".tpunb-curves-empty", has_text="Waiting for the first step")
    ).to_be_visible()
    both_themes(page, screenshot, "waiting")


@pytest.mark.parametrize("width", [1100, 700, 360])
def test_the_first_steps_keep_the_height(host: Any, page: Any, width: int) -> None:
    """The first step, the spread of the replicas, and validation after an epoch keep it."""
    page.set_viewport_size({"width": width, "height": 900})
    history = History("run")
    widget = without_timer(CurvesWidget(history, awaited=2))
    host(lambda: widget)
    root = page.locator(ROOT)
    expect(root.get_by_text("Waiting for the first step")).to_be_visible()
    heights = [root.bounding_box()["height"]]
    for step in range(1, 9):
        more = {"val_loss": 1.0} if step == 8 else {}
        history.append(step, {"loss": [1.0, 2 / step], "accuracy": step / 9, **more})
        if step in (1, 8):
            widget._flush()
            expect(root).to_have_attribute("data-step", str(step))
            heights.append(root.bounding_box()["height"])
    assert max(heights) - min(heights) < 2


def test_hiding_the_last_run_shows_all_runs(host: Any, page: Any) -> None:
    runs = [History("one"), History("two")]
    for run in runs:
        run.append(1, loss=1.0)
    host(lambda: CurvesWidget(runs))
    chips = page.locator(".tpunb-curves-run")
    for number in (0, 1, 0):
        chips.nth(number).click()
    expect(page.locator(ROOT)).to_have_attribute("data-panels", "1")


def ink(page: Any, panel: str = "loss") -> dict[str, int]:
    """Count the opaque pixels of a panel's canvas by colour."""
    script = """(panel) => {
      const canvas = document.querySelector(`[data-panel="${panel}"] canvas`);
      const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
      copy.drawImage(canvas, 0, 0);
      const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
      const counts = {};
      for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] < 250) continue;
        const colour = [0, 1, 2].map((part) => data[at + part].toString(16).padStart(2, "0")).join("");
        counts[colour] = (counts[colour] ?? 0) + 1;
      }
      return counts;
    }"""
    return dict(page.evaluate(script, panel))


BLUE, ORANGE, BRIGHT_BLUE = "0072b2", "d55e00", "5aaee8"


def wait_for_points(page: Any, points: int) -> Any:
    root = page.locator(ROOT)
    expect(root).to_have_attribute("data-points", str(points))
    return root


def test_lines_are_drawn_in_the_colours_of_the_theme(host: Any, page: Any) -> None:
    host(lambda: CurvesWidget(trained()))
    root = wait_for_points(page, 500)
    assert ink(page)[BLUE] > 100
    assert ink(page)[ORANGE] > 100
    before = int(root.get_attribute("data-frames"))
    darken(page)
    page.wait_for_function(f"document.querySelector('{ROOT}').dataset.frames > {before}")
    assert ink(page)[BRIGHT_BLUE] > 100
    assert BLUE not in ink(page)


def test_attributes(host: Any, page: Any) -> None:
    host(lambda: CurvesWidget(trained(), smoothing=30))
    root = wait_for_points(page, 500)
    expected = {
        "metrics": 4,
        "panels": 2,
        "runs": 1,
        "step": 500,
        "state": "running",
        "scale": "linear",
        "smoothing": 30,
    }
    for name, value in expected.items():
        expect(root).to_have_attribute(f"data-{name}", str(value))
    expect(root.locator("[data-panel]")).to_have_count(2)


def test_cursor_is_shared_by_the_panels(host: Any, page: Any, screenshot: Any) -> None:
    history = trained()
    host(lambda: CurvesWidget(history))
    root = wait_for_points(page, 500)
    root.locator("[data-panel=loss] .u-over").hover(position={"x": 200, "y": 80})
    where = root.locator(".tpunb-curves-where")
    expect(where.first).to_contain_text("step ")
    assert where.nth(0).text_content() == where.nth(1).text_content()
    step = int(where.first.text_content().removeprefix("step "))
    value = root.locator("[data-panel=accuracy] .tpunb-curves-item b").first.text_content()
    assert float(value) == pytest.approx(history.values("accuracy")[step - 1], rel=1e-3)
    screenshot(root, "cursor")
    page.mouse.move(2, 2)
    expect(where.first).to_have_text("")
    last = root.locator("[data-panel=accuracy] .tpunb-curves-item b").first.text_content()
    assert float(last) == pytest.approx(history.last["accuracy"], rel=1e-3)


def test_zoom_is_linked_and_stored_in_the_model(host: Any, page: Any) -> None:
    hosted = host(lambda: CurvesWidget(trained()))
    root = wait_for_points(page, 500)
    plot = root.locator("[data-panel=loss] .u-over")
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60, steps=5)
    page.mouse.up()
    page.wait_for_function(f"document.querySelector('{ROOT}').dataset.zoom !== ''")
    low, high = map(int, root.get_attribute("data-zoom").split())
    assert low == pytest.approx(126, abs=4)
    assert high == pytest.approx(250, abs=4)
    hosted.deliver()
    assert hosted.widget.zoom == pytest.approx([low, high], abs=1)
    expect(root.get_by_role("button", name="Show all steps")).to_be_visible()
    root.locator("[data-panel=accuracy] .u-over").dblclick()
    expect(root).to_have_attribute("data-zoom", "")
    hosted.deliver()
    assert hosted.widget.zoom == []


def test_controls_change_the_drawing_and_the_model(host: Any, page: Any) -> None:
    hosted = host(lambda: CurvesWidget(trained()))
    root = wait_for_points(page, 500)
    raw = ink(page)[BLUE]
    root.get_by_label("Smoothing").fill("90")
    expect(root).to_have_attribute("data-smoothing", "90")
    expect(root.locator("output")).to_have_text("90 %")
    assert ink(page)[BLUE] != raw
    root.get_by_role("button", name="Logarithmic").click()
    expect(root).to_have_attribute("data-scale", "log")
    expect(root.get_by_role("button", name="Logarithmic")).to_have_attribute("aria-pressed", "true")
    hosted.deliver()
    assert (hosted.widget.scale, hosted.widget.smoothing) == ("log", 90)
    hosted.widget.scale = "linear"
    expect(root).to_have_attribute("data-scale", "linear")


def test_a_line_and_a_run_can_be_hidden(host: Any, page: Any) -> None:
    hosted = host(lambda: CurvesWidget([trained("one"), trained("two", speed=0.5)]))
    root = wait_for_points(page, 500)
    root.get_by_role("button", name="two", exact=True).click()
    expect(root.locator("[data-panel=loss] .tpunb-curves-item")).to_have_count(2)
    assert ORANGE not in ink(page)
    item = root.locator("[data-panel=loss] .tpunb-curves-item").first
    item.click()
    expect(item).to_have_attribute("aria-pressed", "false")
    hosted.deliver()
    assert sorted(hosted.widget.hidden) == [[0, "loss"], [1]]
    item.click()
    expect(item).to_have_attribute("aria-pressed", "true")
    root.get_by_role("button", name="two", exact=True).click()
    expect(root.locator("[data-panel=loss] .tpunb-curves-item")).to_have_count(4)
    assert ink(page)[ORANGE] > 50


def test_keyboard(host: Any, page: Any) -> None:
    host(lambda: CurvesWidget(trained()))
    root = wait_for_points(page, 500)
    plot = root.locator("[data-panel=loss] .tpunb-curves-plot")
    plot.focus()
    page.keyboard.press("Home")
    expect(root.locator("[aria-live]")).to_contain_text("loss, step 1: train 2.373, validation –")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(root.locator("[aria-live]")).to_contain_text("loss, step 5:")
    page.keyboard.press("End")
    page.keyboard.press("+")
    expect(root).to_have_attribute("data-zoom", "375 500")
    page.keyboard.press("Escape")
    expect(root).to_have_attribute("data-zoom", "")


def test_points_arrive_as_deltas(host: Any, page: Any) -> None:
    history = History(total_steps=100)
    hosted = host(lambda: without_timer(CurvesWidget(history)))
    root = wait_for_points(page, 0)
    expect(root).to_have_attribute("data-state", "waiting")
    for step in range(1, 41):
        history.append(step, loss=1 / step)
        hosted.widget._flush()
    wait_for_points(page, 40)
    expect(root).to_have_attribute("data-step", "40")
    expect(root.locator(".tpunb-curves-status")).to_contain_text("running · step 40 of 100")
    expect(root.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "40")
    history.append(41, val_loss=0.5)
    hosted.widget._flush()
    expect(root).to_have_attribute("data-metrics", "2")
    hosted.widget.finish()
    expect(root).to_have_attribute("data-state", "finished")
    took = re.compile(r"^finished · 41 steps · \d+ (s|min)$")
    expect(root.locator(".tpunb-curves-status")).to_have_text(took)
    expect(root.get_by_role("progressbar")).to_be_hidden()
    hosted.widget.close()


def test_a_view_that_opens_late_has_every_point_once(host: Any, page: Any) -> None:
    history = trained(steps=100)
    hosted = host(lambda: without_timer(CurvesWidget(history)))
    wait_for_points(page, 100)
    page.evaluate("hide('w0')")
    for step in range(101, 151):
        history.append(step, loss=1.0)
    hosted.widget._flush()
    page.evaluate("show('w0')")
    wait_for_points(page, 150)
    # A reopened page gets the whole state, then deltas that overlap with it.
    hosted.mount()
    history.append(151, loss=1.0)
    hosted.widget._flush()
    hosted.widget.send_state("snapshot")
    expect(page.locator(ROOT).last).to_have_attribute("data-points", "151")


def test_lost_rows_are_requested(host: Any, page: Any) -> None:
    history = trained(steps=10)
    hosted = host(lambda: without_timer(CurvesWidget(history)))
    wait_for_points(page, 10)
    hosted.widget._flush()
    for step in range(11, 21):
        history.append(step, loss=1.0)
    hosted.widget._stream.delta()  # a lost message
    history.append(21, loss=1.0)
    history.append(22, loss=1.0)
    hosted.widget._flush()
    wait_for_points(page, 22)
    page.wait_for_function("true")
    assert hosted.inbox[-1]["content"] == {"kind": "sync"}
    hosted.deliver()
    root = page.locator(ROOT)
    plot = root.locator("[data-panel=loss] .tpunb-curves-plot")
    plot.focus()
    page.keyboard.press("Home")
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    expect(root.locator("[aria-live]")).to_contain_text("loss, step 13: loss 1")


def test_csv(host: Any, page: Any) -> None:
    history = History()
    history.append(1, {"loss": [1.0, 3.0], 'a "b", c': 5})
    history.append(2, loss=0.5)
    host(lambda: CurvesWidget(history))
    root = wait_for_points(page, 2)
    with page.expect_download() as download:
        root.get_by_role("button", name="Download").click()
    text = download.value.path().read_text()
    assert text == 'step,loss,loss min,loss max,"a ""b"", c"\n1,2,1,3,5\n2,0.5,0.5,0.5,\n'
    assert download.value.suggested_filename == "training-curves.csv"


def test_names_are_text(host: Any, page: Any) -> None:
    runs = [History(HOSTILE), History("two")]
    for run in runs:
        run.append(1, {HOSTILE: 1.0})
    host(lambda: CurvesWidget(runs))
    root = wait_for_points(page, 1)
    expect(root.locator("h4")).to_have_text(HOSTILE)
    expect(root.locator("img, script")).to_have_count(0)


def test_a_log_scale_without_positive_values(host: Any, page: Any) -> None:
    history = History()
    for step in range(50):
        history.append(step, loss=1 / (step + 1) - 0.1, reward=-1.0 - step, constant=0)
    hosted = host(lambda: CurvesWidget(history, scale="log"))
    root = wait_for_points(page, 50)
    expect(root).to_have_attribute("data-panels", "3")
    assert ink(page)[BLUE] > 20
    hosted.widget.zoom = [20.0, 21.0]
    expect(root).to_have_attribute("data-zoom", "20 21")


@pytest.mark.parametrize(("width", "columns"), [(400, 1), (800, 2), (1100, 3)])
def test_panels_fit_the_width(host: Any, page: Any, width: int, columns: int) -> None:
    history = History()
    for step in range(20):
        history.append(step, loss=1.0, accuracy=0.5, auc=0.5)
    host(lambda: CurvesWidget(history))
    wait_for_points(page, 20)
    page.set_viewport_size({"width": width, "height": 900})
    count = f"getComputedStyle(document.querySelector('.tpunb-curves-grid')).gridTemplateColumns.split(' ').length === {columns}"
    page.wait_for_function(count)
    page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")


def test_curves_out_of_sight_are_not_drawn(host: Any, page: Any) -> None:
    history = trained(steps=10)
    hosted = host(lambda: without_timer(CurvesWidget(history)))
    root = wait_for_points(page, 10)
    page.evaluate("document.body.style.paddingTop = '5000px'")
    page.evaluate(FRAMES)
    frames = root.get_attribute("data-frames")
    history.append(11, loss=1.0)
    hosted.widget._flush()
    page.evaluate(FRAMES)
    assert root.get_attribute("data-frames") == frames
    root.scroll_into_view_if_needed()
    wait_for_points(page, 11)


def test_long_lines_are_drawn_once_a_frame(host: Any, page: Any) -> None:
    """The page gets 100 updates a second, of lines with 10,000 points."""
    history = History()
    for step in range(10_000):
        history.append(
            step,
            loss=noise(step),
            val_loss=noise(step, 1),
            accuracy=noise(step, 2),
            val_accuracy=noise(step, 3),
        )
    host(lambda: CurvesWidget(history))
    wait_for_points(page, 10_000)
    measured = page.evaluate(PUSH, 2000)
    assert measured["sent"] > 100
    assert 0 < measured["drawn"] <= measured["frames"] + 2
    assert measured["points"] > 10_100


PUSH = """(duration) => new Promise((done) => {
  const { model } = widgets.w0;
  const root = document.querySelector("[data-testid=tpunb-curves]");
  const names = ["loss", "val_loss", "accuracy", "val_accuracy"];
  const before = Number(root.dataset.frames);
  const began = performance.now();
  let [sent, frames] = [0, 0];
  const count = () => { frames += 1; if (performance.now() - began < duration) requestAnimationFrame(count); };
  requestAnimationFrame(count);
  const push = () => {
    const due = Math.floor((performance.now() - began) / 10);
    for (; sent < due; sent += 1) {
      const buffer = new ArrayBuffer(16 * names.length);
      const layout = {};
      const series = names.map((name, number) => {
        new Float64Array(buffer, 16 * number, 2).set([10000 + sent, Math.random() - 0.5]);
        layout[`${number}.steps`] = ["Float64Array", 16 * number, 1];
        layout[`${number}.values`] = ["Float64Array", 16 * number + 8, 1];
        return { run: 0, metric: name, start: 10000 + sent };
      });
      const runs = [{ name: "", total: null, state: "running", step: 10000 + sent, pace: [] }];
      model.fire("msg:custom", { kind: "points", runs, series, layout }, [new DataView(buffer)]);
    }
    const now = performance.now() - began;
    if (now < duration) setTimeout(push, 5);
    else done({ sent, frames, drawn: Number(root.dataset.frames) - before, points: Number(root.dataset.points) });
  };
  push();
})"""


TRAINING = """
import threading, time
from tpunb.training.history import History
from tpunb.display.widgets.curves import CurvesWidget

history = History("mnist", total_steps=3000)
widget = CurvesWidget(history)
go_on = threading.Event()


def train(first, last):
    for step in range(first, last):
        history.append(step, loss=1 / step, accuracy=1 - 1 / step)
        time.sleep(0.001)


widget
"""


@pytest.mark.parametrize("book", ["lab"], indirect=True)
def test_in_a_front_end(book: Any, page: Any, screenshot: Any) -> None:
    """The curves update while the kernel is busy, and after the page is reopened during a run."""
    opened = book(
        TRAINING,
        "train(1, 1001)",
        "thread = threading.Thread(target=train, args=(1001, 2001)); thread.start()",
        run=False,
    )
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
    root = page.locator(ROOT).first
    expect(root).to_have_attribute("data-state", "running")
    page.wait_for_function(f"document.querySelector('{ROOT}').dataset.points > 100")
    expect(root.locator(".tpunb-curves-status")).to_contain_text("steps/s")
    expect(root.locator(".tpunb-curves-status")).to_contain_text("left")
    screenshot(root)
    expect(root).to_have_attribute("data-points", "2000")
    opened.save()
    opened.open()
    reopened = page.locator(ROOT).first
    expect(reopened).to_have_attribute("data-points", "2000")
    expect(reopened).to_have_attribute("data-step", "2000")


@pytest.mark.parametrize("width", [1100, 400])
def test_runs_with_given_names(host: Any, page: Any, screenshot: Any, width: int) -> None:
    """The names appear in the legend and on the buttons that hide a run."""
    page.set_viewport_size({"width": width, "height": 900})
    names = ["lr 0.1", "lr 0.01, a much longer name of a run"]
    runs = [trained(speed=1.0, steps=300), trained(speed=0.5)]
    host(lambda: CurvesWidget(runs, names=names))
    root = page.locator(ROOT)
    expect(root).to_have_attribute("data-runs", "2")
    for name in names:
        expect(root.get_by_role("button", name=name, exact=True)).to_be_visible()
        expect(root.get_by_text(f"{name} · train").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    both_themes(page, screenshot, f"{width}")


@pytest.mark.parametrize("width", [400, 700, 1100])
def test_the_legend_of_three_runs(host: Any, page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    names = ["learning rate 0.1", "learning rate 0.01, warm-up of 100 steps", "no schedule"]
    host(lambda: CurvesWidget([trained(name) for name in names]))
    items = page.locator(f"{ROOT} .tpunb-curves-item")
    expect(items).to_have_count(12)
    cut = "(items) => items.filter((item) => item.scrollWidth > item.clientWidth).length"
    assert items.evaluate_all(cut) == 0


TICKS = [
    [-0.001, -0.0010001, -0.0010002],
    [1e6, 1e6 + 0.001, 1e6 + 0.002],
    [-0.2, -0.1, 2.8e-17, 0.1, 0.30000000000000004],
    [1e-300, 2e-300],
    [0.1, 1.0, 10.0],
]


def test_the_ticks_of_an_axis_have_different_texts(page: Any) -> None:
    script = (
        f"(all) => {{ {es_module('common.js')}; return all.map((ticks) => tickTexts(ticks)); }}"
    )
    texts = page.evaluate(script, TICKS)
    assert [len(set(axis)) for axis in texts] == list(map(len, TICKS))
    for axis, ticks in zip(texts, TICKS, strict=True):
        assert list(map(float, axis)) == pytest.approx(ticks, abs=1e-9 * (ticks[-1] - ticks[0]))
    assert texts[2] == ["-0.2", "-0.1", "0", "0.1", "0.3"]


def test_a_kernel_that_ends(host: Any, page: Any, screenshot: Any) -> None:
    history = trained(steps=240, total=938)
    hosted = host(lambda: without_timer(CurvesWidget(history)))
    root = page.locator(ROOT)
    expect(root).to_have_attribute("data-state", "running")
    page.evaluate(
        """(name) => {
          const { model } = widgets[name];
          model.widget_manager = { get_model: async () => ({ comm_live: false }) };
          model.fire("comm_live_update");
        }""",
        hosted.name,
    )
    expect(root).to_have_attribute("data-state", "lost")
    expect(root).to_contain_text("the kernel ended while this ran · step 240 of 938")
    both_themes(page, screenshot, "lost")


def test_no_speed_is_shown_after_a_long_silence(host: Any, page: Any) -> None:
    """The curves do not show a speed or a remaining time if no data have come for long."""
    page.clock.install()
    history = trained(steps=240, total=938)
    host(lambda: without_timer(CurvesWidget(history)))
    page.clock.run_for(1000)
    expect(page.locator(ROOT)).to_contain_text("running · step 240 of 938")
    page.clock.run_for(45_000)
    expect(page.locator(ROOT)).to_contain_text("running · step 240 of 938 · no news for 4")


def test_a_spread_that_reaches_below_zero_on_a_log_scale(
    host: Any, page: Any, screenshot: Any
) -> None:
    """The bands of two metrics go to the edge of the plot, and go away with the button."""
    history = History("8 replicas")
    for step in range(100):
        history.append(step, loss=[1.0, -0.5, 3.0])
        if step % 10 == 0:
            history.append(step, val_loss=[2.0 + step / 100, 4.0])
    history.finish()
    host(lambda: CurvesWidget(history, scale="log"))
    root = page.locator(ROOT)
    expect(root).to_have_attribute("data-scale", "log")
    faint = """(root) => {
      const canvas = root.querySelector(".tpunb-curves-plot canvas");
      const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
      copy.drawImage(canvas, 0, 0);
      const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
      let lowest = -1;
      let count = 0;
      for (let at = 3; at < data.length; at += 4) {
        // The tints of the two bands, one below the other.
        if (data[at] >= 0x2c && data[at] <= 0x5c) { count += 1; lowest = Math.floor(at / 4 / canvas.width); }
      }
      return [count, lowest / canvas.height];
    }"""
    screenshot(root)
    count, lowest = root.evaluate(faint)
    assert count > 10_000
    assert lowest > 0.7  # the plot's edge: the axis is below
    root.get_by_text("Spread", exact=True).click()
    page.evaluate(FRAMES)
    assert root.evaluate(faint)[0] < count / 10
