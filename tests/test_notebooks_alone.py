"""The course's exercises run without answers: only the answers and their tests fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from counterparts.children import python_path
from nbclient import NotebookClient
from support.patience import PATIENCE
from support.tiers import THOROUGH

from tpunb.compiler import libtpu

ROOT = Path(__file__).parents[1]
EXERCISES = sorted((ROOT / "notebooks" / "course").glob("*.ipynb"))

FIRST_WITH_COMPILER = "3"
"""The first lesson that needs JAX or the TPU's compiler; both are missing or neither."""

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


def executed(path: Path) -> Any:
    """Return a notebook after running all its cells, even after cells that fail."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(
        notebook, timeout=PATIENCE, kernel_name="python3", resources=resources, allow_errors=True
    )
    return client.execute()


def errors(cell: Any) -> list[str]:
    outputs = cell.get("outputs", [])
    return [output.ename for output in outputs if output.output_type == "error"]


@THOROUGH
@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.name)
def test_only_answers_and_their_tests_fail(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.name >= FIRST_WITH_COMPILER and (reason := libtpu.why_unavailable()):
        pytest.skip(str(reason).splitlines()[0])
    monkeypatch.setenv("PYTHONPATH", python_path(ROOT))
    monkeypatch.setenv("TPUNB_WIDGETS", "never")
    for cell in executed(path).cells:
        marks = cell.metadata.get("nbgrader", {})
        if marks.get("grade"):
            # No test may give points without an answer. It says so, or a stub in a function raises.
            assert errors(cell) in (["AssertionError"], ["NotImplementedError"]), cell.source
        elif marks.get("solution"):
            # A stub in a function raises only when a test calls the function. A step without its
            # answer may not define a name that its magic needs.
            assert set(errors(cell)) <= {"NotImplementedError", "CellError"}, cell.source
        elif "raises-exception" not in cell.metadata.get("tags", []):
            assert errors(cell) == [], cell.source
