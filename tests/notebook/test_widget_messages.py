"""The messages that each widget exchanges between a real kernel and its page, with any ipywidgets.

Colab has ipywidgets 7.7.1: `make test-tpu-wheel` runs these tests with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from counterparts.children import environment
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from support.patience import PATIENCE

pytestmark = pytest.mark.oldest

VIEW = "application/vnd.jupyter.widget-view+json"
SETUP = """
import numpy as np, tpunb
from support import programs
from tpunb.display.describe import tensorflow_values

class PerReplica:
    values = (np.arange(6.0), np.arange(6.0) + 1.0)

tensorflow_values.distributed_components = lambda value: getattr(value, "values", None)
history = tpunb.History()
history.append(1, loss=2.0)
"""
SHOWN = {
    "TopologyWidget": "'v3-8'",
    "ReplicasWidget": "PerReplica()",
    "CurvesWidget": "history",
    "ProgramsWidget": "programs.FITS",
}
"""Values that `tpunb.show` displays, by widget."""


class Page:
    """A page that receives a kernel's messages and answers them."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client

    def run(self, code: str) -> list[dict[str, Any]]:
        """Run a cell, and return its messages: type and content."""
        return self._answers(self._client.execute(code))

    def say(self, comm: str, **data: Any) -> list[dict[str, Any]]:
        """Send a message to a widget's model, and return the answers."""
        message = self._client.session.msg("comm_msg", {"comm_id": comm, "data": data})
        self._client.shell_channel.send(message)
        return self._answers(message["header"]["msg_id"])

    def _answers(self, request: str) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        while True:
            message = self._client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = {"type": message["msg_type"], **message["content"]}
            if content.get("execution_state") == "idle":
                return answers
            assert content["type"] != "error", "\n".join(content["traceback"])
            answers.append({**content, "buffers": message["buffers"]})


def of_type(messages: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [message for message in messages if message["type"] == kind]


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    manager = KernelManager()
    manager.start_kernel(env={**environment(), "TPUNB_WIDGETS": "always"})
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE)
        page_with_setup = Page(client)
        page_with_setup.run(SETUP)
        yield page_with_setup
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("name", SHOWN)
def test_a_widget_and_its_page(page: Page, name: str) -> None:
    messages = page.run(f"widget = tpunb.show({SHOWN[name]})")
    opened = {
        message["comm_id"]: message["data"]["state"] for message in of_type(messages, "comm_open")
    }
    [shown] = of_type(messages, "display_data")
    comm = shown["data"][VIEW]["model_id"]
    assert opened[comm]["_model_module"] == "anywidget"
    assert "export default" in opened[comm]["_esm"]
    # The static output for pages without widgets.
    assert {"image/png", "text/html"} & set(shown["data"])
    assert shown["data"]["text/plain"]
    assert page.run(f"assert type(widget).__name__ == {name!r}") is not None

    page.say(comm, method="update", state={"selected": [1]}, buffer_paths=[])
    page.run("assert widget.selected == [1]")
    updates = of_type(page.run("widget.selected = [0]"), "comm_msg")
    assert {"selected": [0]} in [message["data"]["state"] for message in updates]

    [frozen] = of_type(page.run("widget.freeze()"), "update_display_data")
    assert VIEW not in frozen["data"]
    assert frozen["transient"] == shown["transient"]


def test_values_come_when_the_page_asks(page: Page) -> None:
    messages = page.run("tpunb.show(PerReplica())")
    [shown] = of_type(messages, "display_data")
    comm = shown["data"][VIEW]["model_id"]
    answers = page.say(comm, method="update", state={"mode": "sum"}, buffer_paths=[])
    states = [message["data"]["state"] for message in of_type(answers, "comm_msg")]
    [html] = [state["html"] for state in states if "html" in state]
    assert "1  3  5  7  9  11" in html
