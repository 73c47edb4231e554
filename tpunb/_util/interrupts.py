"""Ctrl-C and the stop button: where an interrupt ends a cell, and the work that it completes.

One handler of SIGINT serves every block of these kinds:

- `Interruptible` surrounds a notebook's cell. An interrupt raises `KeyboardInterrupt`. It waits
  while a library enters or leaves a context, because half of that would spoil the next cell.
- `StopButton` surrounds a run of many steps. An interrupt sets the flag `pressed`, and the run ends
  between two steps. While TensorFlow traces, nothing has run, and the interrupt is raised.
- `uninterrupted` surrounds a change that must be complete. Every signal waits for its end.

While TensorFlow runs a function, the calling thread is in C, where no exception gets through.
`tpunb/tensorflow/virtual/runtime/stoppable.py` makes such calls in a worker
thread, and cancels them.

A second interrupt is raised at once. If a library has swallowed the first, press again.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
import inspect
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from tpunb._util.functions import function_of

_blocks: list[Interruptible] = []
"""The blocks that share the handler. The innermost block is last, and gets the interrupt."""

_original: Any = signal.default_int_handler
"""The handler that the outermost block has replaced."""


class Interruptible:
    """A block in which an interrupt raises `KeyboardInterrupt` where it does no harm.

    On threads other than the main thread, and if interrupts are ignored or not handled by Python,
    the block does nothing.

    Attributes:
        pressed: Whether an interrupt has come and waits.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._former: Any = None  # the handler that this block has replaced

    def __enter__(self) -> Any:
        if self in _blocks or threading.current_thread() is not threading.main_thread():
            return self
        former = signal.getsignal(signal.SIGINT)
        if former is not _handle:
            # None means a handler in C, which could not be restored.
            if former is None or former is signal.SIG_IGN:
                return self
            if not _blocks:
                globals()["_original"] = former
            try:
                signal.signal(signal.SIGINT, _handle)
            except ValueError:  # the main thread of another interpreter
                return self
            self._former = former
        self.pressed = False
        _blocks.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Restore the former handler. A second call does nothing."""
        if self not in _blocks:
            return
        inner = _blocks[_blocks.index(self) + 1 :]
        _blocks.remove(self)
        former, self._former = self._former, None
        if former is None:
            return
        if inner and inner[0]._former is None:
            inner[0]._former = former  # blocks may be left in any order
        elif signal.getsignal(signal.SIGINT) is _handle:
            # Another thread cannot restore it. Our handler then calls the former one.
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGINT, former)

    def is_running(self, frame: FrameType | None) -> bool:
        """Return whether the block goes on, given an interrupted frame."""
        del frame
        return True

    def press(self) -> None:
        """Note the first interrupt."""
        self.pressed = True

    def may_raise(self, frame: FrameType | None) -> bool:
        """Return whether the first interrupt may be raised in a frame."""
        return not _is_halfway(frame)

    def exception(self) -> BaseException:
        """Return the exception of the first interrupt, which is raised now."""
        self.pressed = False
        return KeyboardInterrupt()

    def give_up(self) -> None:
        """Prepare for the `KeyboardInterrupt` that the second interrupt raises."""
        self.pressed = False


class Overdue(KeyboardInterrupt):
    """A run was asked to end between two steps, and a step did not end in time."""


class StopButton(Interruptible):
    """A block in which the first interrupt is noted, so that a run can end between two steps.

        with StopButton() as button:
            while not button.pressed:
                step()

    Within `work`, `Overdue` ends a trace at once, because nothing has run. It also ends a function
    that still runs `grace` seconds after the interrupt. The second interrupt is an ordinary
    `KeyboardInterrupt`.

    Args:
        running: Returns whether the run still goes on, given the interrupted frame. If the
            button may not be left properly, this keeps an interrupt from being lost on a run
            that is over.
        grace: Seconds from the interrupt to the end of a function; None for no limit.
        may_cut: Returns whether `Overdue` may be raised in a frame. By default, in all frames.
        overdue: Makes the exception to raise instead of `Overdue`.

    Attributes:
        pressed: Whether the run was asked to end.
        is_overdue: Whether `Overdue` was raised.
        at_work: Whether `Overdue` may be raised now, that is, within `work`. A run's own
            bookkeeping must not be cut short.
    """

    def __init__(
        self,
        running: Callable[[FrameType | None], bool] = lambda _: True,
        *,
        grace: float | None = None,
        may_cut: Callable[[FrameType | None], bool] = lambda _: True,
        overdue: Callable[[], BaseException] = Overdue,
    ) -> None:
        super().__init__()
        self.is_overdue = self.at_work = False
        self._running, self._may_cut, self._overdue = running, may_cut, overdue
        self._grace = math.inf if grace is None else grace
        self._due = math.inf

    def __enter__(self) -> StopButton:
        if self not in _blocks:
            self.is_overdue = self.at_work = False
        super().__enter__()
        return self

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """Mark a block that may take long and may be cut short."""
        self.at_work = True
        try:
            yield
        except Exception as error:
            if self.is_overdue:  # TensorFlow's C++ code has made another error of it
                raise self._overdue() from error
            raise
        finally:
            self.at_work = False

    def is_running(self, frame: FrameType | None) -> bool:
        """Return whether the run goes on, given an interrupted frame."""
        return self._running(frame)

    def press(self) -> None:
        """Note the first interrupt, and its time."""
        self.pressed, self._due = True, time.monotonic() + self._grace

    def may_raise(self, frame: FrameType | None) -> bool:
        """Return whether TensorFlow traces in a frame, and the trace may be cut short."""
        return self.at_work and is_tracing() and super().may_raise(frame) and self._may_cut(frame)

    def is_due(self) -> bool:
        """Return whether the time has come to end a function that still runs."""
        is_late = self.pressed and self.at_work and time.monotonic() >= self._due
        return is_late and self._may_cut(sys._getframe())

    def exception(self) -> BaseException:
        """Return the exception that cuts the run short now."""
        self.is_overdue = True
        return self._overdue()

    def give_up(self) -> None:
        """Leave: the run did not end at the first interrupt."""
        self.leave()


def raise_if_due() -> None:
    """Raise the exception of a run that was asked to end, and whose function goes on for too long.

    The main thread calls this now and then while it waits for a function.
    """
    block = _blocks[-1] if _blocks else None
    if isinstance(block, StopButton) and block.is_due():
        raise block.exception()


def _handle(number: int, frame: FrameType | None) -> None:
    while _blocks and not _blocks[-1].is_running(frame):
        _blocks[-1].leave()
    if not _blocks:
        # Another thread has left the last block, or other code has set this handler again.
        signal.signal(signal.SIGINT, _original)
        if callable(_original):
            _original(number, frame)
            return
        raise KeyboardInterrupt
    block = _blocks[-1]
    if block.pressed:
        block.give_up()
        raise KeyboardInterrupt
    block.press()
    if block.may_raise(frame):
        raise block.exception()
    if sys.getprofile() is None:
        sys.setprofile(_at_event)


def _at_event(frame: FrameType, event: str, _: Any) -> None:
    """Raise an interrupt that waits, at a call of a function in which it may be raised.

    Python calls this function at the events of a profiler, until it is removed.
    """
    block = next((each for each in reversed(_blocks) if each.pressed), None)
    if block is None:
        sys.setprofile(None)
    # A generator that is resumed would end without its `finally`.
    elif event == "call" and not frame.f_code.co_flags & _RESUMABLE and block.may_raise(frame):
        sys.setprofile(None)
        raise block.exception()


_RESUMABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

_CONTEXT_METHODS = frozenset({"__aenter__", "__aexit__", "__enter__", "__exit__"})
_LIBRARIES = frozenset({"keras", "tensorflow", "tf_keras", "threading", "tpunb"})
_DROPPING_MODULES = frozenset({"IPython.core.events", "_weakrefset", "weakref"})
_DROPPING = frozenset({"__del__", "_without_tensor_names"})
"""Functions that C code calls, which drops their exceptions. TensorFlow (2.18 to 2.21) compares
structures of types in C++, and then reports that a type has no `_without_tensor_names`."""

_SHELL = "IPython.core.interactiveshell"


def _is_halfway(frame: FrameType | None) -> bool:
    """Return whether an exception in a frame is dropped, or leaves a context half entered.

    Destructors, callbacks of weak dictionaries and of the garbage collector (JAX has one), and
    IPython's events before a cell drop exceptions. TensorFlow's stacks of graphs and scopes keep
    the entry of a half-entered context for the rest of the thread. The user's own contexts may wait
    for long, and are not protected.

    Args:
        frame: The interrupted frame, with its callers; None if nothing runs.
    """
    callbacks = filter(None, map(function_of, gc.callbacks))
    inner, collecting = frame, {callback.__code__ for callback in callbacks}
    while frame is not None:
        name, module = frame.f_code.co_name, _module(frame)
        if name in _DROPPING or module in _DROPPING_MODULES or frame.f_code in collecting:
            return True
        if module == _SHELL and name in ("run_code", "run_cell_async"):
            return name != "run_code"  # IPython shows its own frames before and after the code
        if name in _CONTEXT_METHODS:
            # A generator that serves as a context is called by contextlib.
            owner = inner if module == "contextlib" and inner is not None else frame
            if is_of(owner, _LIBRARIES | {"contextlib"}):
                return True
        inner, frame = frame, frame.f_back
    return False


def is_of(frame: FrameType, packages: frozenset[str]) -> bool:
    """Return whether a frame's code is in one of some packages."""
    return _module(frame).partition(".")[0] in packages


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def is_tracing() -> bool:
    """Return whether TensorFlow traces a function, so that nothing runs."""
    tensorflow = sys.modules.get("tensorflow")
    eagerly = getattr(tensorflow, "executing_eagerly", None)
    return eagerly is not None and not eagerly()


