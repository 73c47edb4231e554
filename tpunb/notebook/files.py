"""Notebooks as files: read with a clear error, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpunb._util.atomic_files import write_file
from tpunb.errors import TpunbError


class NotebookError(TpunbError):
    """A notebook that cannot be read, or nothing to execute it with."""


def read_notebook(path: Path) -> Any:
    """A notebook in the newest format, such as it can be executed and written.

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
                if cell.cell_type == "code":  # Jupyter runs those without outputs, too
                    cell.setdefault("outputs", [])
            fault = _fault(notebook)
            # Reported now, not after an hour of training.
            nbformat.v4.writes(notebook)
    except OSError as error:
        raise NotebookError(f"Cannot read {path}: {error.strerror}.") from error
    except Exception as error:  # whatever JSON, Unicode and nbformat's versions raise
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


def write_notebook(notebook: Any, path: str | os.PathLike[str]) -> None:
    """Writes a notebook; if that fails, a file that is there stays as it was.

    Raises:
        NotebookError: It cannot be written.
    """
    import nbformat

    text = nbformat.writes(notebook).rstrip("\n") + "\n"
    # Half of a surrogate pair, which programs can print, is no UTF-8: JSON escapes it so, too.
    data = text.encode("utf-8", "backslashreplace")
    try:
        write_file(path, data)
    except OSError as error:
        raise NotebookError(f"Cannot write {path}: {error.strerror}.") from error


def _fault(notebook: Any) -> str | None:
    """The part of a notebook that cannot be executed; None if there is none.

    Less strict than the format's schema: Jupyter runs notebooks with a key too many, too.
    """
    if not isinstance(notebook, Mapping):
        return "it is not a JSON object"
    if notebook.get("nbformat", 0) != 4:
        return None  # nbformat converts older ones, and knows newer ones
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
    """The fault of a cell; empty if there is none."""
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
