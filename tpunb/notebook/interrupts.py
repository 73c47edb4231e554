"""Interrupts of cells: end TensorFlow's calls, raise lost interrupts again, shorten tracebacks."""

from __future__ import annotations

import _thread
import linecache
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

from tpunb._util.plain_text import plain, shortened
from tpunb._util.units import grouped
from tpunb._util.user_code import is_users_code
from tpunb.training.stop_button import PATIENCE, can_unwind, interrupt_main

_DELAY = 0.05
"""Seconds until a lost interrupt comes again; code that swallowed it has moved on by then."""

_SHORTLY = 0.002
"""Seconds until the next check whether the interrupt can be raised."""

_SWALLOWING = frozenset({"keras", "tensorflow", "tf_keras"})


class _Interrupt(KeyboardInterrupt):
    """An interrupt that notices when no code holds it any longer.

    Args:
        again: Called once if the interrupt was lost.
    """

    def __init__(self, again: Callable[[], object]) -> None:
        super().__init__()
        self._again: Callable[[], object] | None = again

    def is_lost(self) -> None:
        """Note that it did not end the interrupted code, and user code did not catch it."""
        again, self._again = self._again, None
        if again is not None:
            again()

    def __del__(self) -> None:
        # The outermost frame in the traceback is the frame that caught the interrupt.
        trace = self.__traceback__
        if trace is not None and (trace.tb_next is None or _is_of(_SWALLOWING, trace.tb_frame)):
            self.is_lost()  # with no frame but the handler's, C code lost it


# All code must see an ordinary KeyboardInterrupt.
_Interrupt.__name__ = _Interrupt.__qualname__ = KeyboardInterrupt.__name__
_Interrupt.__module__ = KeyboardInterrupt.__module__


def _is_of(packages: frozenset[str], frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in packages


class LastingInterrupts:
    """A handler that raises an interrupt again if the interrupt did not end the running cell.

    An interrupt that the user's own code catches is not raised again. This handler replaces only
    Python's own handler, and does nothing if another handler is set.
    """

    def __init__(self) -> None:
        self._entries = 0
        self._entered = False
        self._waits_since: float | None = None
        self._hook: Callable[[Any], object] | None = None
        self._former_hook: Callable[[Any], object] = sys.__unraisablehook__

    def __enter__(self) -> LastingInterrupts:
        if threading.current_thread() is not threading.main_thread():
            return self
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            former = self._former_hook = sys.unraisablehook

            def unraisable(what: Any) -> None:
                if isinstance(what.exc_value, _Interrupt):
                    what.exc_value.is_lost()
                else:
                    former(what)

            # One hook for each cell, because a hook that was set later calls this one.
            self._hook = sys.unraisablehook = unraisable
            self._entries += 1
            self._entered = True
            self._waits_since = None
        return self

    def __exit__(self, *_: object) -> None:
        self._entered = False
        if sys.unraisablehook is self._hook:
            sys.unraisablehook = self._former_hook
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        entry, now = self._entries, time.monotonic()
        if can_unwind(frame):
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now
        # Do not use `threading.Thread`: see `StopButton`.
        if self._waits_since is not None and now < self._waits_since + PATIENCE:
            _thread.start_new_thread(self._again, (entry, _SHORTLY))
            return
        self._waits_since = None
        raise _Interrupt(lambda: _thread.start_new_thread(self._again, (entry, _DELAY)))

    def _again(self, entry: int, delay: float) -> None:
        time.sleep(delay)
        if self._entered and self._entries == entry:
            interrupt_main()


_LIBRARIES = _SWALLOWING | {"tpunb"}
_GENERATED = "__autograph_generated_file"
_ENDS = 4
"""The number of frames that are shown at either end of a long traceback."""
_WIDTH = 200


def shorten(error: BaseException, shell: Any) -> None:
    """Make IPython show an interrupt by the lines of the user's code that led to it.

    An interrupt outside libraries is shown as IPython shows it. So is an interrupt that renders
    itself.
    """
    if not isinstance(error, KeyboardInterrupt) or hasattr(error, "_render_traceback_"):
        return
    frames = list(traceback.walk_tb(error.__traceback__))
    if not any(_is_of(_LIBRARIES, frame) for frame, _ in frames):
        return
    # IPython before 8.4 has no names for cells.
    name_of = getattr(shell.compile, "format_code_name", lambda _: None)
    own = []
    for frame, line in frames:
        code = frame.f_code
        is_users = is_users_code(code) and not _is_of(_LIBRARIES, frame)
        if is_users and _GENERATED not in code.co_filename:
            label = name_of(code.co_filename)
            where = " ".join(label) if label else f'File "{code.co_filename}"'
            text = shortened(linecache.getline(code.co_filename, line).strip(), _WIDTH)
            own.append(f"  {where}, line {line}, in {code.co_name}\n    {text}")
    if len(own) > 2 * _ENDS:
        own[_ENDS:-_ENDS] = [f"  … {grouped(len(own) - 2 * _ENDS)} more …"]
    lines = ["Traceback (most recent call last; your code alone):", *own]
    lines += traceback.format_exception_only(type(error), error)
    shown = [plain(line.rstrip("\n")) for line in lines]
    error._render_traceback_ = lambda: shown  # type: ignore[attr-defined]


class StoppableCells:
    """Stoppable functions in a shell's cells, while there is a connection.

    A lost interrupt comes again with and without a connection. `%%tpu_run` handles its own
    interrupts. Without this class, a training step in an ordinary cell, or Keras's `fit`, would
    delay an interrupt until TensorFlow returns.

    Args:
        shell: An IPython shell.
        calls: Returns the context that makes function calls stoppable; None without a connection.
    """

    def __init__(self, shell: Any, calls: Callable[[], AbstractContextManager[Any] | None]) -> None:
        self._events = shell.events
        self._calls = calls
        self._entered: AbstractContextManager[Any] | None = None
        self._lasting = LastingInterrupts()
        self._depth = 0

    def install(self) -> None:
        """Begin with the next cell."""
        self._events.register("pre_run_cell", self._cell_begins)
        self._events.register("post_run_cell", self._cell_ends)

    def remove(self) -> None:
        """End at once."""
        self._events.unregister("pre_run_cell", self._cell_begins)
        self._events.unregister("post_run_cell", self._cell_ends)
        self._leave()

    def _cell_begins(self, _: Any = None) -> None:
        self._depth += 1  # a cell may run another cell
        if self._depth > 1:
            return
        self._lasting.__enter__()
        if (calls := self._calls()) is not None:
            calls.__enter__()
            self._entered = calls

    def _cell_ends(self, _: Any = None) -> None:
        # For the cell that loads the extension, only the end is reported.
        self._depth = max(0, self._depth - 1)
        if self._depth == 0:
            self._leave()

    def _leave(self) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.__exit__(None, None, None)
        self._lasting.__exit__()