_RAISING = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGALRM", "SIGTERM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]
"""The signals whose handlers raise: a key, the time limit of a test, the end of a kernel."""


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay every interrupt to the end of a block.

    This has an effect only in the main thread, and only if Python has a handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    formers: dict[int, Callable[[int, FrameType | None], object]] = {
        number: former for number in _RAISING if callable(former := signal.getsignal(number))
    }
    received: list[int] = []
    for number in formers:
        signal.signal(number, lambda number, _: received.append(number))
    try:
        yield
    finally:
        for number, former in formers.items():
            signal.signal(number, former)
    for number in dict.fromkeys(received):
        formers[number](number, sys._getframe())


class Stopped(KeyboardInterrupt):
    """The stop button ended a run. Everything done so far is kept.

    Like every interrupt, it passes `except Exception` and ends "run all".

    Args:
        message: The state of the run and how to continue, in a sentence or two.
    """

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


@contextlib.contextmanager
def explaining_interrupts(text: str | Callable[[], str]) -> Iterator[None]:
    """Turn an interrupt within a block into a sentence about the state of the run.

    Args:
        text: The sentence after "Stopped", or a function that returns it at the interrupt.

    Raises:
        Stopped: Raised instead of any other interrupt.
    """
    __tracebackhide__ = True
    try:
        yield
    except Stopped:
        raise
    except KeyboardInterrupt:
        raise Stopped(text if isinstance(text, str) else text()) from None


def interrupt_main() -> None:
    """Interrupt the main thread, even within a system call if the system allows it."""
    if sys.platform == "win32":
        _thread.interrupt_main(signal.SIGINT)
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
