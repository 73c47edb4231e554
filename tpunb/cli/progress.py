"""The lines that `tpunb run` and `tpunb demo` print for each cell, and the cells that failed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TextIO

from tpunb._util.units import counted
from tpunb.cli.command import OutputError, ReaderGone

_WIDTH = 60
_ERROR_LINES = 4
_AGAIN = "\r\x1b[K"  # to the line's start, and clear it


class Progress:
    """Shows which cell runs and how long each took, and keeps those that failed.

    On a terminal a cell's line appears when it begins; a file gets plain lines of
    those that are done.

    Args:
        cells: The notebook's cells.
        stream: Where to write, such as `sys.stdout`; None to be silent.
        timeout: Seconds that a cell may take, 0 for any time.

    Attributes:
        total: How many cells there are to execute.
        failed: Why those failed that failed so far, by their numbers from 1 among the cells with
            code; 0 is what came before the first.
        lost: Why nothing is written any more; None while lines can be written.
    """

    def __init__(self, cells: Sequence[Any], stream: TextIO | None, timeout: int = 0) -> None:
        code = [i for i, cell in enumerate(cells) if cell.cell_type == "code"]
        to_run = [i for i in code if cells[i].source.strip()]
        self.total = len(to_run)
        self.failed: dict[int, str] = {}
        self.lost: OutputError | None = None
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
        line = cell.source.strip().partition("\n")[0].rstrip()
        line = line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."
        self._label = f"[{number}] {line:{_WIDTH}}"
        self._begin = time.monotonic()
        if self._live:
            self._write(f"{self._label}     ...")
            self._open = True

    def finish(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        """A cell has ended, with or without an error."""
        del cell_index
        seconds = time.monotonic() - self._begin
        content = (execute_reply or {}).get("content", {})
        may_fail = "raises-exception" in cell.metadata.get("tags", [])
        failed = content.get("status") == "error" and not may_fail
        if failed:
            why = f"it took longer than {self._timeout} s"
            interrupted = content["ename"] in ("KeyboardInterrupt", "CancelledError")
            if not (interrupted and self._timeout and seconds >= self._timeout):
                why = explained(content["ename"], content["evalue"], content.get("traceback", ()))
            self.failed[self._number] = why
        # The kernel may have written to the terminal meanwhile: the line is written again.
        mark = f"  {content['ename']}" if failed else ""
        if self._live:
            self._write(_AGAIN, control=True)
        self._write(f"{self._label} {seconds:6.1f} s{mark}\n")
        self._open = False

    @property
    def begun(self) -> bool:
        """True if a cell has begun, and so the kernel has started."""
        return self._number > 0

    def where(self) -> str:
        """Return where an interrupted execution stopped."""
        self._end_line()
        return f"cell {self._number} of {self.total}" if self.begun else "the kernel's start"

    def stop(self, why: str) -> None:
        """Execution ends within the cell that runs."""
        self._end_line()
        self.failed.setdefault(self._number, why)

    def failures(self) -> str:
        """The cells that failed and why, a paragraph each."""
        return "\n\n".join(
            f"Cell {number} of {self.total} failed: {why}"
            if number
            else f"The notebook failed before its first cell: {why}"
            for number, why in self.failed.items()
        )

    def end(self, text: str, stream: TextIO | None = None) -> None:
        """Writes the result.

        Args:
            text: The sentence.
            stream: Where to write it if there is no other stream.

        Raises:
            OutputError: This, or a line before, could not be written. A reader that has
                gone is no error: the notebook is saved.
        """
        self._stream = self._stream or stream
        self._write(f"{text}\n")
        if self.lost is not None and not isinstance(self.lost, ReaderGone):
            raise self.lost

    def summary(self) -> str:
        """The number of cells that were executed, and those that failed."""
        cells = counted(self.total, "cell")
        if self._number < self.total:
            cells = f"{self._number} of {cells}"
        if not self.failed:
            return cells
        return f"{cells}, {len(self.failed)} failed: {', '.join(map(str, self.failed))}"

    def _end_line(self) -> None:
        if self._open:
            self._write("\n")
        self._open = False

    def _write(self, text: str, *, control: bool = False) -> None:
        stream = self._stream
        if stream is None or self.lost is not None:
            return
        write = getattr(stream, "write_control", stream.write) if control else stream.write
        try:
            write(text)
            stream.flush()
        except OutputError as error:
            self.lost = error


def explained(name: str, message: str, traceback: Sequence[str] | str) -> str:
    """Describes what a cell raised, and the cause and the fix if it is a known error.

    Args:
        name: The exception's class.
        message: Its text.
        traceback: Its traceback, which may hold the codes of colours.

    Returns:
        Some lines of text.
    """
    from tpunb.errors import base as errors
    from tpunb.errors.explain import explain

    shown = [line for line in f"{name}: {message}".rstrip(": \n").splitlines() if line.strip()]
    if len(shown) > _ERROR_LINES + 1:
        # The message of an error in a tf.function is at its end, below the source lines.
        half = _ERROR_LINES // 2
        shown = [*shown[:half], "...", *shown[-half:]]
    text = "\n".join(shown)
    if hasattr(errors, name):  # it names its fix
        return text
    lines = traceback if isinstance(traceback, str) else "\n".join(traceback)
    found = explain(f"{lines}\n{name}: {message}")
    return f"{text}\n{found}" if found else text
