"""The registration of displays for compiled programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tpunb.compiler.program import TpuProgram, TpuPrograms
from tpunb.tpu import program_display
from tpunb.tpu.program_display import register_program_display

PROGRAM = TpuProgram("v5e-8", 8, 1)


class CountingDisplay:
    """A display that shows the number of its programs."""

    def forms(self, programs: Sequence[Any]) -> dict[str, Any]:
        return {"text/plain": f"{len(programs)} programs", "text/html": "<b>programs</b>"}

    def compiling(self, phase: Any) -> Any:
        raise NotImplementedError

    def publish(self, programs: Sequence[Any]) -> None:
        raise NotImplementedError


def test_programs_use_the_registered_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_display, "_registered", program_display._registered)
    assert str(PROGRAM).startswith("TPU v5e-8 · 8 replicas")
    register_program_display(CountingDisplay)
    assert str(PROGRAM) == "1 programs"
    assert str(TpuPrograms([PROGRAM, PROGRAM])) == "2 programs"
    assert PROGRAM._repr_html_() == "<b>programs</b>"
