"""Our warnings as plain text: Jupyter shows what is written as an error on red."""

from __future__ import annotations

import linecache
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

from tpunb._util.plain_text import plain
from tpunb.errors import TpuWarning

_OURS = str(Path(__file__).parents[1])
_A_RUN = "%%tpu_run"


class PlainWarnings:
    """Shows our warnings without paths of ours, on the standard output.

    Others are shown as before, and so are ours to whoever catches warnings.
    """

    def __init__(self) -> None:
        self._before: Any = None

    def install(self) -> None:
        """Begins with the next warning."""
        self._before = warnings.showwarning
        warnings.showwarning = self._show

    def remove(self) -> None:
        """Ends it, unless somebody else has taken over since."""
        if warnings.showwarning == self._show:
            warnings.showwarning = self._before

    def _show(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        ours = issubclass(category, TpuWarning) or filename.startswith((_A_RUN, _OURS))
        if file is not None or not ours:
            self._before(message, category, filename, lineno, file, line)
            return
        from tpunb.cells.source import is_cell_filename

        # Where in the notebook, if that is known; execution counts change from run to run.
        place = f", line {lineno} of the cell" if is_cell_filename(filename) else ""
        # A line of ours tells the notebook's author nothing.
        code = "" if filename.startswith(_OURS) else linecache.getline(filename, lineno).strip()
        text = f"Warning{place}: {message}\n" + (f"    {code}\n" if code else "")
        sys.stdout.write(("\n" if _is_in_progress_line() else "") + plain(text))


def _is_in_progress_line() -> bool:
    """Returns whether the output ends with Keras's progress line: a callback runs in between."""
    frame: FrameType | None = sys._getframe()
    between = False
    while frame is not None:
        name = frame.f_code.co_name
        between = between or name.endswith(("_batch_end", "_epoch_end"))
        if between and name in {"fit", "evaluate", "predict"}:
            return frame.f_locals.get("verbose") in ("auto", 1)
        frame = frame.f_back
    return False
