"""`%load_ext tpunb` and `%unload_ext tpunb`: all additions to a shell, and their removal."""

from __future__ import annotations

import contextlib
import linecache
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

from IPython.core.getipython import get_ipython

from tpunb._util.plain_text import plain
from tpunb.errors import TpuWarning
from tpunb.machine.import_tensorflow import QuietImport, restore_log, silence_log
from tpunb.notebook.explain_hook import Explaining, about_missing
from tpunb.notebook.interrupted_cells import InterruptibleCells
from tpunb.notebook.judged_programs import JudgedPrograms
from tpunb.notebook.magics import TpuMagics
from tpunb.notebook.ran_cells import RanCells

_ATTRIBUTE = "_tpunb_extension"


class _Extension:
    """All additions of loading to one shell, and the entries that they replaced."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self.magics = TpuMagics(shell)
        session = self.magics.session
        self.explaining = Explaining(
            shell, session.remember, session.about_closed, self._about_missing
        )
        self.stoppable = InterruptibleCells(shell, self.magics.session.stoppable_calls)
        self.judged = JudgedPrograms(shell)
        self.ran = RanCells(shell)
        self.importing = QuietImport()
        self.warnings = PlainWarnings()
        self.matcher: Any = None
        self.replaced: list[tuple[dict[Any, Any], Any, Any, Any]] = []  # table, key, ours, before
        self.formatters: list[tuple[str, str, Any, Any]] = []

    def _about_missing(self, error: BaseException) -> str | None:
        names = [name for named in self.magics.magics.values() for name in named]
        connected = self.magics.session.open_connection is not None
        return about_missing(error, names, connected=connected)

    def load(self) -> None:
        tables = self.shell.magics_manager.magics
        named = {name: m for methods in self.magics.magics.values() for name, m in methods.items()}
        for kind, methods in self.magics.magics.items():
            for name, method in methods.items():
                self._replace(tables[kind], name, method)
        self.shell.register_magics(self.magics)
        # IPython takes `%%tpu_run` below a cell's first line for a line magic called `%tpu_run`.
        for name in self.magics.magics["cell"]:
            self._replace(tables["line"], f"%{name}", self.magics.misplaced)
        # Messages and docs use `tpunb.show(x)`. The name stays after unloading, because the
        # notebook may have imported tpunb as well.
        self.shell.user_ns.setdefault("tpunb", sys.modules["tpunb"])
        with contextlib.suppress(ImportError):  # IPython before 8.6, which Colab has
            from tpunb.notebook.completion import magic_matcher

            self.matcher = magic_matcher(named, self.shell.user_ns)
            self.shell.Completer.custom_matchers.append(self.matcher)
        formatter = self.shell.display_formatter.mimebundle_formatter
        for module, name, function in self.magics.displays.formatters():
            before = formatter.deferred_printers.get((module, name))
            formatter.for_type_by_name(module, name, function)
            self.formatters.append((module, name, function, before))
        # IPython prints builtin types itself, and ignores the text in their bundle.
        printers = self.shell.display_formatter.formatters["text/plain"].type_printers
        for kind in (dict, list, tuple):
            printer = self.magics.displays.nest_printer(printers.get(kind))
            self._replace(printers, kind, printer)
        self.explaining.install()
        self.stoppable.install()
        self.judged.install()
        self.ran.install()
        self.warnings.install()
        silence_log()
        sys.meta_path.insert(0, self.importing)

    def _replace(self, table: dict[Any, Any], key: Any, ours: Any) -> None:
        self.replaced.append((table, key, ours, table.get(key)))
        table[key] = ours

    def unload(self) -> None:
        try:
            self.magics.session.disconnect()
        finally:
            self.magics.displays.close()
            for table, key, ours, before in self.replaced:
                _put_back(table, key, ours, before)
            registry = self.shell.magics_manager.registry
            if registry.get("TpuMagics") is self.magics:
                del registry["TpuMagics"]
            if self.matcher is not None:
                with contextlib.suppress(ValueError):
                    self.shell.Completer.custom_matchers.remove(self.matcher)
            self._restore_formatters()
            self.explaining.remove()
            self.stoppable.remove()
            self.judged.remove()
            self.ran.remove()
            self.warnings.remove()
            if self.importing in sys.meta_path:
                sys.meta_path.remove(self.importing)
            restore_log()

    def _restore_formatters(self) -> None:
        formatter = self.shell.display_formatter.mimebundle_formatter
        for module, name, function, before in self.formatters:
            _put_back(formatter.deferred_printers, (module, name), function, before)
            # IPython moves a formatter here when it meets the type.
            for kind in list(formatter.type_printers):
                if (kind.__module__, kind.__name__) == (module, name):
                    _put_back(formatter.type_printers, kind, function, before)


def _put_back(table: dict[Any, Any], key: Any, ours: Any, before: Any) -> None:
    """Restore an entry of a table, or remove it if there was none; keep what replaced it since."""
    if table.get(key) is not ours:
        return
    if before is None:
        table.pop(key, None)
    else:
        table[key] = before


def load(shell: Any) -> None:
    """Add the magics, their completion and the displays to a shell."""
    if getattr(shell, _ATTRIBUTE, None) is not None:
        return
    extension = _Extension(shell)
    extension.load()
    setattr(shell, _ATTRIBUTE, extension)


def loaded() -> Any:
    """Return the additions to the present shell; None if the extension is not loaded."""
    return getattr(get_ipython(), _ATTRIBUTE, None)


def unload(shell: Any) -> None:
    """Remove the additions of `load`, and close the connection."""
    extension = getattr(shell, _ATTRIBUTE, None)
    if extension is None:
        return
    delattr(shell, _ATTRIBUTE)
    extension.unload()


_OURS = str(Path(__file__).parents[1])
_A_RUN = "%%tpu_run"


class PlainWarnings:
    """A display of tpunb's warnings without tpunb's paths, on the standard output.

    Other warnings are shown as before. Code that catches warnings also gets tpunb's warnings.
    """

    def __init__(self) -> None:
        self._before: Any = None

    def install(self) -> None:
        """Begin with the next warning."""
        self._before = warnings.showwarning
        warnings.showwarning = self._show

    def remove(self) -> None:
        """End the display, unless another function has replaced it since."""
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
        from tpunb.cells.reading.source import is_cell_filename

        # Name the line in the cell if it is known, but not the cell: execution counts change from
        # run to run.
        place = f", line {lineno} of the cell" if is_cell_filename(filename) else ""
        # A line of tpunb's code does not help the notebook's author.
        code = "" if filename.startswith(_OURS) else linecache.getline(filename, lineno).strip()
        text = f"Warning{place}: {message}\n" + (f"    {code}\n" if code else "")
        sys.stdout.write(("\n" if _is_in_progress_line() else "") + plain(text))


def _is_in_progress_line() -> bool:
    """Return whether the output ends with Keras's progress line, because a callback runs."""
    frame: FrameType | None = sys._getframe()
    between = False
    while frame is not None:
        name = frame.f_code.co_name
        between = between or name.endswith(("_batch_end", "_epoch_end"))
        if between and name in {"fit", "evaluate", "predict"}:
            return frame.f_locals.get("verbose") in ("auto", 1)
        frame = frame.f_back
    return False
