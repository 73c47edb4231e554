"""The displays in Notebook 6, whose page and ipywidgets 7 Colab also uses.

`make test-tpu-wheel` runs this test with Colab's versions; with a newer Notebook it is skipped.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import nbformat
import pytest
from counterparts.children import environment
from jupyter import address
from playwright.sync_api import expect
from support.patience import PATIENCE

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.skipif(not metadata.version("notebook").startswith("6."), reason="no Notebook 6"),
]

CELLS = (
    "%load_ext tpunb\nimport tensorflow as tf, tpunb",
    "%tpu_connect --simulate v5e-8",
    "%%tpu_run\ntf.random.stateless_normal([20, 20], [replica_id, 1])",
    """\
import itertools, pathlib, time
history = tpunb.History("run")
curves = tpunb.show(history)
for step in itertools.takewhile(lambda _: not pathlib.Path("enough").exists(), itertools.count()):
    history.append(step, loss=1 / (1 + step))
    time.sleep(0.02)""",
    "from support import programs\ntpunb.show(programs.FITS);",
    "history.finish()\ncurves.freeze()",
)
OPTIONS = ("--ip=127.0.0.1", "--NotebookApp.token=", "--NotebookApp.password=")
LOADED = """\
window.Jupyter?.notebook?._fully_loaded && Jupyter.notebook.kernel?.is_connected()
  && Jupyter.notebook.kernel.comm_manager.targets['jupyter.widget'] !== undefined"""
DONE = "(n) => !isNaN(parseInt(Jupyter.notebook.get_cell(n).input_prompt_number))"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Serve a notebook of the cells with Notebook 6."""
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(
        nbformat.v4.new_notebook(cells=cells, metadata=kernel), tmp_path / "displays.ipynb"
    )
    folders = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    variables = {name: str(tmp_path / name) for name in folders}
    # Kernels do not recognise this server, although they recognise Colab.
    variables["TPUNB_WIDGETS"] = "always"
    # The server takes the next port if another process takes this one.
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    command = [sys.executable, "-m", "notebook", "--allow-root", "--no-browser", *OPTIONS]
    with (
        subprocess.Popen(
            [*command, f"--port={port}", f"--notebook-dir={tmp_path}"],
            env={**environment(), **variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process,
        (tmp_path / "server.log").open("wb") as log,
    ):
        assert process.stderr is not None
        try:
            yield address(process.stderr, log)
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)


def test_all_displays(url: str, page: Any, tmp_path: Path, screenshot: Callable[..., Path]) -> None:
    page.goto(f"{url}/notebooks/displays.ipynb")
    page.wait_for_function(LOADED)
    for number in (0, 1, 2):
        run(page, number)
    select_a_core(page)
    run(page, 3, wait=False)
    curves = widget(page, "curves")
    curves.scroll_into_view_if_needed()
    expect(curves).to_have_attribute("data-state", "running")
    expect(curves).not_to_have_attribute("data-points", "0")  # while the cell runs
    screenshot(name="curves")
    (tmp_path / "enough").touch()
    page.wait_for_function(DONE, arg=3)
    run(page, 4)
    expect(widget(page, "programs")).to_be_visible()
    for name in ("topology", "replicas", "programs"):
        widget(page, name).scroll_into_view_if_needed()
        screenshot(name=name)
    run(page, 5)
    expect(curves).to_have_count(0)
    expect(page.locator(".cell").nth(3).locator(".output img")).to_have_count(1)
    expect(page.locator(".output_error, .output_stderr")).to_have_count(0)
    assert page.watch.foreign == []
    assert [text for text in page.watch.complaints if "tpunb" in text.lower()] == []


def widget(page: Any, name: str) -> Any:
    return page.locator(f'[data-testid="tpunb-{name}"]')


def run(page: Any, number: int, *, wait: bool = True) -> None:
    page.evaluate("(n) => Jupyter.notebook.execute_cells([n])", number)
    if wait:
        page.wait_for_function(DONE, arg=number)


def select_a_core(page: Any) -> None:
    """Select a core: a selection in one display appears in the other."""
    expect(widget(page, "topology")).to_have_attribute("data-replicas", "8")
    expect(widget(page, "replicas")).to_have_attribute("data-replicas", "8")
    widget(page, "topology").locator("[data-part]").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    for name in ("topology", "replicas"):
        expect(widget(page, name)).to_have_attribute("data-selected", "1")
