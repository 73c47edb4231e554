"""Each notebook runs where a badge opens it: alone in an empty folder, with the wheel.

In exercises, which lack their answers, only the answers and their tests fail.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from counterparts.children import python_path
from nbclient import NotebookClient
from support.modules import loaded
from support.patience import PATIENCE
from support.tiers import THOROUGH
from support.wheel import build_wheel, unpack

from tpunb.compiler.ask import libtpu

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
conftest = loaded(NOTEBOOKS / "conftest.py")
OPENED = sorted(
    path
    for path in NOTEBOOKS.rglob("*.ipynb")
    if path.parent.name not in {"solutions", "found", ".ipynb_checkpoints"}
)
"""The notebooks with a badge: exercises, not their solutions, and not the one that somebody else wrote."""

NEED_COMPILER = {*conftest.WITH_COMPILER, *conftest.WITH_JAX, *conftest.ON_JAX}
KERNEL = "alone"

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an unpacked wheel."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    return unpack(build_wheel(folder), folder / "unpacked")


@pytest.fixture
def alone(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, from which programs find the wheel and no clone."""
    monkeypatch.setenv("PYTHONPATH", python_path(installed))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("TPUNB_WIDGETS", "never")
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def write_kernel(path: Path) -> None:
    """Write the kernel of a notebook, whose Python has the framework that the notebook needs."""
    python = sys.executable
    if path.name in conftest.ON_JAX and importlib.util.find_spec("jax") is None:
        python = os.environ.get(libtpu.PYTHON) or pytest.skip(f"{libtpu.PYTHON} is not set")
    folder = Path(os.environ["JUPYTER_PATH"], "kernels", KERNEL)
    folder.mkdir(parents=True)
    command = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (folder / "kernel.json").write_text(json.dumps({"argv": command, "display_name": KERNEL}))


def executed(path: Path, folder: Path) -> Any:
    """Return a notebook after running all its cells in a folder, even after cells that fail."""
    copy = shutil.copy(path, folder)
    notebook = nbformat.read(copy, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook, timeout=PATIENCE, kernel_name=KERNEL, resources=resources, allow_errors=True
    )
    return client.execute()


def errors(cell: Any) -> list[str]:
    outputs = cell.get("outputs", [])
    return [output.ename for output in outputs if output.output_type == "error"]


@THOROUGH
@pytest.mark.parametrize("path", OPENED, ids=lambda path: path.name)
def test_only_answers_and_their_tests_fail(path: Path, alone: Path) -> None:
    if path.name in NEED_COMPILER and (reason := libtpu.why_unavailable()):
        pytest.skip(str(reason).splitlines()[0])
    write_kernel(path)
    for cell in executed(path, alone).cells:
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
