"""How the execution of a notebook goes, a line a cell."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, TextIO

__all__ = ["FailedCell", "Progress", "explained"]

_WIDTH = 60
_ERROR_LINES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class FailedCell:
    """A cell that failed.

    Attributes:
        number: Which one, from 1, among the cells with code.
        why: The error, and its explanation if it is a known one.
    """

    number: int
    why: str


class Progress:
    """Says which cell runs, what each took, and keeps those that failed.

    A terminal sees a cell's line when it begins; a file, plain lines of those
    that are done.

    Args:
        cells: The notebook's cells.
        stream: Where to write, such as `sys.stdout`; None to be silent.
        timeout: Seconds that a cell may take, 0 for any time.

    Attributes:
        total: How many cells there are to execute.
        failed: Those that failed so far.
    """

    def __init__(self, cells: Sequence[Any], stream: TextIO | None, timeout: int = 0) -> None:
        code = [i for i, cell in enumerate(cells) if cell.cell_type == "code"]
        to_run = [i for i in code if cells[i].source.strip()]
        self.total = len(to_run)
        self.failed: list[FailedCell] = []
        self._numbers = {index: number for number, index in enumerate(to_run, 1)}
        self._stream = stream
        self._timeout = timeout
        self._live = stream is not None and stream.isatty()
        self._label = ""
        self._number = 0
        self._begin = 0.0
        self._open = False

    def start(self, cell: Any, cell_index: int) -> None:
        """A cell begins."""
        self._number = self._numbers[cell_index]
        number = f"{self._number:{len(str(self.total))}}/{self.total}"
        self._label = f"[{number}] {_first_line(cell.source):{_WIDTH}}"
        self._begin = time.monotonic()
        if self._live:
            self._say(f"{self._label}     ...")
            self._open = True

    def finish(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        """A cell is done, whether well or not."""
        del cell_index
        seconds = time.monotonic() - self._begin
        content = (execute_reply or {}).get("content", {})
        failed = content.get("status") == "error" and not _may_fail(cell)
        if failed:
            self.failed.append(FailedCell(self._number, self._why(content, seconds)))
        # The kernel may have written on the terminal meanwhile: the line is written anew.
        again = "\r\x1b[K" if self._live else ""
        mark = f"  {content['ename']}" if failed else ""
        self._say(f"{again}{self._label} {seconds:6.1f} s{mark}\n")
        self._open = False

    @property
    def begun(self) -> bool:
        """Whether a cell has begun, and so the kernel has started."""
        return self._number > 0

    def where(self) -> str:
        """Where the execution stands, after it has stopped in the middle."""
        self._end_line()
        return f"cell {self._number} of {self.total}" if self.begun else "the kernel's start"

    def stop(self, why: str) -> None:
        """The cell that runs takes the execution with it."""
        self._end_line()
        if not self.failed or self.failed[-1].number != self._number:
            self.failed.append(FailedCell(self._number, why))

    def failures(self) -> str:
        """The cells that failed and why, a paragraph each."""
        return "\n\n".join(
            f"Cell {cell.number} of {self.total} failed: {cell.why}"
            if cell.number
            else f"The notebook failed before its first cell: {cell.why}"
            for cell in self.failed
        )

    def summary(self) -> str:
        """How many cells were executed and which failed."""
        cells = f"{self.total} cell{'' if self.total == 1 else 's'}"
        if self._number < self.total:
            cells = f"{self._number} of {cells}"
        if not self.failed:
            return cells
        numbers = ", ".join(str(cell.number) for cell in self.failed)
        return f"{cells}, {len(self.failed)} failed: {numbers}"

    def _why(self, content: Any, seconds: float) -> str:
        interrupted = content["ename"] in ("KeyboardInterrupt", "CancelledError")
        if interrupted and self._timeout and seconds >= self._timeout:
            return f"it took longer than {self._timeout} s"
        return explained(content["ename"], content["evalue"], content.get("traceback", ()))

    def _end_line(self) -> None:
        if self._open:
            self._say("\n")
        self._open = False

    def _say(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()


def explained(name: str, message: str, traceback: Sequence[str] | str) -> str:
    """What a cell raised, and the cause and the mend if it is a known error.

    Args:
        name: The exception's class.
        message: Its text.
        traceback: Its traceback, which may hold the codes of colours.

    Returns:
        Some lines of text.
    """
    from tpunb import errors
    from tpunb.diagnosis import explain

    said = _shortly(name, message)
    if hasattr(errors, name):  # it names its mend
        return said
    lines = traceback if isinstance(traceback, str) else "\n".join(traceback)
    found = explain(f"{lines}\n{name}: {message}")
    return f"{said}\n{found}" if found else said


def _shortly(name: str, message: str) -> str:
    lines = [line for line in f"{name}: {message}".rstrip(": \n").splitlines() if line.strip()]
    if len(lines) > _ERROR_LINES + 1:
        # The point of an error in a tf.function is at its end, below the places.
        half = _ERROR_LINES // 2
        lines = [*lines[:half], "...", *lines[-half:]]
    return "\n".join(lines)


def _first_line(source: str) -> str:
    line = source.strip().partition("\n")[0].rstrip()
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."


def _may_fail(cell: Any) -> bool:
    """Whether a cell says that its error is meant."""
    return "raises-exception" in cell.metadata.get("tags", [])
