"""Parameters of a notebook: their types, the cell that is added, and what is refused."""

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
    for place, tag in (tags or {0: "parameters"}).items():
        cells[place].metadata["tags"] = [tag]
    made = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
    made.nbformat_minor = minor
    if minor < 5:
        for cell in made.cells:
            del cell["id"]
    return made


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
    found = typed(text)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    "value",
    [1, -0.5, 1e-300, math.inf, -math.inf, True, None, "a", "it's", '"', "\\n", "a\nb", "{x}", "é"],
)
def test_values_are_code(value: Any) -> None:
    made = book("x = 0", "x")
    set_parameters(made, {"x": value})
    names: dict[str, Any] = {}
    exec(made.cells[1].source, names)
    assert names["x"] == value
    assert type(names["x"]) is type(value)
    assert len(made.cells) == 3
    set_parameters(made, {"x": math.nan})
    exec(made.cells[1].source, names)
    assert math.isnan(names["x"])


def test_the_cell_that_is_added() -> None:
    made = book(
        "import os",
        "lr: float = 0.1\nwidth, depth = 3, 4  # defaults",
        "lr",
        tags={1: "parameters"},
    )
    set_parameters(made, {"lr": 0.01, "depth": 2})
    assert [cell.source for cell in made.cells][2:] == ["# Parameters\nlr = 0.01\ndepth = 2", "lr"]
    added = made.cells[2]
    assert added.metadata == {"tags": ["injected-parameters"]}
    assert added.id == "injected-parameters"
    nbformat.validate(made)
    set_parameters(made, {"lr": 1})  # again: the cell is replaced
    assert [cell.source for cell in made.cells][2:] == ["# Parameters\nlr = 1", "lr"]


def test_an_older_notebook_and_an_id_that_is_taken() -> None:
    made = book("x = 0", minor=4)
    set_parameters(made, {"x": 1})
    nbformat.validate(made)
    taken = book("x = 0", "x")
    taken.cells[1].id = "injected-parameters"
    set_parameters(taken, {"x": 1})
    assert taken.cells[1].id == "injected-parameters-2"


def test_a_parameters_cell_with_magics_or_unreadable_code() -> None:
    made = book("%load_ext tpunb\n!ls\nx = 0")
    set_parameters(made, {"x": 1})
    unreadable = book("x = $0")
    set_parameters(unreadable, {"anything": 1})
    assert unreadable.cells[1].source.endswith("anything = 1")


@pytest.mark.parametrize(
    ("made", "name", "message"),
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
def test_what_is_refused(made: Any, name: str, message: str) -> None:
    before = nbformat.writes(made)
    with pytest.raises(NotebookError, match=message):
        set_parameters(made, {name: 1})
    assert nbformat.writes(made) == before
