"""The lines that `tpunb run` and `tpunb demo` print for each cell, and the failed cells."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from tpunb._util.units import counted
from tpunb.cli.command import OutputError, ReaderGone

_WIDTH = 60
_ERROR_LINES = 4
_DISPLAY_LINES = 3
_BY_CELL = "In the cell, line "
_AGAIN = "\r\x1b[K"  # to the start of the line, and clear it


class Progress:
    """A display of the running cell and each cell's time, and a record of the cells that failed.

    On a terminal, a cell's line appears when the cell begins. A file gets a plain line when the
    cell is done.

    Args:
        cells: The notebook's cells.
        stream: Where to write, such as `sys.stdout`; None to write nothing.
        timeout: Seconds that a cell may take; 0 for no limit.
        show_displays: Whether to write the beginning of what a cell displays below its line.

    Attributes:
        total: The number of cells to execute.
        failed: The reasons of the failures so far, by cell number. Code cells are numbered from
            1; 0 is a failure before the first cell.
        lost: The error that ended the output; None while lines can be written.
    """

    def __init__(
        self,
        cells: Sequence[Any],
        stream: TextIO | None,
        timeout: int = 0,
        *,
        show_displays: bool = False,
    ) -> None:
        code = [i for i, cell in enumerate(cells) if cell.cell_type == "code"]
        to_run = [i for i in code if cells[i].source.strip()]
        self.total = len(to_run)
        self.failed: dict[int, str] = {}
        self.lost: OutputError | None = None
        self._numbers = {index: number for number, index in enumerate(to_run, 1)}
        self._stream = stream
        self._timeout = timeout
        self._show_displays = show_displays
        self._live = stream is not None and stream.isatty()
        self._label = ""
        self._number = 0
        self._begin = 0.0
        self._open = False

    def start(self, cell: Any, cell_index: int) -> None:
        """Show that a cell begins."""
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
        """Show that a cell has ended, with or without an error."""
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
        # The kernel may have written to the terminal in between, so write the whole line again.
        mark = f"  {content['ename']}" if failed else ""
        if self._live:
            self._write(_AGAIN, control=True)
        self._write(f"{self._label} {seconds:6.1f} s{mark}\n")
        self._open = False
        for line in _displayed(cell.outputs) if self._show_displays else ():
            self._write(f"        {line}\n")

    @property
    def begun(self) -> bool:
        """True if a cell has begun, which means that the kernel has started."""
        return self._number > 0

    def where(self) -> str:
        """Return the place where an interrupted execution stopped."""
        self._end_line()
        return f"cell {self._number} of {self.total}" if self.begun else "the kernel's start"

    def stop(self, why: str) -> None:
        """Record that the running cell failed and ended the execution."""
        self._end_line()
        self.failed.setdefault(self._number, why)

    def failures(self) -> str:
        """Return the failed cells and the reasons, one paragraph for each."""
        return "\n\n".join(
            f"Cell {number} of {self.total} failed: {why}"
            if number
            else f"The notebook failed before its first cell: {why}"
            for number, why in self.failed.items()
        )

    def end(self, text: str, stream: TextIO | None = None) -> None:
        """Write the result.

        Args:
            text: The result, in one sentence.
            stream: Where to write it if this object has none.

        Raises:
            OutputError: This or an earlier line could not be written. A reader that has gone is
                not an error, because the notebook is saved.
        """
        self._stream = self._stream or stream
        self._write(f"{text}\n")
        if self.lost is not None and not isinstance(self.lost, ReaderGone):
            raise self.lost

    def summary(self) -> str:
        """Return the number of executed cells and the numbers of the failed ones."""
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


def _displayed(outputs: Sequence[Any]) -> Iterator[str]:
    """Yield the first lines of each rich display."""
    for output in outputs:
        data = output.get("data", {})
        if len(data) > 1:  # a form besides the text
            lines = itertools.takewhile(str.strip, data.get("text/plain", "").splitlines())
            yield from itertools.islice(lines, _DISPLAY_LINES)


def explained(name: str, message: str, traceback: Sequence[str] | str) -> str:
    """Describe a cell's error, with its cause and its fix if it is a known error.

    Args:
        name: The exception's class name.
        message: The exception's text.
        traceback: Its traceback, which may contain colour codes.

    Returns:
        A few lines of text.
    """
    from tpunb.errors import base as errors
    from tpunb.errors.explain import explain

    lines = traceback if isinstance(traceback, str) else "\n".join(traceback)
    shown = [line for line in f"{name}: {message}".rstrip(": \n").splitlines() if line.strip()]
    if lines.startswith(_BY_CELL):  # tpunb has written it: the cell's lines and the message
        shown = [line for line in lines.splitlines() if line.strip()]
    elif len(shown) > _ERROR_LINES + 1:
        # In an error from a tf.function, the message is at the end, below the source lines.
        half = _ERROR_LINES // 2
        shown = [*shown[:half], "...", *shown[-half:]]
    text = "\n".join(shown)
    if hasattr(errors, name):  # a tpunb error names its own fix
        return text
    entry = explain(f"{lines}\n{name}: {message}")
    return f"{text}\n{entry}" if entry and f"{entry}" not in text else text
