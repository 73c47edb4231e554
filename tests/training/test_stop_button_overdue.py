"""The stop button of a run that does not come to a good place to end at."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest
from support.interrupts import press
from support.patience import PATIENCE

from tpunb.training import stop_button
from tpunb.training.stop_button import Overdue, StopButton

pytestmark = pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals")


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def press_and_wait(times: int = 1) -> None:
    for _ in range(times):
        press()
    threading.Event().wait()


def test_work_is_ended_when_its_time_is_over() -> None:
    with pytest.raises(Overdue), StopButton(grace=0.05) as button, button.work():
        press_and_wait()
    assert button.pressed
    assert button.is_overdue


def test_accounts_are_not_cut_short() -> None:
    with StopButton(grace=0.0) as button:
        press()
        time.sleep(0.2)  # far over its time, and nothing comes
        assert not button.is_overdue
        with pytest.raises(Overdue), button.work():
            threading.Event().wait()


def test_what_a_destructor_swallows_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpunb.training.stop_button._SECONDS_TO_END", 0.05)
    swallowed = []

    def swallow() -> None:
        try:
            press_and_wait()
        except Overdue as error:
            swallowed.append(error)
        threading.Event().wait()

    with pytest.raises(Overdue), StopButton(grace=0.0) as button, button.work():
        swallow()
    assert swallowed


def test_what_is_entered_is_entered_wholly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_button, "PATIENCE", PATIENCE)
    done: list[str] = []

    class Scope:
        def __enter__(self) -> None:
            press()
            time.sleep(0.1)  # its time is over by now
            done.append("entered")

        def __exit__(self, *_: object) -> None:
            done.append("left")

    with pytest.raises(Overdue), StopButton(grace=0.0) as button, button.work(), Scope():
        threading.Event().wait()
    assert done == ["entered", "left"]


def test_a_reminder_that_is_not_heard_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = stop_button.interrupt_main
    calls = []

    def interrupt() -> None:
        calls.append(1)
        if len(calls) > 2:
            heard()

    monkeypatch.setattr(stop_button, "interrupt_main", interrupt)
    with pytest.raises(Overdue), StopButton(grace=0.0) as button, button.work():
        press_and_wait()
    assert len(calls) > 2


def test_nothing_comes_after_the_end() -> None:
    for _ in range(100):
        button = StopButton(grace=0.001)
        try:
            with button, button.work():
                press()
                time.sleep(0.001)  # just when the reminder is due
        except Overdue:
            pass
    time.sleep(0.1)  # an interrupt that came late would end the test


def test_another_run_has_time_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpunb.training.stop_button._SECONDS_TO_END", 0.05)
    button = StopButton(grace=0.0)
    with pytest.raises(Overdue), button, button.work():
        press_and_wait()
    with button, button.work():
        time.sleep(0.2)
    assert not button.pressed
    assert not button.is_overdue


def test_a_second_press_is_an_ordinary_interrupt() -> None:
    button = StopButton(grace=60.0)
    with pytest.raises(KeyboardInterrupt) as raised, button, button.work():
        press_and_wait(times=2)
    assert raised.type is KeyboardInterrupt
    assert not button.is_overdue
