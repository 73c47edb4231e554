"""Notebooks as files: read with a clear error, and written completely or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpunb._util.atomic_files import write_file
from tpunb.errors import TpunbError

STUDENT = "TPUNB_STUDENT"
"""The variable with the student's notebook that the checks of a kernel grade."""


class NotebookError(TpunbError):
    """The error of a notebook that cannot be read, or of a missing package to execute it."""


def read_notebook(path: Path) -> Any:
    """Return a notebook in the newest format, ready to be executed and written.

    Raises:
        NotebookError: The file cannot be read, or it is not a valid notebook.
    """
    import nbformat

    try:
        text = path.read_text(encoding="utf-8")
        fault = _fault(json.loads(text))
        if fault is None:
            notebook = nbformat.reads(text, as_version=4)
            for cell in notebook.cells:
                if cell.cell_type == "code":  # Jupyter also runs code cells without outputs
                    cell.setdefault("outputs", [])
            fault = _fault(notebook)
            # Report the error now, not after an hour of training.
            nbformat.v4.writes(notebook)
    except OSError as error:
        raise NotebookError(f"Cannot read {path}: {error.strerror}.") from error
    except Exception as error:  # JSON, Unicode and nbformat's versions raise many types
        raise NotebookError(
            f"{path} is not a Jupyter notebook ({type(error).__name__}).",
            fix="Give the path of an .ipynb file.",
        ) from error
    if fault is not None:
        raise NotebookError(
            f"{path} is not a valid Jupyter notebook: {fault}.",
            fix="Save it again in Jupyter, or correct the file.",
        )
    return notebook


def code_cells(notebook: Any) -> list[str]:
    """Return the sources of a notebook's code cells."""
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def write_notebook(notebook: Any, path: str | os.PathLike[str]) -> None:
    """Write a notebook; if writing fails, an existing file stays as it was.

    Raises:
        NotebookError: The notebook cannot be written.
    """
    import nbformat

    text = nbformat.writes(notebook).rstrip("\n") + "\n"
    # Programs can print half a surrogate pair, which is not valid UTF-8. JSON has the same escape.
    data = text.encode("utf-8", "backslashreplace")
    try:
        write_file(path, data)
    except OSError as error:
        raise NotebookError(f"Cannot write {path}: {error.strerror}.") from error


def _fault(notebook: Any) -> str | None:
    """Return the part of a notebook that cannot be executed; None if there is none.

    This check is less strict than the format's schema, because Jupyter also runs notebooks with
    additional keys.
    """
    if not isinstance(notebook, Mapping):
        return "it is not a JSON object"
    if notebook.get("nbformat", 0) != 4:
        return None  # nbformat converts older formats, and knows newer ones
    metadata = notebook.get("metadata")
    if not isinstance(metadata, Mapping):
        return "its metadata is not a JSON object"
    kernel = metadata.get("kernelspec", {})
    if not isinstance(kernel, Mapping) or not isinstance(kernel.get("name", ""), str):
        return "its kernelspec is not valid"
    if not isinstance(metadata.get("language_info", {}), Mapping):
        return "its language_info is not a JSON object"
    cells = notebook.get("cells")
    if not isinstance(cells, list):
        return "it has no list of cells"
    faults = (
        f"{fault} of cell {i} of {len(cells)}"
        for i, cell in enumerate(cells, 1)
        if (fault := _cell_fault(cell))
    )
    return next(faults, None)


def _cell_fault(cell: Any) -> str:
    """Return the fault of a cell; empty if there is none."""
    if not isinstance(cell, Mapping):
        return "the JSON object"
    source, metadata = cell.get("source"), cell.get("metadata")
    if not isinstance(source, str) and not _is_list_of(source, str):
        return "the source"
    if not isinstance(metadata, Mapping) or not _is_list_of(metadata.get("tags", []), str):
        return "the metadata"
    if cell.get("cell_type") not in ("code", "markdown", "raw"):
        return "the cell_type"
    if cell["cell_type"] == "code" and not _is_list_of(cell.get("outputs", []), Mapping):
        return "the list of outputs"
    return ""


def _is_list_of(value: Any, kind: type[Any]) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)
