"""Training curves as text and as pictures."""

from __future__ import annotations

import io
import math
import sys
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image
from support.patience import calls
from support.tiers import thorough

from tpunb.display.describe.history_description import describe_history
from tpunb.display.draw.curves_png import curves_png
from tpunb.display.draw.curves_text import curves_text, last_values_text
from tpunb.display.draw.static_forms import mimebundle
from tpunb.display.widgets.curves import CurvesStream
from tpunb.training.curves_figure import CurvesLook
from tpunb.training.history import History
from tpunb.training.smoothing import smoothed

pytestmark = pytest.mark.oldest

HOSTILE = "$\\frac{ <img src=x onerror=alert(1)>\n\x00"
BLUE, ORANGE = (0, 0x72, 0xB2), (0xD5, 0x5E, 0)


def history(name: str = "", steps: int = 100, **values: Any) -> History:
    recorded = History(name)
    for step in range(1, steps + 1):
        recorded.append(step, values or {"loss": 1 / step, "accuracy": 1 - 1 / step})
    recorded.finish()
    return recorded


def pixels(png: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(png)))


def count(png: bytes, colour: tuple[int, int, int]) -> int:
    picture = pixels(png).astype(int)
    near = np.abs(picture[..., :3] - colour).max(axis=2) < 8
    return int((near & (picture[..., 3] > 100)).sum())  # lines have soft edges


def test_last_values() -> None:
    assert last_values_text(describe_history(History())) == ""
    one = History()
    one.append(3, loss=0.25, val_loss=0.5)
    assert last_values_text(describe_history(one)) == "loss 0.25 · val_loss 0.5"
    other = History("b")
    other.append(1, loss=1.0)
    runs = last_values_text(describe_history([one, other])).splitlines()
    assert runs == ["run 1: loss 0.25 · val_loss 0.5", "b: loss 1"]
    many = history(steps=1, **{f"metric{number}": 1 for number in range(20)})
    assert last_values_text(describe_history(many)).endswith("metric7 1 · and 4 more")


def test_text() -> None:
    assert curves_text(describe_history(History())) == "Training curves"
    first = history()
    assert curves_text(describe_history(first)) == "Training curves · loss, accuracy · 100 steps"
    runs = describe_history([first, history("b", 1, loss=1)])
    assert curves_text(runs) == "Training curves · 2 runs: run 1, b · loss, accuracy · 100 steps"
    runs = describe_history([first, first], names=["lr 0.1", "run 2"])
    assert curves_text(runs).startswith("Training curves · 2 runs: lr 0.1, run 2 · loss")
    unnamed = describe_history([first, first], names=["", ""])
    assert curves_text(unnamed).startswith("Training curves · 2 runs · loss")
    many = history(steps=1, **{f"metric{number}": 1 for number in range(20)})
    assert curves_text(describe_history(many)).endswith("metric7 and 12 more · 1 step")


def test_the_text_is_a_single_line() -> None:
    text = curves_text(describe_history(history(steps=2, **{HOSTILE: 1.0, "x" * 500: 1.0})))
    assert text.isprintable()
    assert len(text) < 200


def test_notes() -> None:
    """Each note is below the title once: in the text, in the picture, and on the page."""
    with_note, plain = history(), describe_history(history())
    with_note.notes = {"outside-scope": "It runs on one CPU. " * 20}
    description = describe_history([with_note, with_note])
    assert curves_text(description).splitlines()[1:] == ["Note: " + "It runs on one CPU. " * 20]
    drawn = curves_png(describe_history(with_note))
    assert pixels(drawn).shape[0] > pixels(curves_png(plain)).shape[0]
    stream = CurvesStream([with_note], None, paced=True)
    assert stream.delta()[0]["notes"] == ("It runs on one CPU. " * 20,)


def test_the_text_has_no_values() -> None:
    first, second = history(loss=0.5), history(loss=math.nan)
    assert curves_text(describe_history(first)) == curves_text(describe_history(second))


def test_steps_count_from_0_or_1() -> None:
    counted = History()
    for step in range(500):
        counted.append(step, loss=1.0)
    assert curves_text(describe_history(counted)) == "Training curves · loss · 500 steps"


def test_the_same_curves_give_the_same_picture() -> None:
    first = curves_png(describe_history(history()))
    with mpl.rc_context(
        {"lines.linewidth": 9, "axes.facecolor": "red", "font.size": 30, "axes.grid": False}
    ):
        assert curves_png(describe_history(history())) == first
    assert curves_png(describe_history(history(steps=99))) != first


