"""Notebooks run on other TPU types if only the type is changed.

All notebooks on all types take half an hour: set `TPUNB_TEST_ALL_TYPES=1` to run them.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from counterparts.children import python_path
from nbclient import NotebookClient
from support.patience import PATIENCE
from support.tiers import THOROUGH

from tpunb.compiler.ask import libtpu

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
COURSE = sorted(FOLDER.glob("course/solutions/*.ipynb"))
WITH_COMPILER = ("07_will_it_fit.ipynb", "08_from_tpustrategy_to_jax.ipynb")
CONNECTING = re.compile(r"^((?:\w+ = )?%tpu_connect)(?: --simulate \S+)?", re.MULTILINE)

TYPES = ("v5e-1", "v6e-1", "v5e-4", "v2-8", "v3-32")
"""One core, as in Colab; fewer cores than in most notebooks; other chips; several hosts."""

CHEAP = [("00_quickstart.ipynb", "v5e-1"), ("03_displays.ipynb", "v4-16")]
ALL = itertools.product((path.name for path in NOTEBOOKS), TYPES)
PAIRS = list(ALL) if os.environ.get("TPUNB_TEST_ALL_TYPES") else CHEAP

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


def connected_to(tpu: str, source: str) -> str:
    """Return a cell's source, connected to this type instead."""
    return CONNECTING.sub(rf"\1 --simulate {tpu}", source)


@pytest.fixture
def execute(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], list[Any]]:
    """Execute a notebook on a TPU type, without settings of the tests, and return its outputs."""
    monkeypatch.setenv("PYTHONPATH", python_path(ROOT))
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    # Show no widgets, as with `tpunb run`.
    monkeypatch.setenv("TPUNB_WIDGETS", "never")

    def run(path: Path, tpu: str) -> list[Any]:
        book = nbformat.read(path, as_version=4)
        code = [cell for cell in book.cells if cell.cell_type == "code"]
        before = [cell.source for cell in code]
        for cell in code:
            cell.source = connected_to(tpu, cell.source)
        assert before != [cell.source for cell in code]
        resources = {"metadata": {"path": str(path.parent)}}
        NotebookClient(book, timeout=PATIENCE, kernel_name="python3", resources=resources).execute()
        outputs = [output for cell in code for output in cell.outputs]
        assert not [output.text for output in outputs if output.get("name") == "stderr"]
        return outputs

    return run


@THOROUGH
@pytest.mark.parametrize(("name", "tpu"), PAIRS)
def test_runs_with_one_argument_changed(
    name: str, tpu: str, execute: Callable[[Path, str], list[Any]]
) -> None:
    if name in WITH_COMPILER and (reason := libtpu.why_unavailable()):
        pytest.skip(str(reason).splitlines()[0])
    outputs = execute(FOLDER / name, tpu)
    if name == "00_quickstart.ipynb" and tpu == "v5e-1":
        printed = [output.text for output in outputs if output.output_type == "stream"]
        results = "".join(printed).splitlines()
        assert len(results) == 3
        assert all(line.endswith(": True") for line in results), results


@pytest.mark.parametrize("path", [*NOTEBOOKS, *COURSE], ids=lambda path: path.name)
def test_loading_comes_before_tensorflow(path: Path) -> None:
    """Otherwise TensorFlow's log shows, and no error names a libtpu that does not fit."""
    book = nbformat.read(path, as_version=4)
    source = "\n".join(cell.source for cell in book.cells if cell.cell_type == "code")
    first = re.search(r"^(?:import|from) (?:tensorflow|keras)\b", source, re.MULTILINE)
    assert first is None or source.index("%load_ext tpunb") < first.start()
