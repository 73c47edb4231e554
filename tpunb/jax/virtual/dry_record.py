"""What a dry run has called: by line, with the memory of a device."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable

from tpunb.jax.virtual.jit_calls import users_line
from tpunb.tpu.compiled_program import Program

_CALLS_LOOKED_AT = 3
"""After so many calls of a program in a line, the arrays beside it are as before."""


@dataclasses.dataclass(slots=True)
class Calls:
    """The calls of a program in a line of the user's code.

    Attributes:
        file: The file of the line.
        line: Its number.
        cell: The number of the cell's run; None outside a notebook.
        program: The judged program; None while its verdict is not known.
        name: The function's name.
        count: The number of calls.
        computed: How many of them were computed.
        beside: The most bytes that other arrays took on a device of the program.
        refused: Why a call ended with an error, and what to do; empty if none did.
    """

    file: str
    line: int
    cell: int | None
    name: str
    program: Program | None = None
    count: int = 0
    computed: int = 0
    beside: int = 0
    refused: str = ""

    @property
    def peak(self) -> int | None:
        """The bytes of a device during the call; None if nobody knows."""
        memory = None if self.program is None else self.program.memory
        return None if memory is None else self.beside + memory.needs

    @property
    def fits(self) -> bool | None:
        """Whether the calls fit; None if nobody knows."""
        if self.refused:
            return False
        if self.program is None or self.program.unknown:
            return None
        memory, peak = self.program.memory, self.peak
        if memory is not None and peak is not None and peak > memory.available:
            return False
        return self.program.ok


class DryRecord:
    """The calls of a dry run, in the order of their first calls.

    Args:
        cell: Returns the number of the cell's run, or None.

    Attributes:
        seconds: The time that calls have waited for verdicts.
    """

    def __init__(self, cell: Callable[[], int | None]) -> None:
        self._cell = cell
        self._calls: dict[tuple[str, int, int | None, str], Calls] = {}
        self._lock = threading.Lock()
        self.seconds = 0.0

    @property
    def calls(self) -> list[Calls]:
        """The calls by line and program."""
        return list(self._calls.values())

    def call(
        self, name: str, program: Program | None, beside: Callable[[], int], *, computed: bool
    ) -> None:
        """Note a call.

        Args:
            name: The function's name.
            program: The judged program.
            beside: Returns the bytes that other arrays take.
            computed: Whether the call is computed.
        """
        calls = self._of_this_line(name)
        calls.count += 1
        calls.computed += computed
        calls.program = program or calls.program
        if calls.count <= _CALLS_LOOKED_AT:
            calls.beside = max(calls.beside, beside())

    def refuse(self, name: str, program: Program | None, error: BaseException) -> None:
        """Note that a call ended with an error."""
        calls = self._of_this_line(name)
        calls.count += 1
        calls.program = program or calls.program
        problems = () if program is None else program.errors
        said = f"{problems[0].reason} {problems[0].fix}" if problems else _first_line(error)
        calls.refused = said.strip() or type(error).__name__

    def _of_this_line(self, name: str) -> Calls:
        file, line = present_line()
        key = (file, line, self._cell(), name)
        with self._lock:
            return self._calls.setdefault(key, Calls(*key))


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")


def present_line() -> tuple[str, int]:
    """Return the file and the line of the user's code that runs, or the name of its thread."""
    line = users_line(sys._getframe(1))
    return (threading.current_thread().name, 0) if line is None else (line.file, line.line)
