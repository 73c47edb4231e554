"""The quickstart runs on one replica, as Colab has it, with nothing changed but the type."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from support.patience import PATIENCE
from support.tiers import THOROUGH

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


@THOROUGH
def test_on_one_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    book = nbformat.read(ROOT / "notebooks" / "00_quickstart.ipynb", as_version=4)
    (connecting,) = [
        cell
        for cell in book.cells
        if "--simulate" in cell.source.splitlines()[0] and cell.cell_type == "code"
    ]
    connecting.source = connecting.source.replace("v3-8", "v5e-1")
    NotebookClient(book, timeout=PATIENCE, kernel_name="python3").execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    printed = [output for output in outputs if output.output_type == "stream"]
    assert {output.name for output in printed} == {"stdout"}
    results = [line for output in printed for line in output.text.splitlines()]
    assert len(results) == 3
    assert all(line.endswith(": True") for line in results), results


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_loading_comes_before_tensorflow(path: Path) -> None:
    """So that nothing of its log is seen, and a libtpu that does not fit is named."""
    book = nbformat.read(path, as_version=4)
    source = "\n".join(cell.source for cell in book.cells if cell.cell_type == "code")
    first = re.search(r"^(?:import|from) (?:tensorflow|keras)\b", source, re.MULTILINE)
    assert first is None or source.index("%load_ext tpunb") < first.start()
