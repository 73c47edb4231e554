"""Interrupts: where they are raised, where they wait, and what a stop button records."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from counterparts.children import output_of
from support.patience import PATIENCE, wait_until

from tpunb._util.interrupts import Interruptible, Overdue, StopButton, Stopped, raise_if_due


@pytest.fixture(autouse=True)
def handler() -> Iterator[Any]:
    """Use an ordinary handler, and check that it is restored after each test."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_press_is_recorded() -> None:
    with StopButton() as button:
        assert not button.pressed
        press()
        assert button.pressed
    with button:
        assert not button.pressed


def test_the_second_press_is_an_ordinary_interrupt(handler: Any) -> None:
    button = StopButton()
    button.__enter__()
    press()
    with pytest.raises(KeyboardInterrupt) as raised:
        press()
    assert type(raised.value) is KeyboardInterrupt
    assert signal.getsignal(signal.SIGINT) is handler
    assert button.pressed


def test_buttons_may_be_left_in_the_order_of_entering(handler: Any) -> None:
    first, second, third = StopButton(), StopButton(), StopButton()
    for button in (first, second, third):
        button.__enter__()
    first.leave()
    second.leave()
    press()
    assert third.pressed
    third.leave()
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_button_that_is_still_pressed_stays(handler: Any) -> None:
    first, second = StopButton(), StopButton()
    with first:
        with second:
            pass
        press()
        assert first.pressed
    assert signal.getsignal(signal.SIGINT) is handler


def test_errors_are_raised(handler: Any) -> None:
    with pytest.raises(ZeroDivisionError), StopButton():
        _ = 1 / 0
    with pytest.raises(KeyboardInterrupt):
        press()


