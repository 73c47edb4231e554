"""The stop button: the first interrupt is noted, the second one is ordinary."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from counterparts.children import output_of
from support.patience import wait_until

from tpunb.training.stop_button import StopButton, Stopped


@pytest.fixture(autouse=True)
def handler() -> Iterator[Any]:
    """An ordinary handler, which has to be there again after each test."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_press_is_noted() -> None:
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


def test_buttons_that_are_left_in_the_order_of_entering(handler: Any) -> None:
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


def test_errors_pass(handler: Any) -> None:
    with pytest.raises(ZeroDivisionError), StopButton():
        _ = 1 / 0
    with pytest.raises(KeyboardInterrupt):
        press()


@pytest.mark.parametrize("former", [signal.SIG_DFL, lambda *_: None])
def test_what_was_there_comes_back(former: Any) -> None:
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


def test_another_thread_has_no_button(handler: Any) -> None:
    found = []

    def run() -> None:
        with StopButton() as button:
            found.append((button.pressed, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [(False, handler)]


def test_buttons_within_buttons() -> None:
    with StopButton() as outer:
        with StopButton() as inner:
            press()
        assert (outer.pressed, inner.pressed) == (False, True)
        press()
        assert outer.pressed


def test_entering_twice_is_entering_once(handler: Any) -> None:
    with StopButton() as button, button:
        press()
    assert button.pressed
    button.leave()
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_handler_put_over_the_button_stays() -> None:
    def theirs(*_: Any) -> None: ...

    with StopButton() as button:
        ours = signal.signal(signal.SIGINT, theirs)
    assert signal.getsignal(signal.SIGINT) is theirs
    # They bring ours back when all is over: then it lets interrupts through.
    signal.signal(signal.SIGINT, ours)
    with pytest.raises(KeyboardInterrupt):
        press()
    assert not button.pressed


def test_a_run_that_is_over_gets_no_press() -> None:
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


class Due(Exception):
    """Raised where a run is overdue."""


def test_what_is_raised_where_it_may_be() -> None:
    """What must not be cut short is left, and the run is ended after it."""
    frames = []

    def may_cut(frame: Any) -> bool:
        frames.append(frame)
        return len(frames) > 2

    def run(button: StopButton) -> None:
        with button.work():
            press()
            while True:
                time.sleep(0.01)

    with StopButton(grace=0.0, may_cut=may_cut, overdue=Due) as button, pytest.raises(Due):
        run(button)
    assert len(frames) == 3
    assert button.is_overdue


def test_a_run_that_is_over_is_not_overdue(handler: Any) -> None:
    goes_on = True
    button = StopButton(lambda _: goes_on, grace=0.0, overdue=Due)
    button.__enter__()
    press()
    goes_on, button.at_work = False, True
    wait_until(lambda: signal.getsignal(signal.SIGINT) is handler)
    assert not button.is_overdue


def test_how_stopped_shows_itself() -> None:
    stopped = Stopped("Stopped after 3 steps.")
    assert str(stopped) == "Stopped after 3 steps."
    assert stopped._render_traceback_() == ["Stopped: Stopped after 3 steps."]
    assert not isinstance(stopped, Exception)


def test_a_cell_that_is_stopped_shows_a_line() -> None:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell()
    with capture_output() as captured:
        result = shell.run_cell(
            "from tpunb.training.stop_button import Stopped\nraise Stopped('Enough.')"
        )
    assert isinstance(result.error_in_exec, Stopped)
    assert captured.stdout.strip() == "Stopped: Enough."


CODE = """
import signal, sys
import tpunb.training.stop_button
signal.default_int_handler
assert not {"tensorflow", "IPython", "numpy"} & set(sys.modules)
"""


def test_it_imports_next_to_nothing() -> None:
    assert output_of(CODE) == ""
