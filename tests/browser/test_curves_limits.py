"""Curves of very many metrics, and of numbers at the limits of a float."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect
from support.tiers import THOROUGH

from tpunb.display.widgets.curves import CurvesWidget
from tpunb.training.history import History

pytestmark = THOROUGH

ROOT = "[data-testid=tpunb-curves]"


def test_many_metrics(host: Any, page: Any) -> None:
    history = History()
    for step in range(3):
        history.append(step, {f"m{number}": float(step) for number in range(10_000)})
    history.finish()
    host(lambda: CurvesWidget(history))
    root = page.locator(ROOT)
    expect(root).to_have_attribute("data-panels", "12")
    expect(root.locator(".tpunb-curves-status")).to_contain_text("12 of 10,000 metrics")


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_the_limits_of_a_float(scale: str, host: Any, page: Any) -> None:
    history = History()
    for step, value in enumerate([1e308, -1e308, 5e-324, 3.0]):
        history.append(step, loss=value)
    history.finish()
    host(lambda: CurvesWidget(history, scale=scale))
    root = page.locator(ROOT)
    expect(root).to_have_attribute("data-panels", "1")
    # The drawing has some ink in the first line's colour, wherever it is.
    painted = """(canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let ink = 0;
      for (let at = 0; at < data.length; at += 4) {
        const [red, green, blue, alpha] = data.slice(at, at + 4);
        if (alpha > 100 && Math.max(red, green, blue) - Math.min(red, green, blue) > 90) ink += 1;
      }
      return ink;
    }"""
    page.wait_for_function(f"({painted})(document.querySelector('{ROOT} canvas')) > 50")
