"""The live display of compiled programs: lines, layers and tensors by time or memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import traitlets

from tpunb._util.units import byte_count, duration
from tpunb.display.describe.program_description import (
    CodeRow,
    MemoryBar,
    ProgramDescription,
    ProgramsDescription,
    ShareRow,
    TensorRow,
)
from tpunb.display.describe.programs import describe_program, describe_programs
from tpunb.display.draw import mimebundle
from tpunb.display.draw import program_phrases as phrases
from tpunb.display.widgets._base import LiveWidget
from tpunb.display.widgets._modules import es_module

__all__ = ["ProgramsWidget"]

VIEWS = ("lines", "layers", "operations", "collectives", "largest", "padding")


class ProgramsWidget(LiveWidget):
    """A compiled program, or one of several TPU types that are listed above it.

    Args:
        value: A `TpuProgram`, `TpuPrograms`, or a description of these.
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
        self._description = _described(value)
        super().__init__(content=_content(self._description), link=link, **state)

    def update(self, value: Any) -> bool:
        """Shows another program in place; what was chosen stays where there is such."""
        self._description = _described(value)
        with self.hold_sync():
            self.content = _content(self._description)
            if self.chosen >= len(self._description.programs):
                self.chosen = 0
        return True

    def static_bundle(self) -> dict[str, Any]:
        """The programs as text and as HTML."""
        return dict(mimebundle(self._description))


def _described(value: Any) -> ProgramsDescription:
    if isinstance(value, ProgramsDescription):
        return value
    if isinstance(value, ProgramDescription):
        return ProgramsDescription((), (value,))
    if hasattr(value, "tpu") and hasattr(value, "unknown"):
        return ProgramsDescription((), (describe_program(value),))
    if hasattr(value, "rows") and isinstance(value, Iterable):
        return describe_programs(value)
    raise TypeError(
        f"Compiled programs are shown, as tpunb.compile returns them, not a {type(value).__name__}"
    )


def _content(description: ProgramsDescription) -> dict[str, Any]:
    """What the front end draws from: fractions as numbers, all else as the text to be shown."""
    types = description.rows if len(description.programs) > 1 else ()
    return {
        "head": list(phrases.TYPE_HEAD),
        "types": [list(phrases.type_cells(row)) for row in types],
        "programs": [_program(program) for program in description.programs],
    }


def _program(program: ProgramDescription) -> dict[str, Any]:
    return {
        "tpu": program.tpu,
        "title": program.title,
        "verdict": program.verdict,
        "headline": phrases.headline(program),
        "errors": [
            {"line": problem.line, "code": problem.code, "cause": problem.cause, "fix": problem.fix}
            for problem in program.errors
        ],
        "memory": None if program.memory is None else _memory(program.memory),
        "facts": phrases.facts(program),
        "parts": [
            {"name": name, "fraction": fraction, "text": phrases.percent(fraction)}
            for name, fraction in (program.time.parts if program.time is not None else ())
        ],
        "tables": {
            "lines": [_line(row) for row in program.code] if program.has_shares else [],
            "layers": [_share(row) for row in program.layers],
            "operations": [_share(row) for row in program.operations],
            "collectives": [_share(row) for row in program.collectives],
            "largest": [_tensor(row, byte_count(row.bytes)) for row in program.largest],
            "padding": [_tensor(row, phrases.padding_phrase(row)) for row in program.padding],
        },
        "omitted": {{"code": "lines"}.get(name, name): count for name, count in program.omitted},
        "notes": list(program.notes),
    }


def _memory(memory: MemoryBar) -> dict[str, Any]:
    return {
        "segments": [
            {**dataclasses.asdict(segment), "text": phrases.segment_phrase(segment)}
            for segment in memory.segments
        ],
        "available": memory.available,
        "total": memory.total,
        "says": phrases.memory_phrase(memory),
        "over": f"{byte_count(memory.over)} too much" if memory.over else "",
        "limit": phrases.memory_limit(memory),
    }


def _line(row: CodeRow) -> dict[str, Any]:
    return {
        "place": row.number,
        "file": row.file,
        "name": row.text,
        "problem": row.problem,
        **_bars(row.fraction, row.seconds, row.part, row.memory),
    }


def _share(row: ShareRow) -> dict[str, Any]:
    moved = byte_count(row.bytes) if row.bytes else ""
    bars = _bars(row.fraction, row.seconds, row.part, row.memory)
    return {"name": row.name, "moved": moved, **bars}


def _tensor(row: TensorRow, size: str) -> dict[str, Any]:
    return {
        "name": row.text,
        "part": row.part,
        "size": size,
        "source": phrases.tensor_source(row),
        "line": row.line,
    }


def _bars(
    fraction: float | None, seconds: float | None, part: float, memory: int
) -> dict[str, Any]:
    return {
        "fraction": fraction or 0.0,
        "share": phrases.percent(fraction) if fraction else "",
        "seconds": duration(seconds) if seconds else "",
        "part": part,
        "size": byte_count(memory) if memory else "",
    }