@pytest.mark.parametrize("former", [signal.SIG_DFL, lambda *_: None])
def test_the_earlier_handler_comes_back(former: Any) -> None:
    signal.signal(signal.SIGINT, former)
    with StopButton():
        assert signal.getsignal(signal.SIGINT) is not former
    assert signal.getsignal(signal.SIGINT) is former
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ignored_interrupts_stay_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopButton() as button:
        press()
    assert not button.pressed
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_threads_have_no_button(handler: Any) -> None:
    handlers = []

    def run() -> None:
        with StopButton() as button:
            handlers.append((button.pressed, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [(False, handler)]


def test_nested_buttons() -> None:
    with StopButton() as outer:
        with StopButton() as inner:
            press()
        assert (outer.pressed, inner.pressed) == (False, True)
        press()
        assert outer.pressed


def test_entering_twice_counts_once(handler: Any) -> None:
    with StopButton() as button, button:
        press()
    assert button.pressed
    button.leave()
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_handler_set_inside_the_button_stays() -> None:
    def other_handler(*_: Any) -> None: ...

    with StopButton() as button:
        button_handler = signal.signal(signal.SIGINT, other_handler)
    assert signal.getsignal(signal.SIGINT) is other_handler
    # If the other handler restores ours after the block, ours lets interrupts through.
    signal.signal(signal.SIGINT, button_handler)
    with pytest.raises(KeyboardInterrupt):
        press()
    assert not button.pressed


def test_a_finished_run_gets_no_press() -> None:
    running = True
    button = StopButton(lambda frame: running and frame is not None)
    button.__enter__()
    press()
    assert button.pressed
    running = False
    with pytest.raises(KeyboardInterrupt):
        press()


def test_left_on_another_thread() -> None:
    button = StopButton()
    button.__enter__()
    thread = threading.Thread(target=button.leave)
    thread.start()
    thread.join()
    with pytest.raises(KeyboardInterrupt):
        press()


def test_a_handler_set_between_two_blocks_comes_back(handler: Any) -> None:
    other_handler = lambda *_: None  # noqa: E731
    with Interruptible():
        outer_handler = signal.signal(signal.SIGINT, other_handler)
        with StopButton() as button:
            press()
        assert signal.getsignal(signal.SIGINT) is other_handler
        signal.signal(signal.SIGINT, outer_handler)
    assert button.pressed
    assert signal.getsignal(signal.SIGINT) is handler


LIBRARY = """
def call(function):
    return function()

class Scope:
    def __init__(self, press, *where):
        self.press, self.where, self.done = press, where, []
    def __enter__(self):
        self.at("__enter__")
    def __exit__(self, *error):
        self.at("__exit__")
    def __del__(self):
        self.at("__del__")
    def at(self, name):
        if name in self.where:
            self.press()
        self.done.append(name)

@contextlib.contextmanager
def generator(press, where, done):
    if where == "__enter__":
        press()
    done.append("__enter__")
    yield
    if where == "__exit__":
        press()
    done.append("__exit__")
"""


def module(name: str) -> Any:
    names: dict[str, Any] = {"__name__": name, "contextlib": contextlib}
    exec(LIBRARY, names)
    return SimpleNamespace(**names)


@pytest.fixture
def library() -> Any:
    return module("tensorflow.python.made_up")


def press_and_wait() -> None:
    press()
    threading.Event().wait()


def work() -> None:
    """Call functions until an interrupt comes, as a cell does."""
    wait_until(lambda: False)


@pytest.mark.parametrize("name", ["__enter__", "__exit__", "__del__"])
def test_an_interrupt_waits_until_it_can_be_raised(library: Any, name: str) -> None:
    def cell(scopes: list[Any]) -> None:
        with scopes[0]:
            pass
        scopes.clear()
        work()

    scope = library.Scope(press, name)
    done = scope.done
    scopes = [scope]
    del scope
    with Interruptible(), pytest.raises(KeyboardInterrupt):
        cell(scopes)
    scopes.clear()
    assert done == ["__enter__", "__exit__", "__del__"]
    assert sys.getprofile() is None


@pytest.mark.parametrize("phase", ["before", "start", "stop"])
def test_an_interrupt_in_a_callback_of_the_garbage_collector_is_not_lost(phase: str) -> None:
    def callback(now: str, info: dict[str, int]) -> None:
        del info
        calls.append(now)
        if now == phase:
            press()

    def cell() -> None:
        if phase == "before":
            with module("keras.made_up").Scope(press, "__enter__"):
                gc.collect()  # while the interrupt waits
        else:
            gc.collect()
        work()

    calls: list[str] = []
    gc.callbacks.append(callback)
    try:
        with Interruptible(), pytest.raises(KeyboardInterrupt):
            cell()
    finally:
        gc.callbacks.remove(callback)
    assert calls[:2] == ["start", "stop"]


@pytest.mark.parametrize("where", ["__enter__", "__exit__"])
def test_a_generator_used_as_a_context_continues(library: Any, where: str) -> None:
    def cell() -> None:
        with library.generator(press, where, done):
            pass
        work()

    done: list[str] = []
    with Interruptible(), pytest.raises(KeyboardInterrupt):
        cell()
    assert done == ["__enter__", "__exit__"]


def test_a_context_in_which_an_interrupt_waits_is_left() -> None:
    scope = module("keras.made_up").Scope(press, "__enter__")
    with Interruptible(), pytest.raises(KeyboardInterrupt), scope:
        work()
    assert scope.done == ["__enter__", "__exit__"]


def test_the_users_own_contexts_are_interrupted_at_once() -> None:
    scope = module("__main__").Scope(press_and_wait, "__enter__")
    with Interruptible(), pytest.raises(KeyboardInterrupt), scope:
        pass
    assert scope.done == []
    scope = module("__main__").generator(press_and_wait, "__enter__", [])
    with Interruptible(), pytest.raises(KeyboardInterrupt), scope:
        pass


def test_a_second_press_does_not_wait(library: Any) -> None:
    def press_twice() -> None:
        press()
        press()

    scope = library.Scope(press_twice, "__enter__")
    with Interruptible() as cell, pytest.raises(KeyboardInterrupt), scope:
        pass
    assert scope.done == []
    assert not cell.pressed


def test_a_waiting_interrupt_ends_with_its_block(library: Any) -> None:
    scope = library.Scope(press, "__exit__")
    with Interruptible():
        scope.__exit__()
    work_is_done = [library.call(lambda: 1)]
    assert work_is_done == [1]
    assert sys.getprofile() is None


def test_an_interrupt_that_the_user_catches_is_done(library: Any) -> None:
    with Interruptible():
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                library.call(press)
            assert library.call(lambda: 1) == 1


def test_a_profiler_is_kept(library: Any) -> None:
    """While a profiler is set, the interrupt needs a second press."""
    events: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        events.append(event)

    scope = library.Scope(press, "__enter__")
    sys.setprofile(profile)
    try:
        with Interruptible(), pytest.raises(KeyboardInterrupt), scope:
            press()
    finally:
        assert sys.getprofile() is profile
        sys.setprofile(None)
    assert scope.done == ["__enter__", "__exit__"]


def test_other_handlers_stay() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interruptible():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        press()
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Due(Exception):
    """The error that cuts a run short."""


@pytest.fixture
def tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that TensorFlow traces."""
    fake = SimpleNamespace(executing_eagerly=lambda: False)
    monkeypatch.setitem(sys.modules, "tensorflow", fake)


@pytest.mark.usefixtures("tracing")
def test_a_trace_ends_at_once() -> None:
    with pytest.raises(Overdue), StopButton(grace=PATIENCE) as button, button.work():
        press_and_wait()
    assert button.pressed
    assert button.is_overdue


@pytest.mark.usefixtures("tracing")
def test_an_interrupt_that_becomes_another_error() -> None:
    """TensorFlow's C++ code turns an interrupt into an AttributeError."""

    def trace() -> None:
        try:
            press_and_wait()
        except Overdue:
            raise AttributeError from None

    with pytest.raises(Overdue), StopButton() as button, button.work():
        trace()
    with pytest.raises(AttributeError), StopButton() as button, button.work():
        raise AttributeError


@pytest.mark.usefixtures("tracing")
def test_a_trace_ends_when_its_context_is_entered(library: Any) -> None:
    scope = library.Scope(press, "__enter__")
    with pytest.raises(Overdue), StopButton() as button, button.work(), scope:
        work()
    assert scope.done == ["__enter__", "__exit__"]


@pytest.mark.usefixtures("tracing")
def test_bookkeeping_is_not_cut_short() -> None:
    with StopButton() as button:
        press()
        wait_until(lambda: True)
        assert not button.is_overdue
        with pytest.raises(Overdue), button.work():
            work()


@pytest.mark.usefixtures("tracing")
def test_a_frame_that_must_not_be_cut_short_continues() -> None:
    def callback() -> None:
        press()
        wait_until(lambda: True)
        done.append(1)

    def run() -> None:
        with button.work():
            callback()
            work()

    def may_cut(frame: Any) -> bool:
        callers = [each.f_code.co_name for each, _ in traceback.walk_stack(frame)]
        return "callback" not in callers

    done: list[int] = []
    button = StopButton(may_cut=may_cut, overdue=Due)
    with pytest.raises(Due), button:
        run()
    assert done == [1]


def test_a_wait_ends_with_the_time_limit() -> None:
    with StopButton(grace=PATIENCE) as button, button.work():
        press()
        raise_if_due()
    with StopButton(grace=0.0, overdue=Due) as button:
        press()
        raise_if_due()  # no work is running
        with button.work(), pytest.raises(Due):
            raise_if_due()
    assert button.is_overdue
    with button, button.work():
        raise_if_due()
    assert not button.is_overdue


def test_a_finished_run_is_not_cut_short(handler: Any) -> None:
    is_running = True
    button = StopButton(lambda _: is_running, overdue=Due)
    button.__enter__()
    is_running = False
    with pytest.raises(KeyboardInterrupt):
        press()
    assert signal.getsignal(signal.SIGINT) is handler
    assert not button.is_overdue


def test_the_display_of_stopped() -> None:
    stopped = Stopped("Stopped after 3 steps.")
    assert str(stopped) == "Stopped after 3 steps."
    assert stopped._render_traceback_() == ["Stopped: Stopped after 3 steps."]
    assert not isinstance(stopped, Exception)


def test_a_stopped_cell_shows_a_line() -> None:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell()
    with capture_output() as captured:
        result = shell.run_cell(
            "from tpunb._util.interrupts import Stopped\nraise Stopped('Enough.')"
        )
    assert isinstance(result.error_in_exec, Stopped)
    assert captured.stdout.strip() == "Stopped: Enough."


CODE = """
import signal, sys
import tpunb._util.interrupts
signal.default_int_handler
assert not {"tensorflow", "IPython", "numpy"} & set(sys.modules)
"""


def test_the_module_imports_almost_nothing() -> None:
    assert output_of(CODE) == ""
