"""Explanations of known errors under the tracebacks that a shell shows."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from tpunb._util.internal_errors import report_internal_error
from tpunb._util.interrupts import Stopped
from tpunb._util.logs import logger
from tpunb._util.plain_text import plain
from tpunb.errors import TpunbError, nearest
from tpunb.errors.code_problems import known_error, refusal_in_short
from tpunb.notebook.interrupted_cells import shorten

if TYPE_CHECKING:
    from tpunb.errors.catalogue import Explanation

_MARK = "_tpunb_explained"
_RUNNING = "run_code"  # IPython's function that executes cells, in all its versions


class Explaining:
    """A handler that adds the cause and the fix to the known errors of a shell's cells.

    IPython lets one handler take the exceptions of cells (`set_custom_exc`). This handler shows
    them as IPython does. If another handler was set before, it still gets the errors that it was
    set for.

    Args:
        shell: An IPython shell.
        report: Receives each explanation that is shown.
        instead: Returns a better sentence to show instead of an error and its
            explanation, or None.
        hint: Returns a sentence for an error that is not known.
    """

    def __init__(
        self,
        shell: Any,
        report: Callable[[Explanation], None],
        instead: Callable[[Explanation], str | None] = lambda _: None,
        hint: Callable[[BaseException], str | None] = lambda _: None,
    ) -> None:
        self._shell = shell
        self._instead = instead
        self._hint = hint
        self._report = report
        self._theirs: tuple[tuple[type[BaseException], ...], Any] = ((), None)
        self._ours: Any = None
        self._active = False

    def install(self) -> None:
        """Begin to explain errors."""
        self._active = True
        self._theirs = (self._shell.custom_exceptions, self._shell.CustomTB)
        # KeyboardInterrupt, because a user who waits in vain for a TPU interrupts the cell.
        self._shell.set_custom_exc((Exception, KeyboardInterrupt), self._handle)
        self._ours = self._shell.CustomTB

    def remove(self) -> None:
        """End the explanations; a handler that was set since stays."""
        self._active = False  # their handler may call this one
        if self._shell.CustomTB is self._ours:
            self._shell.custom_exceptions, self._shell.CustomTB = self._theirs

    def _handle(
        self,
        shell: Any,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType,
        tb_offset: int | None = None,
    ) -> None:
        """Show an error; IPython calls this method instead of showing the error itself."""
        if isinstance(error, Stopped) and not isinstance(error, self._theirs[0]):
            # A stop that the user has asked for is not an error, but it ends "run all" like an
            # error.
            sys.stdout.write(f"Stopped: {error}\n")
            return
        addition = internal_error = None
        try:
            if self._active:
                shorten(error, shell)
            addition = self._addition(error)
        except Exception as failure:  # the user's own error is shown nevertheless
            internal_error = failure
        theirs, handler = self._theirs
        if isinstance(error, theirs):
            handler(kind, error, trace, tb_offset)
        else:
            _show(shell, kind, error, trace)
        if addition is not None and not addition.shown:
            sys.stderr.write(f"{addition.text}\n")
        if internal_error is not None:
            log = logger("notebook")
            report_internal_error(internal_error, log, "An error is shown without its explanation.")

    def _addition(self, error: BaseException) -> _Addition | None:
        """Return the addition to an error, prepared to be shown with the error."""
        if not self._active or (isinstance(error, TpunbError) and error.fix):
            return None
        from tpunb.errors.explain import explain  # the catalogue is read only after an error

        addition = getattr(error, _MARK, None)
        if not isinstance(addition, _Addition):
            explanation = explain(error)
            if explanation is None and (hint := self._hint(error)) is None:
                return None
            if explanation is not None:
                sentence = self._instead(explanation)
                # The error's own message may have the cause, the fix and the explanation's name.
                own = refusal_in_short(str(error).strip()) or ""
                if sentence is not None:
                    lines = plain(f"{type(error).__name__}: {sentence}").split("\n")
                    error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
                if sentence is not None or own.endswith(known_error(explanation.code)):
                    self._report(explanation)
                    return None
            addition = _Addition(str(explanation or hint), explanation)
            _render_with(error, addition, self._shell)
        addition.shown = False  # the error may have been raised and shown before
        if addition.explanation is not None:
            self._report(addition.explanation)
        return addition


@dataclasses.dataclass
class _Addition:
    """The text under an error.

    Attributes:
        text: The displayed text.
        explanation: The explanation in the text, if the error is known.
        shown: Whether the text has been shown with the error's traceback.
    """

    text: str
    explanation: Explanation | None
    shown: bool = False


def _render_with(error: Any, addition: _Addition, shell: Any) -> None:
    """Let IPython show an addition below an error's own traceback."""
    own = getattr(error, "_render_traceback_", None)

    def render() -> Any:
        if own is not None:
            lines = own()
        else:
            # Use the mode that %xmode has chosen by then, also for %tb.
            lines = shell.InteractiveTB.structured_traceback(
                type(error), error, error.__traceback__, tb_offset=None
            )
        if not isinstance(lines, list):  # some shells, such as Colab's, return their own objects
            return lines
        addition.shown = True
        return [*lines, "", addition.text]

    try:
        error._render_traceback_ = render
        setattr(error, _MARK, addition)
    except Exception:  # an exception without a dictionary: the text is printed after it
        return


def _show(
    shell: Any, kind: type[BaseException], error: BaseException, trace: TracebackType
) -> None:
    """Show an error as IPython does without a handler."""
    # IPython treats these errors as syntax errors if they come before a cell runs.
    compiling = (OverflowError, SyntaxError, ValueError, TypeError, MemoryError)
    if trace.tb_frame.f_code.co_name == _RUNNING or not isinstance(error, compiling):
        shell.showtraceback((kind, error, trace), running_compiled_code=True)
    elif isinstance(error, IndentationError):
        shell.showindentationerror()
    else:
        shell.showsyntaxerror()


_NO_MAGIC = re.compile(r"magic (?:function )?`(%+)(\w+)` not found")

_INSIDE = frozenset({"replica_id", "num_replicas", "ctx"})
_OF_CONNECTING = frozenset({"strategy", "resolver", "topology", "connection"})


def about_missing(error: BaseException, magics: Iterable[str], *, connected: bool) -> str | None:
    """Return a sentence about a missing magic, or a missing name that magics make; else None.

    Args:
        error: The error of a cell.
        magics: The names of tpunb's magics.
        connected: Whether there is a connection.
    """
    missing = _NO_MAGIC.search(str(error)) if isinstance(error, UsageError) else None
    if missing and missing[2].startswith("tpu"):
        near = nearest(missing[2], magics, most=1)
        if near == [missing[2]] and missing[1] == "%":
            return f"Write `%%{near[0]}` as the first line of a cell, and the statements below it."
        return f"Did you mean `{missing[1]}{near[0]}`?" if near else None
    if type(error) is not NameError:
        return None
    if error.name in _INSIDE:
        return f"`{error.name}` exists inside `%%tpu_run` cells: make that the cell's first line."
    if error.name in _OF_CONNECTING and not connected:
        return f"`%tpu_connect` makes `{error.name}`, and nothing is connected."
    if error.name == "history":
        return (
            "A `%%tpu_run` cell with `-p` makes `history`; the last run's is always "
            "`tpunb.history`, also that of `fit` with LiveCurves."
        )
    return None
