"""The live display of compiled programs: lines, layers and tensors by time or memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import traitlets

from tpunb.display.draw import program_tables as shown
from tpunb.display.draw.programs_html import programs_bundle
from tpunb.display.widgets.live_widget import LiveWidget
from tpunb.display.widgets.page_data import es_module
from tpunb.tpu.compiled_program import Program, ProgramMemory

VIEWS = ("lines", "layers", "operations", "collectives", "largest", "padding")


class ProgramsWidget(LiveWidget):
    """A compiled program, or one of several TPU types that are listed above it.

    Args:
        value: A compiled program, or several.
        link: Widgets with the same link share their selection.
        **state: First values of the attributes below.

    Attributes:
        chosen: Which of several programs is shown, from 0.
        view: The table below the figures: `"lines"`, `"layers"`, `"operations"`,
            `"collectives"`, `"largest"` tensors or `"padding"`.
        order: Of its rows: `"given"`, `"time"` or `"memory"`.

    Raises:
        TypeError: The value is no program.
    """

    _esm = es_module("programs.js")

    content = traitlets.Dict().tag(sync=True)
    chosen = traitlets.Int(0, min=0).tag(sync=True)
    view = traitlets.Enum(VIEWS, "lines").tag(sync=True)
    order = traitlets.Enum(["given", "time", "memory"], "given").tag(sync=True)

    def __init__(self, value: Any, *, link: str = "", **state: Any) -> None:
        self._programs = _programs(value)
        super().__init__(content=_content(self._programs), link=link, **state)

    def update(self, value: Any) -> bool:
        """Shows another program in place; what was chosen stays where there is such."""
        self._programs = _programs(value)
        with self.hold_sync():
            self.content = _content(self._programs)
            if self.chosen >= len(self._programs):
                self.chosen = 0
        return True

    def static_bundle(self) -> dict[str, Any]:
        """The programs as text and as HTML."""
        return programs_bundle(self._programs)


def _programs(value: Any) -> tuple[Program, ...]:
    programs = (value,) if isinstance(value, Program) else value
    found = tuple(programs) if isinstance(programs, Iterable) else ()
    if not found or not all(isinstance(one, Program) for one in found):
        raise TypeError(
            "Compiled programs are shown, as tpunb.compile returns them, "
            f"not a {type(value).__name__}"
        )
    return found


def _content(programs: Sequence[Program]) -> dict[str, Any]:
    """The front end's data: fractions as numbers, all else as the text to be shown."""
    head, types = shown.type_rows(programs) if len(programs) > 1 else ([], [])
    return {
        "head": head,
        "types": types,
        "types_note": shown.types_note(programs) if types else "",
        "programs": list(map(_program, programs)),
    }


def _program(program: Program) -> dict[str, Any]:
    memory, time = program.memory, program.time
    return {
        "tpu": program.tpu,
        "title": shown.title(program),
        "verdict": shown.verdict(program),
        "headline": shown.headline(program),
        "errors": [
            {"line": problem.line, "code": problem.code, "cause": problem.cause, "fix": problem.fix}
            for problem in program.errors[: shown.MAX_PROBLEMS]
        ],
        "more_errors": max(len(program.errors) - shown.MAX_PROBLEMS, 0),
        "memory": None if memory is None else _memory(memory),
        "facts": shown.facts(program),
        "parts": [
            {"name": name, "fraction": fraction, "text": shown.percent(fraction)}
            for name, fraction in (time.parts if time is not None else {}).items()
        ],
        "tables": {name: asdict(table) for name, table in shown.tables(program).items()},
        "notes": shown.notes(program),
    }


def _memory(memory: ProgramMemory) -> dict[str, Any]:
    return {
        "segments": [
            {"kind": kind, "bytes": size, "text": shown.part_phrase(kind, size)}
            for kind, size in memory.parts.items()
        ],
        "available": memory.available,
        "total": max(memory.peak, memory.available, 1),
        "says": shown.memory_phrase(memory),
        "over": shown.over_phrase(memory),
        "limit": shown.memory_limit(memory),
    }
