"""A Pod of local workers in JupyterLab: its start, its display, and its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from counterparts.children import WITHOUT_KERAS
from jupyter import Book
from playwright.sync_api import expect
from support.tiers import THOROUGH

pytestmark = THOROUGH

CONNECT = f"""\
{WITHOUT_KERAS}%load_ext tpunb
connection = %tpu_connect --simulate 4 --local-workers 2 --timeout 120
connection"""
KILL = "import os\nos.kill(connection.pod.local.process_ids[1], 9)"


@pytest.mark.parametrize("book", ["lab"], indirect=True)
def test_a_pod(book: Callable[..., Book], page: Any, screenshot: Any) -> None:
    opened = book(CONNECT, KILL, "%%tpu_run\nreplica_id", "%tpu_doctor", run=False)
    opened.run_all(wait=False)
    expect(page.get_by_text("starting 2 workers on this machine")).to_be_visible()
    expect(page.get_by_text("Its hosts are 2 workers on this machine")).to_be_visible()
    expect(page.get_by_text("Connected.", exact=True)).to_be_visible()
    expect(page.locator('[data-testid="tpunb-topology"] .tpunb-cores path').first).to_be_visible()
    expect(page.get_by_text("gone, or restarted")).to_be_visible()
    screenshot(name="lost")
    opened.run_cell(3)  # the error has ended "run all"
    expect(page.get_by_text("TPU doctor")).to_be_visible()
    screenshot(name="doctor")
