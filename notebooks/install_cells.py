"""Give each notebook its first code cell: `python notebooks/install_cells.py`.

The cell installs what the notebook needs on Colab, Kaggle and Binder, and does nothing elsewhere.
It installs tpunb from the repository, as the notebook that a badge opens is the repository's. So it
works the same before and after a release. Afterwards, run `course/make_exercises.py`, which makes
the exercises from the solutions.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat

FOLDER = Path(__file__).parent

ALONE = "10_verify_a_real_tpu.ipynb"
"""The notebook with a single cell, which also installs what it needs."""

IDENTITY = "install"
"""The id of the cell."""

INSTALL = '%pip install -q "tpunb @ git+https://github.com/tpunb/tpunb"'
"""The line for Colab and Kaggle that README, pages and notebooks share."""

INSTALL_FOR_TPU = INSTALL.replace("tpunb @", "tpunb[tpu] @")
"""The line that also installs TensorFlow for TPUs, where the runtime has no TensorFlow."""

_BEGIN = f"""\
# On Colab, Kaggle and Binder, install what this notebook needs. Elsewhere, this does nothing.
import os
from importlib.util import find_spec

if {{"COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE", "BINDER_LAUNCH_HOST"}} & {{*os.environ}}:
    if find_spec("tpunb") is None:
        {INSTALL}"""
_TENSORFLOW = f"""
    if find_spec("tensorflow") is None:
        {INSTALL_FOR_TPU}"""
_COMPILER = """
    !tpunb compiler status > /dev/null 2>&1 || tpunb compiler install"""

_ASKS_COMPILER = re.compile(
    r"%tpu_compile|tpunb\.(compile|largest_batch|load_program|puzzles)\b|--framework jax"
)


def notebooks() -> list[Path]:
    """Return all notebooks but exercises with solutions, the one that we found, and `ALONE`."""
    every = (
        path
        for path in FOLDER.rglob("*.ipynb")
        if path.parent.name != "found" and path.name != ALONE
    )
    return sorted(path for path in every if not (path.parent / "solutions" / path.name).exists())


def cell_of(notebook: Any) -> str:
    """Return the source of a notebook's first code cell."""
    code = "\n".join(
        cell.source
        for cell in notebook.cells
        if cell.cell_type == "code" and cell.get("id") != IDENTITY
    )
    without_tensorflow = "--framework jax" in code and "import tensorflow" not in code
    tensorflow = "" if without_tensorflow else _TENSORFLOW
    compiler = _COMPILER if _ASKS_COMPILER.search(code) else ""
    return _BEGIN + tensorflow + compiler


def installs_by_itself(notebook: Any) -> bool:
    """Return whether a notebook has one code cell, which installs what it needs."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return len(code) == 1 and INSTALL in code[0].source


def with_cell(notebook: Any) -> Any:
    """Put the cell before the notebook's other code cells, and count the executions anew."""
    if installs_by_itself(notebook):
        return notebook
    cells = [cell for cell in notebook.cells if cell.get("id") != IDENTITY]
    first = next(place for place, cell in enumerate(cells) if cell.cell_type == "code")
    was_executed = any(cell.get("execution_count") for cell in cells)
    cell = nbformat.v4.new_code_cell(cell_of(notebook), id=IDENTITY)
    notebook.cells = [*cells[:first], cell, *cells[first:]]
    if was_executed:
        _number(notebook)
    return notebook


def _number(notebook: Any) -> None:
    """Number the executed code cells, and their results, from 1."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    for number, cell in enumerate(code, 1):
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number


def main() -> None:
    """Write each notebook that changes."""
    for path in notebooks():
        before = path.read_text(encoding="utf-8")
        notebook = with_cell(nbformat.reads(before, as_version=nbformat.NO_CONVERT))
        after = nbformat.writes(notebook, version=nbformat.NO_CONVERT) + "\n"
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(path.relative_to(FOLDER))


if __name__ == "__main__":
    main()
