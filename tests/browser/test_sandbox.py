"""Widgets in a sandboxed page, like a notebook's outputs in VS Code.

The frame has its own origin. With `notebook.experimental.enableCsp`, it also has the policy below;
`blob:` is added because anywidget imports every widget's module from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hosting import HERE, Hosted
from playwright.sync_api import expect
from support.gallery import waves, without_timer
from support.tiers import THOROUGH
from test_replicas import distributed, widget_of

import tpunb
from tpunb.display.describe.topology_description import describe_accelerator
from tpunb.display.widgets.curves import CurvesWidget
from tpunb.display.widgets.topology import TopologyWidget

pytestmark = [THOROUGH, pytest.mark.usefixtures("distributed")]
__all__ = ["distributed"]

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'unsafe-inline'; img-src https: http: data:; font-src https:; connect-src https:; "
    "child-src https: data:"
)
OPEN = """source => {
  const frame = document.createElement("iframe");
  frame.name = "output";
  frame.setAttribute("sandbox", "allow-scripts");
  frame.style.cssText = "width: 100%; height: 800px; border: 0";
  frame.srcdoc = source;
  document.body.append(frame);
}"""


@pytest.fixture
def sandboxed(page: Any, host: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that shows a widget in a frame that may only run scripts."""
    script = (HERE / "host.js").read_text(encoding="utf-8")
    source = (HERE / "host.html").read_text(encoding="utf-8")
    source = source.replace('<script src="host.js"></script>', f"<script>{script}</script>")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    page.evaluate(OPEN, source.replace("<title>", f"{policy}<title>"))
    frame = page.wait_for_selector("iframe").content_frame()
    frame.wait_for_function("'mount' in window")
    assert frame.evaluate("window.origin") == "null"

    def show(make: Callable[[], Any]) -> Any:
        hosted = Hosted(frame, make(), "sandboxed")
        page.received = hosted.inbox.append
        hosted.mount()
        return hosted, frame

    return show


def test_topology(sandboxed: Any, screenshot: Any) -> None:
    topology = describe_accelerator(tpunb.accelerator("v4-32"))
    hosted, frame = sandboxed(lambda: TopologyWidget(topology))
    root = frame.locator('[data-testid="tpunb-topology"]')
    expect(root).to_have_attribute("data-chips", "16")
    root.locator(".tpunb-mesh").click()
    hosted.deliver()
    screenshot()


def test_curves(sandboxed: Any, screenshot: Any) -> None:
    history = tpunb.History("run")
    hosted, frame = sandboxed(lambda: without_timer(CurvesWidget(history)))
    for step in range(200):
        history.append(step, loss=1 / (1 + step))
    hosted.widget._flush()
    root = frame.locator('[data-testid="tpunb-curves"]')
    expect(root).to_have_attribute("data-points", "200")
    screenshot()


def test_values(sandboxed: Any, screenshot: Any) -> None:
    _, frame = sandboxed(widget_of(*map(waves, range(8))))
    root = frame.locator('[data-testid="tpunb-replicas"]')
    expect(root).to_have_attribute("data-replicas", "8")
    screenshot()
