"""Lessons 4 and 5 run without the compiler: the folder `recorded` has its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from counterparts.children import python_path
from nbclient import NotebookClient
from support.patience import PATIENCE
from support.tiers import THOROUGH

ROOT = Path(__file__).parents[1]
SOLUTIONS = ROOT / "notebooks" / "course" / "solutions"
LESSONS = [*SOLUTIONS.glob("4_*.ipynb"), *SOLUTIONS.glob("5_*.ipynb")]

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


def texts(cell: Any) -> list[str]:
    outputs = [output.get("data", {}) for output in cell.get("outputs", [])]
    return [output["text/plain"] for output in outputs if "text/plain" in output]


@THOROUGH
@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.name)
def test_a_lesson_runs_without_the_compiler(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In an empty folder, as where a badge opens the lesson."""
    monkeypatch.setenv("TPUNB_COMPILER_PYTHON", "/does/not/exist")
    monkeypatch.delenv("TPUNB_RECORDED", raising=False)
    monkeypatch.setenv("PYTHONPATH", python_path(ROOT))
    monkeypatch.setenv("TPUNB_WIDGETS", "never")
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=PATIENCE, kernel_name="python3", resources=resources)
    executed = client.execute()  # raises the first error of a cell
    assert any("(recorded)" in text for cell in executed.cells for text in texts(cell))
