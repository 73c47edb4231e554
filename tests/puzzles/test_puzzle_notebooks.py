"""The puzzles in notebooks/puzzles are made from their solutions."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PUZZLES = NOTEBOOKS / "puzzles"
SOLUTIONS = sorted((PUZZLES / "solutions").glob("*.ipynb"))


def script() -> Any:
    path = NOTEBOOKS / "course" / "make_exercises.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_solution_has_its_puzzles() -> None:
    names = ["jax_puzzles.ipynb", "tensorflow_puzzles.ipynb"]
    assert [path.name for path in SOLUTIONS] == names
    assert sorted(path.name for path in PUZZLES.glob("*.ipynb")) == names


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.name)
def test_the_puzzles_are_up_to_date_and_have_no_answers(path: Path) -> None:
    exercise = script().exercise_of(nbformat.read(path, as_version=nbformat.NO_CONVERT))
    text = (PUZZLES / path.name).read_text(encoding="utf-8")
    advice = "type: python notebooks/course/make_exercises.py"
    assert text == nbformat.writes(exercise) + "\n", advice
    assert "SOLUTION" not in text
    assert "puzzles/solutions/" not in text
    assert not any(cell.get("outputs") for cell in exercise.cells)


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.name)
def test_each_cell_with_a_check_has_an_answer(path: Path) -> None:
    for cell in nbformat.read(path, as_version=nbformat.NO_CONVERT).cells:
        if cell.cell_type == "code":
            assert ("check(" in cell.source) == ("### BEGIN SOLUTION" in cell.source)


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.name)
def test_a_notebook_uses_one_framework(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    other = "import tensorflow" if path.name.startswith("jax") else "import jax"
    assert other not in text
