"""The answers to puzzles that are in a notebook with solutions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOLUTIONS = Path(__file__).parents[2] / "notebooks" / "puzzles" / "solutions"


def answers_in(name: str) -> dict[str, tuple[Any, ...]]:
    """Run the cells of a notebook without its magics, and return what it gives `check`."""
    answers: dict[str, tuple[Any, ...]] = {}
    names: dict[str, Any] = {}
    for cell in _code_cells(name):
        source = "".join(cell["source"])
        if not source.startswith(("%", "scores")) and cell["id"] != "install":
            exec(compile(source, name, "exec"), names)
            names["check"] = lambda puzzle, *answer: answers.setdefault(puzzle, answer)
    return answers


def reports_in(name: str) -> list[str]:
    """Return the saved reports of a notebook as text."""
    return [
        "".join(output["data"]["text/plain"])
        for cell in _code_cells(name)
        for output in cell["outputs"]
        if "check(" in "".join(cell["source"])
    ]


def _code_cells(name: str) -> Iterator[Any]:
    notebook = json.loads((SOLUTIONS / name).read_text(encoding="utf-8"))
    return (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
