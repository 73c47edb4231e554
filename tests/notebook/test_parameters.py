"""Parameters of a notebook: their types, the injected cell, and refused parameters."""

from __future__ import annotations

import math
from typing import Any

import nbformat
import pytest

from tpunb.notebook.files import NotebookError
from tpunb.notebook.parameters import set_parameters, typed

pytestmark = pytest.mark.oldest


def book(*sources: str, tags: dict[int, str] | None = None, minor: int = 5, **metadata: Any) -> Any:
    cells = [nbformat.v4.new_code_cell(source, id=f"c{n}") for n, source in enumerate(sources)]
    for index, tag in (tags or {0: "parameters"}).items():
        cells[index].metadata["tags"] = [tag]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
    notebook.nbformat_minor = minor
    if minor < 5:
        for cell in notebook.cells:
            del cell["id"]
    return notebook


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.01", 0.01),
        ("1e-3", 1e-3),
        ("-3", -3),
        ("1_000", 1000),
        ("True", True),
        ("False", False),
        ("None", None),
        ("true", "true"),
        ("v3-8", "v3-8"),
        ("[1, 2]", "[1, 2]"),
        ("", ""),
    ],
)
def test_types(text: str, value: Any) -> None:
    parsed = typed(text)
    assert (type(parsed), parsed) == (type(value), value)


@pytest.mark.parametrize(
    "value",
    [1, -0.5, 1e-300, math.inf, -math.inf, True, None, "a", "it's", '"', "\\n", "a\nb", "{x}", "é"],
)
def test_values_are_code(value: Any) -> None:
    notebook = book("x = 0", "x")
    set_parameters(notebook, {"x": value})
    names: dict[str, Any] = {}
    exec(notebook.cells[1].source, names)
    assert names["x"] == value
    assert type(names["x"]) is type(value)
    assert len(notebook.cells) == 3
    set_parameters(notebook, {"x": math.nan})
    exec(notebook.cells[1].source, names)
    assert math.isnan(names["x"])


def test_the_injected_cell() -> None:
    notebook = book(
        "import os",
        "lr: float = 0.1\nwidth, depth = 3, 4  # defaults",
        "lr",
        tags={1: "parameters"},
    )
    set_parameters(notebook, {"lr": 0.01, "depth": 2})
    assert [cell.source for cell in notebook.cells][2:] == [
        "# Parameters\nlr = 0.01\ndepth = 2",
        "lr",
    ]
    added = notebook.cells[2]
    assert added.metadata == {"tags": ["injected-parameters"]}
    assert added.id == "injected-parameters"
    nbformat.validate(notebook)
    set_parameters(notebook, {"lr": 1})  # the injected cell is replaced
    assert [cell.source for cell in notebook.cells][2:] == ["# Parameters\nlr = 1", "lr"]


def test_an_older_notebook_and_a_used_id() -> None:
    notebook = book("x = 0", minor=4)
    set_parameters(notebook, {"x": 1})
    nbformat.validate(notebook)
    with_used_id = book("x = 0", "x")
    with_used_id.cells[1].id = "injected-parameters"
    set_parameters(with_used_id, {"x": 1})
    assert with_used_id.cells[1].id == "injected-parameters-2"


def test_a_parameters_cell_with_magics_or_unreadable_code() -> None:
    notebook = book("%load_ext tpunb\n!ls\nx = 0")
    set_parameters(notebook, {"x": 1})
    unreadable = book("x = $0")
    set_parameters(unreadable, {"anything": 1})
    assert unreadable.cells[1].source.endswith("anything = 1")


@pytest.mark.parametrize(
    ("notebook", "name", "message"),
    [
        (book("x = 0", tags={0: "other"}), "x", "No cell of the notebook has the tag `parameters`"),
        (book("lr = 0"), "lt", "The notebook has no parameter `lt`.\n.*Did you mean `lr`"),
        (book("lr = rate"), "rate", "The notebook has no parameter `rate`"),
        (book("x = 0"), "a b", "'a b' is not a name in Python"),
        (book("x = 0"), "class", "'class' is not a name in Python"),
        (book("x = 0"), "x;import os", "is not a name in Python"),
        (book("x = 0", language_info={"name": "R"}), "x", "is in R, and parameters"),
    ],
)
def test_wrong_parameters_are_refused(notebook: Any, name: str, message: str) -> None:
    before = nbformat.writes(notebook)
    with pytest.raises(NotebookError, match=message):
        set_parameters(notebook, {name: 1})
    assert nbformat.writes(notebook) == before
