"""Every notebook is valid, was executed without an error, and says what it teaches."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
# tests/test_course.py tests the course's exercises, which come from the solutions.
NOTEBOOKS = sorted([*FOLDER.glob("*.ipynb"), *FOLDER.glob("course/solutions/*.ipynb")])
COLAB = "https://colab.research.google.com/github/tpunb/tpunb/blob/main/notebooks/"


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.name)
def path(request: pytest.FixtureRequest) -> Path:
    notebook_path: Path = request.param
    return notebook_path


@pytest.fixture
def notebook(path: Path) -> Any:
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


@functools.cache
def exporter(template: str) -> Any:
    """Return what `jupyter nbconvert --to html --template TEMPLATE` uses."""
    return pytest.importorskip("nbconvert").HTMLExporter(template_name=template)


def code_cells(notebook: Any) -> list[Any]:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [cell for cell in cells if cell.source.strip()]


def test_is_valid(notebook: Any) -> None:
    assert notebook.nbformat == 4
    nbformat.validate(notebook)


def test_starts_with_a_title_and_a_summary(notebook: Any) -> None:
    first = notebook.cells[0]
    assert first.cell_type == "markdown"
    assert re.search(r"^# \S", first.source, re.MULTILINE), "no title in the first cell"
    prose = [line for line in first.source.splitlines() if re.match(r"[A-Za-z*_`]", line)]
    assert prose, "no sentence below the title that says what the notebook teaches"


def test_opens_in_colab(path: Path, notebook: Any) -> None:
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert f"{COLAB}{path.relative_to(FOLDER).as_posix()})" in text


def test_was_executed_from_top_to_bottom(notebook: Any) -> None:
    cells = code_cells(notebook)
    assert any(cell.outputs for cell in cells), "no outputs"
    counts = [cell.execution_count for cell in cells]
    assert counts == list(range(1, len(cells) + 1))


def test_shows_no_error(notebook: Any) -> None:
    for cell in code_cells(notebook):
        expected = "raises-exception" in cell.metadata.get("tags", [])
        errors = [output for output in cell.outputs if output.output_type == "error"]
        assert expected or not errors, cell.source


def pictures(page: str) -> list[str]:
    """Return the tags of the pictures of a page."""
    return re.findall(r"<img\b[^>]*>", page)


def test_exported_pictures_have_alternative_texts(path: Path) -> None:
    page, _ = exporter("classic").from_filename(str(path))
    assert all(re.search(r'\balt="(?!No description)[^"]', tag) for tag in pictures(page))


def test_the_template_lab_lacks_only_texts_that_it_does_not_read(path: Path, notebook: Any) -> None:
    """nbconvert 7.17 reads the text of a PNG picture in its other templates only."""
    page, _ = exporter("lab").from_filename(str(path))
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    curves = [output for output in outputs if "image/png" in output.get("data", {})]
    assert all(output.metadata["image/png"]["alt"] for output in curves)
    assert sum('alt="No description' in tag for tag in pictures(page)) == len(curves)


def test_holds_no_widgets(notebook: Any) -> None:
    """A saved widget hides the picture beside it, and needs a CDN of its front end."""
    assert "widgets" not in notebook.metadata
    for cell in code_cells(notebook):
        for output in cell.outputs:
            assert not any("widget" in kind for kind in output.get("data", {}))
