"""Write and read notebook files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat


def notebook(path: Path, *sources: str) -> Path:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    cells.insert(0, nbformat.v4.new_markdown_cell("# A title"))
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def outputs(path: Path) -> list[list[Any]]:
    read = nbformat.read(path, as_version=4)
    return [cell.outputs for cell in read.cells if cell.cell_type == "code"]