def test_drawing_does_not_change_matplotlibs_settings() -> None:
    before = dict(mpl.rcParams)
    curves_png(describe_history(history()))
    assert dict(mpl.rcParams) == before


def test_validation_shares_a_panel() -> None:
    recorded = history(loss=1.0)
    assert count(curves_png(describe_history(recorded)), ORANGE) == 0
    recorded.append(100, val_loss=2.0)
    recorded.append(200, val_loss=1.0)
    png = curves_png(describe_history(recorded))
    assert count(png, BLUE) > 20
    assert count(png, ORANGE) > 20
    assert pixels(png).shape[1] == 560


@pytest.mark.parametrize(
    ("scale", "smoothing"), [("log", 90), *thorough([("linear", 0), ("linear", 90), ("log", 0)])]
)
def test_all_logged_values_can_be_drawn(scale: str, smoothing: int) -> None:
    recorded = History(HOSTILE)
    for step in range(50):
        recorded.append(
            step,
            {HOSTILE: step - 25.0, "never": math.nan, "zero": 0, "huge": 1e300, "inf": math.inf},
        )
        recorded.append(
            step, replicas=[step - 1.0, step + 1.0], mixed=math.nan if step > 9 else 1.0
        )
    recorded.append(50, once=1.0)
    png = curves_png(describe_history([recorded, History()]), CurvesLook(scale, smoothing))
    assert count(png, BLUE) > 20


def test_panels_are_below_each_other() -> None:
    first = pixels(curves_png(describe_history(history(loss=1.0))))
    three = pixels(curves_png(describe_history(history(loss=1.0, a=1.0, b=1.0))))
    assert three.shape[1] == first.shape[1]
    assert three.shape[0] > 2 * first.shape[0]


def test_runs_have_the_same_colour_in_all_panels() -> None:
    second = history("b", lr=1.0)
    assert count(curves_png(describe_history(second)), BLUE) > 20
    assert count(curves_png(describe_history([history("a", loss=1.0), second])), ORANGE) > 20


def test_without_matplotlib_the_display_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    bundle = mimebundle(describe_history(history()))
    assert set(bundle) == {"text/plain"}
    first, note = str(bundle["text/plain"]).splitlines()
    assert first == "Training curves · loss, accuracy · 100 steps"
    assert "No picture: " in note
    assert note.endswith("Run: pip install matplotlib")


def test_spread() -> None:
    recorded = History()
    for step in range(20):
        recorded.append(step, loss=[1.0, 3.0])
    with_spread = curves_png(describe_history(recorded))
    without_spread = curves_png(describe_history(recorded), CurvesLook(spread=False))
    # The spread fills half of the panel with a tint of the line's colour.
    tinted = (pixels(with_spread) != pixels(without_spread)).any(axis=2).sum()
    assert tinted > 10_000


def test_an_empty_history() -> None:
    assert pixels(curves_png(describe_history(History()))).shape[1] == 560


def test_a_long_line_keeps_its_extremes_and_gaps() -> None:
    values = np.sin(np.arange(100_001) / 50.0)
    values[33_333], values[44_444], values[60_000:70_000] = 9.0, -9.0, np.nan
    recorded = History()
    recorded.extend("loss", np.arange(100_001), values)
    line, *_ = recorded.plot().axes[0].lines
    steps, drawn = line.get_data()
    assert len(steps) < 5_000
    assert {0, 33_333, 44_444, 100_000} <= set(steps)
    assert np.isnan(drawn[(steps > 60_100) & (steps < 69_900)]).all()
    assert (np.diff(steps) > 0).all()


def test_a_long_line_is_drawn_with_few_points() -> None:
    recorded = History()
    for step in range(100_000):
        recorded.append(step, loss=step % 7)
    description = describe_history(recorded)
    curves_png(description)
    assert calls(lambda: curves_png(description, CurvesLook(smoothing=50))) < 1_000_000


def test_smoothing() -> None:
    steps = np.arange(201)
    noise = np.where(steps % 2, 1.0, -1.0)
    assert np.abs(smoothed(steps, noise, 0.9)[50:]).max() < 0.2
    with_nan = noise.copy()
    with_nan[100] = np.nan
    result = smoothed(steps, with_nan, 0.9)
    assert np.isnan(result[100])
    assert np.isfinite(np.delete(result, 100)).all()
    # A few distant values hardly change.
    few = np.array([1.0, 0.0, 1.0])
    assert smoothed(np.array([0, 100, 200]), few, 0.9) == pytest.approx(few, abs=1e-4)
