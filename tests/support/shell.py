"""A real IPython shell, like a kernel's."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config


@dataclasses.dataclass
class Ran:
    """The result of running a cell.

    Attributes:
        value: The cell's value.
        error: The error that it raised.
        shown: The mimebundles that it displayed, including its value's.
        text: Its standard output and error.
    """

    value: Any
    error: BaseException | None
    shown: list[dict[str, Any]]
    text: str

    @property
    def plain(self) -> str:
        """All that a terminal would show."""
        return "\n".join([*(bundle["text/plain"] for bundle in self.shown), self.text])


class Notebook:
    """An IPython shell, which is the process's own, as in a kernel.

    Args:
        folder: IPython's folder.
        *cells: The cells to run first.
    """

    def __init__(self, folder: Path, *cells: str) -> None:
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.cache_size = 0
        self.before = (sys.modules["__main__"], sys.excepthook)
        InteractiveShell.clear_instance()
        self.shell = InteractiveShell.instance(config=config, ipython_dir=str(folder))
        # IPython creates its own magics when they are first used.
        self.run("%unload_ext nothing_of_this_name")
        for cell in cells:
            self.good(cell)

    def __enter__(self) -> Notebook:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, source: str) -> Ran:
        """Run a cell, which may fail."""
        with capture_output() as captured:
            result = self.shell.run_cell(source)
        shown = [output.data for output in captured.outputs]
        if result.result is not None:
            shown.append(self.shell.display_formatter.format(result.result)[0])
        error = result.error_before_exec or result.error_in_exec
        return Ran(result.result, error, shown, captured.stdout + captured.stderr)

    def good(self, source: str) -> Ran:
        """Run a cell that must not raise."""
        ran = self.run(source)
        assert ran.error is None, ran.text
        return ran

    @property
    def names(self) -> dict[str, Any]:
        """The notebook's namespace."""
        namespace: dict[str, Any] = self.shell.user_ns
        return namespace

    @property
    def session(self) -> Any:
        return self.shell._tpunb_extension.magics.session

    def close(self) -> None:
        if hasattr(self.shell, "_tpunb_extension"):
            self.shell.run_line_magic("unload_ext", "tpunb")
        InteractiveShell.clear_instance()
        sys.modules["__main__"], sys.excepthook = self.before
