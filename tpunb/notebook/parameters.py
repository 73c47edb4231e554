"""Parameters of a notebook, set from outside as papermill sets them."""

from __future__ import annotations

import ast
import keyword
import math
from collections.abc import Iterator, Mapping
from typing import Any

from tpunb.errors import did_you_mean
from tpunb.notebook.files import NotebookError

PARAMETERS = "parameters"
"""The tag of the cell that assigns the parameters' defaults."""

INJECTED = "injected-parameters"
"""The tag of the cell that assigns the values from outside."""

_WORDS = {"True": True, "False": False, "None": None}


def typed(text: str) -> Any:
    """Return the value that a text stands for, by papermill's rules.

    `True`, `False` and `None` are Python's values, numbers are numbers, and anything else is text.

    Args:
        text: The value as written on the command line.
    """
    if text in _WORDS:
        return _WORDS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def set_parameters(notebook: Any, values: Mapping[str, Any]) -> None:
    """Add a cell that assigns values, below the cell with the tag `parameters`.

    A cell that was added before is replaced.

    Args:
        notebook: The notebook, which is changed in place.
        values: The values by name: texts, numbers, booleans or None.

    Raises:
        NotebookError: The notebook has no cell for parameters or is not in Python, or the cell
            does not assign one of the names.
    """
    language = _language(notebook)
    if language.lower() not in ("", "python"):
        raise NotebookError(
            f"The notebook is in {language}, and parameters can be set only in Python notebooks.",
            fix="Leave -p and -r out.",
        )
    place = next(_tagged(notebook, PARAMETERS), None)
    names = ", ".join(f"`{name}`" for name in values)
    if place is None:
        raise NotebookError(
            f"No cell of the notebook has the tag `{PARAMETERS}`, so {names} cannot be set.",
            fix=f"Assign the defaults in a cell, and give it the tag `{PARAMETERS}`: in JupyterLab "
            "in the property inspector, at the top right.",
        )
    known = _assigned(notebook.cells[place].source)
    for name in values:
        _check(name, known)
    source = "\n".join(["# Parameters", *(f"{name} = {_code(v)}" for name, v in values.items())])
    cell = _injected(notebook, place)
    cell.source = source


def _language(notebook: Any) -> str:
    metadata = notebook.metadata
    known = (
        metadata.get("kernelspec", {}).get("language"),
        metadata.get("language_info", {}).get("name"),
    )
    return str(next(filter(None, known), ""))


def _tagged(notebook: Any, tag: str) -> Iterator[int]:
    """Yield the places of the code cells with a tag."""
    for place, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and tag in cell.metadata.get("tags", []):
            yield place


def _assigned(source: str) -> set[str] | None:
    """Return the names that a cell assigns; None if its code cannot be read."""
    lines = [line for line in source.splitlines() if not line.lstrip().startswith(("%", "!"))]
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError):
        return None
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return {node.id for node in nodes if isinstance(node.ctx, ast.Store)}


def _check(name: str, known: set[str] | None) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise NotebookError(
            f"{name!r} is not a name in Python.", fix="Name a parameter: -p lr 0.01."
        )
    if known is not None and name not in known:
        raise NotebookError(
            f"The notebook has no parameter `{name}`.",
            fix=did_you_mean(
                name, known, f"Assign its default in the cell with the tag `{PARAMETERS}`."
            ),
        )


def _code(value: Any) -> str:
    """Return Python code for a value."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value)


def _injected(notebook: Any, place: int) -> Any:
    """Return the cell for the values from outside, which is added if it is missing."""
    import nbformat

    if (there := next(_tagged(notebook, INJECTED), None)) is not None:
        return notebook.cells[there]
    cell = nbformat.v4.new_code_cell(metadata={"tags": [INJECTED]})
    # The same command gives the same file, so the id is not a random one.
    taken = {each.get("id") for each in notebook.cells}
    numbered = (f"{INJECTED}-{number}" for number in range(2, len(taken) + 3))
    cell.id = next(each for each in (INJECTED, *numbered) if each not in taken)
    if (notebook.nbformat, notebook.nbformat_minor) < (4, 5):
        del cell["id"]  # older formats have no ids
    notebook.cells.insert(place + 1, cell)
    return cell
