"""Displays for the compiler: see `tpunb/tpu/program_display.py`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from tpunb.display.draw.programs.frontier import frontier as frontier
from tpunb.display.draw.programs.html import programs_bundle
from tpunb.display.live_progress import CompilationDisplay
from tpunb.display.widgets import frontend
from tpunb.tpu.compiled_program import Program


def forms(programs: Sequence[Program]) -> dict[str, Any]:
    """Return the static forms of programs, by MIME type."""
    return programs_bundle(programs)


def compiling(phase: Callable[[], str]) -> CompilationDisplay:
    """Show the text that `phase` returns, until the compilation ends."""
    return CompilationDisplay(phase)


def publish(programs: Sequence[Program]) -> None:
    """Show programs in the notebook's cell, if there is one."""
    if frontend.execution() is not None:
        frontend.publish(programs_bundle(programs), {}, display_id=uuid.uuid4().hex, update=False)
