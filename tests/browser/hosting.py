"""Run a widget in Chromium without Jupyter: `Hosted` passes its messages."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import comm

HERE = Path(__file__).parent
SCREENSHOTS = HERE.parents[1] / "build" / "screenshots"


FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Waits until the page has drawn a frame after the last change."""


def darken(page: Any) -> None:
    page.evaluate("document.body.classList.add('dark')")
    page.evaluate(FRAMES)


class FakeComm(comm.base_comm.BaseComm):
    """Pass a widget's messages to the page."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.hosted: Hosted | None = None
        super().__init__(*args, **kwargs)

    def publish_msg(
        self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **_: Any
    ) -> None:
        if self.hosted is not None and msg_type == "comm_msg":
            self.hosted.forward(data, buffers or [])


class Hosted:
    """A widget of ours on a page of Chromium.

    Messages from the page are kept until `deliver` passes them to the widget, as a kernel does when
    it is idle.
    """

    def __init__(self, page: Any, widget: Any, name: str) -> None:
        self.page, self.widget, self.name = page, widget, name
        self.inbox: list[dict[str, Any]] = []

    def mount(self) -> None:
        state, _, _ = _separated(self.widget.get_state())
        buffers = {
            name: base64.b64encode(bytes(value)).decode()
            for name, value in self.widget.get_state().items()
            if isinstance(value, bytes | memoryview | bytearray)
        }
        self.widget.comm.hosted = self
        encoded = json.loads(json.dumps(state, default=str))
        self.page.evaluate(
            "([id, state, buffers]) => mount(id, state, buffers)", [self.name, encoded, buffers]
        )

    def forward(self, data: dict[str, Any], buffers: list[Any]) -> None:
        encoded = [base64.b64encode(bytes(part)).decode() for part in buffers]
        if data["method"] in ("update", "echo_update"):
            if data["method"] == "echo_update":
                return
            named = {
                path[0]: part for path, part in zip(data["buffer_paths"], encoded, strict=True)
            }
            state = {**data["state"], **dict.fromkeys(named)}
            script = "([id, state, named]) => widgets[id].model.update(state, named)"
            self.page.evaluate(
                script, [self.name, json.loads(json.dumps(state, default=str)), named]
            )
        elif data["method"] == "custom":
            script = "([id, content, buffers]) => widgets[id].model.receive(content, buffers)"
            self.page.evaluate(script, [self.name, data["content"], encoded])

    def deliver(self) -> None:
        """Pass the page's new messages to the widget."""
        while self.inbox:
            message = self.inbox.pop(0)
            if "state" in message:
                self.widget.set_state(message["state"])
            else:
                self.widget._handle_custom_msg(message["content"], [])


def _separated(state: dict[str, Any]) -> tuple[dict[str, Any], list[Any], list[Any]]:
    from ipywidgets.widgets.widget import _remove_buffers

    return _remove_buffers(state)  # type: ignore[no-any-return]
