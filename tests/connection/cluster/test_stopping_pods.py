"""The stop button while a worker of a virtual Pod is frozen in the midst of a step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from counterparts.children import run_script
from support.tiers import THOROUGH

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(sys.platform == "win32", reason="signals"),
]


@pytest.fixture(scope="module")
def freezing() -> Any:
    """What was seen; the script ends with a worker frozen, whose end it must not wait for."""
    return run_script(Path(__file__).parents[2] / "pods" / "freezing.py")


@THOROUGH
def test_a_cell_is_stopped(freezing: Any) -> None:
    assert freezing["cell"]["said"].startswith("inside the cell: variables hold what was assigned")
    assert freezing["cell"]["after"] == [3.0, 3.0]


@THOROUGH
def test_a_run_of_steps_is_stopped(freezing: Any) -> None:
    assert freezing["steps"]["said"] == "(True, True, 0)"
    assert freezing["steps"]["after"] == [3.0, 3.0]
