"""The cost of large cells grows with their size. Operations are counted, not seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.tiers import thorough

import tpunb.cells
from tpunb.cells.reading.source import parse_cell
from tpunb.errors import CellError
from tpunb.tensorflow.cells.replica_function import function_text

OURS = str(Path(tpunb.cells.__file__).parent)
CELLS = {
    "assignments": "y{0} = x + {0}",
    "conditions": "if flag:\n    y = x + {0}",
    "conditions that bind": "if flag:\n    y{0} = x + {0}",
    "loops": "for i{0} in range(2):\n    y{0} = i{0}",
    "functions": "def f{0}(v): return v + {0}",
    "classes": "class C{0}:\n    k = {0}",
    "handlers": "try:\n    y{0} = x\nexcept ValueError:\n    y{0} = 0",
}


def text_of(kind: str, count: int) -> str:
    return "\n".join(CELLS[kind].format(number) for number in range(count)) + "\ny = x\n"


def calls(run: Callable[[], Any], *, ours: bool = False) -> int:
    """Count the function calls in a run; with `ours`, only the functions of tpunb.cells."""
    number = [0]

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            number[0] += not ours or frame.f_code.co_filename.startswith(OURS)

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return number[0]


def generate(text: str) -> str:
    cell = parse_cell(text)
    return function_text(cell, (), sorted(cell.names.definite))


@pytest.mark.parametrize("kind", CELLS)
def test_reading_a_cell(kind: str) -> None:
    some, more = (calls(lambda n=n: generate(text_of(kind, n))) for n in (100, 300))  # type: ignore[misc]
    assert more < 3.3 * some


@pytest.mark.parametrize("kind", ["assignments", *thorough(["conditions that bind"])])
def test_tracing_a_cell(tf: Any, kind: str) -> None:
    from tpunb.tensorflow.cells.runner import CellRunner

    runner = CellRunner(tf.distribute.OneDeviceStrategy("CPU:0"))
    names = {"tf": tf, "x": tf.constant(1.0), "flag": True, "__name__": "__main__"}
    runner.run("y = x", names)
    some, more = (
        calls(lambda n=n: runner.run(text_of(kind, n), names), ours=True)  # type: ignore[misc]
        for n in (6, 18)
    )
    assert more < 3.3 * some
    repeated = calls(lambda: runner.run(text_of(kind, 18), names), ours=True)
    assert repeated < more / 2
    runner.close()


def elifs(count: int) -> str:
    start = "if q == 0:\n    y = 0\n"
    branches = (f"elif q == {number}:\n    y = {number}\n" for number in range(1, count))
    return start + "".join(branches)


@pytest.mark.parametrize("text", [elifs(900), "y = " + " + ".join(["x"] * 900)])
def test_long_chains(text: str) -> None:
    """Python nests elif branches; recursion for each of them would be too deep."""
    cell = parse_cell(text)
    assert set(cell.names.bindings) == {"y"}
    function_text(cell, (), ())


def test_code_that_is_nested_too_deeply() -> None:
    with pytest.raises(CellError, match="nested too deeply") as caught:
        parse_cell("y = x" + ".real.imag()" * 250)
    assert caught.value.fix
