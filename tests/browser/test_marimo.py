"""In marimo, users call functions: the page shows what they return, live."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from counterparts.children import environment
from counterparts.workers import free_port
from playwright.sync_api import Error, expect
from support.patience import wait_until
from support.tiers import THOROUGH

# Other test runs should not wait a second for importing marimo.
if importlib.util.find_spec("marimo") is None:
    pytest.skip("marimo is not installed", allow_module_level=True)

CELLS = (
    "import tpunb\nconnection = tpunb.connect(simulate='v3-8')\nconnection",
    """\
import tensorflow as tf

def step():
    replica = tf.distribute.get_replica_context()
    number = tf.cast(replica.replica_id_in_sync_group, tf.float32)
    return {"number": number, "total": replica.all_reduce("SUM", number)}

result = connection.run(step, steps=5, plot="total")
tpunb.show(result.value)""",
    "tpunb.show(result.history)",
    "tpunb.show(connection)",
    """\
import keras
import time
from pathlib import Path

def wait(epoch, logs):
    while not Path("{go}").exists():
        time.sleep(0.1)

with connection.strategy.scope():
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
rows = tf.ones([16, 1])
waiting = keras.callbacks.LambdaCallback(on_epoch_end=wait)
model.fit(rows, rows, batch_size=8, epochs=2, verbose=0, callbacks=[tpunb.LiveCurves(), waiting])
None""",
    "tpunb.explain('RuntimeError: TPU is already in use by process with pid 12')",
)


def app(folder: Path) -> Path:
    """Write a marimo notebook with these cells."""
    import marimo

    go = str(folder / "go")
    cells = "".join(f"@app.cell\n{_function(cell.replace('{go}', go))}\n" for cell in CELLS)
    path = folder / "app.py"
    path.write_text(
        f"import marimo\n__generated_with = '{marimo.__version__}'\napp = marimo.App()\n{cells}"
    )
    return path


def _function(cell: str) -> str:
    lines = "\n".join(f"    {line}" for line in cell.splitlines())
    return f"def _():\n{lines}\n"


@contextmanager
def served(path: Path, log: Path) -> Iterator[tuple[str, Any]]:
    """Serve the app, and yield its address and its process."""
    port = free_port()
    options = ["--headless", "--no-token", "--port", str(port)]
    with (
        log.open("w") as out,
        subprocess.Popen(
            [sys.executable, "-m", "marimo", "run", str(path), *options],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment(),
        ) as process,
    ):
        try:
            yield f"http://127.0.0.1:{port}/", process
        finally:
            process.terminate()


def answers(page: Any, address: str) -> bool:
    """Open the page, and return whether it answered."""
    try:
        page.goto(address)
    except Error:
        return False
    return True


@THOROUGH
def test_results_of_functions_are_shown(page: Any, tmp_path: Path, screenshot: Any) -> None:
    log = tmp_path / "log"
    with served(app(tmp_path), log) as (address, process):
        wait_until(lambda: answers(page, address) or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        expect(page.get_by_text("virtual TPU v3-8").first).to_be_visible()
        curves = page.locator('[data-testid="tpunb-curves"]')
        # The curves are live while the second epoch waits.
        expect(curves).to_have_count(2)
        expect(curves.last).to_have_attribute("data-points", "2")
        screenshot(curves.last, name="training")
        (tmp_path / "go").touch()
        expect(curves.last).to_have_attribute("data-points", "4")
        for name in ("replicas", "curves", "topology"):
            widget = page.locator(f'[data-testid="tpunb-{name}"]')
            expect(widget).to_have_count(2 if name == "curves" else 1)
            expect(widget.last).to_be_visible()
        topology = page.locator('[data-testid="tpunb-topology"]')
        expect(topology).to_have_attribute("data-cores", "8")
        values = page.locator('[data-testid="tpunb-replicas"]')
        expect(values).not_to_contain_text("28")
        values.get_by_label("Show", exact=True).select_option("sum")
        expect(values).to_contain_text("28")
        expect(page.get_by_text("Known error 9").first).to_be_visible()
        screenshot()
        # Nothing is printed in addition to the displays.
        expect(page.get_by_text("Training curves")).to_have_count(1)
    assert page.watch.foreign == []
    assert [text for text in page.watch.complaints if "tpunb" in text.lower()] == []
