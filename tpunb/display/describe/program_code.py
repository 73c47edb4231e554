"""The lines of the user's code with what each takes of a compiled program."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeVar

from tpunb._util.plain_text import shortened

__all__ = ["MAX_LINES", "CodeRow", "describe_code", "file_title", "heaviest"]

MAX_LINES = 200
"""Lines of code that are kept: of more, those that matter."""

_MAX_CODE = 200
# What IPython and ipykernel call a cell: "<ipython-input-3-…>", "/tmp/ipykernel_7/123.py".
_CELL = re.compile(r"<|.*[/\\]ipykernel_\d+[/\\]")

Place = tuple[str, int]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CodeRow:
    """A line of the user's code.

    Attributes:
        file: Its file, as it is shown; empty for a cell.
        number: From 1.
        text: The code.
        seconds: What it takes of a call; None where it does not appear in the time.
        fraction: Of the call's time; None likewise.
        memory: Bytes alive at the peak that it made.
        part: These as a part of the peak.
        problem: What the compiler refuses in it; empty for nothing.
    """

    file: str
    number: int
    text: str
    seconds: float | None = None
    fraction: float | None = None
    memory: int = 0
    part: float = 0.0
    problem: str = ""

    @property
    def weight(self) -> float:
        """How much it matters."""
        return _weight(self.fraction, self.part, bool(self.problem))


def describe_code(program: Any, peak: int) -> tuple[tuple[CodeRow, ...], int]:
    """The rows of a program's lines, and how many were left out.

    Lines that have a share but are not in the program's text come with their name.

    Args:
        program: A `TpuProgram`.
        peak: Its memory in bytes, which the shares are parts of.
    """
    lines = _Lines(program, peak)
    places = lines.places()
    kept = heaviest(places, lines.weight, MAX_LINES)
    return tuple(map(lines.row, kept)), len(places) - len(kept)


def heaviest(rows: Sequence[_T], weight: Callable[[_T], float], count: int) -> list[_T]:
    """So many rows of the most weight, in their order; the first of those that weigh the same."""
    if len(rows) <= count:
        return list(rows)
    by_weight = sorted(range(len(rows)), key=lambda at: (-weight(rows[at]), at))
    return [rows[at] for at in sorted(by_weight[:count])]


class _Lines:
    """What is known of each line."""

    def __init__(self, program: Any, peak: int) -> None:
        self._peak = peak
        self._texts = {_place(line.place): line.text for line in program.lines}
        self._times, self._memories = _located(program.time), _located(program.memory)
        files = {file for file, _ in self._texts}
        only = next(iter(files)) if len(files) == 1 else ""
        # A check leaves the file out where there is only a cell.
        self._problems = {
            (problem.file or only, problem.line): problem.code
            for problem in program.errors
            if problem.line is not None
        }

    def places(self) -> list[Place]:
        """All lines: by file in the order of their first appearance, and by number."""
        found = {**self._texts, **self._times, **self._memories, **self._problems}
        files = {file: number for number, file in enumerate(dict.fromkeys(f for f, _ in found))}
        return sorted(found, key=lambda place: (files[place[0]], place[1]))

    def weight(self, place: Place) -> float:
        """How much a line matters."""
        time, memory = self._times.get(place), self._memories.get(place)
        part = memory.memory / self._peak if memory is not None else 0.0
        return _weight(time.fraction if time is not None else None, part, place in self._problems)

    def row(self, place: Place) -> CodeRow:
        """What is shown of a line."""
        time, memory = self._times.get(place), self._memories.get(place)
        named = time or memory
        text = self._texts.get(place, named.name if named is not None else "")
        held = memory.memory if memory is not None else 0
        return CodeRow(
            file_title(place[0]),
            place[1],
            shortened(text, _MAX_CODE),
            seconds=time.seconds if time is not None else None,
            fraction=time.fraction if time is not None else None,
            memory=held,
            part=held / self._peak,
            problem=self._problems.get(place, ""),
        )


def _weight(fraction: float | None, part: float, has_problem: bool) -> float:
    return float("inf") if has_problem else (fraction or 0.0) + part


def _place(line: Any) -> Place:
    return line.file, line.line


def _located(part: Any) -> dict[Place, Any]:
    """The shares by line."""
    shares = () if part is None else part.by_line
    return {_place(share.line): share for share in shares if share.line is not None}


def file_title(file: str) -> str:
    """A file's name for a reader, the same in every run; empty for a cell."""
    return "" if not file or _CELL.match(file) else PurePath(file).name
