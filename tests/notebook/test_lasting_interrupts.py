"""Interrupts that a library swallows come again; those that the user's code catches do not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from support.patience import wait_until

from tpunb.notebook.lasting_interrupts import LastingInterrupts

SWALLOW = """
def swallow(function):
    try:
        function()
    except:
        return False

class Destroyed:
    def __init__(self, function):
        self.function = function
    def __del__(self):
        self.function()
"""


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def library(name: str) -> dict[str, Any]:
    names = {"__name__": name}
    exec(SWALLOW, names)
    return names


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_swallowed_by_a_library() -> None:
    swallow = library("keras.src.made_up")["swallow"]

    def cell() -> None:
        assert swallow(press) is False
        wait_until(lambda: False)

    with LastingInterrupts(), pytest.raises(KeyboardInterrupt) as raised:
        cell()
    assert type(raised.value).__name__ == "KeyboardInterrupt"


def test_lost_in_a_destructor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)  # pytest's keeps the exception
    destroyed = library("tensorflow.made_up")["Destroyed"]

    def cell() -> None:
        destroyed(press)
        wait_until(lambda: False)

    with LastingInterrupts(), pytest.raises(KeyboardInterrupt):
        cell()


def test_caught_by_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[int] = []
    monkeypatch.setattr(LastingInterrupts, "_again", lambda _, entry: again.append(entry))
    swallow, own = library("keras.src.made_up")["swallow"], library("__main__")["swallow"]
    with LastingInterrupts():
        own(press)
        own(lambda: own(press))
        assert swallow(press) is False
        wait_until(lambda: again)
    assert again == [1]


def test_when_the_cell_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[bool] = []
    monkeypatch.setattr(
        "tpunb.notebook.lasting_interrupts.interrupt_main", lambda: came.append(True)
    )
    lasting = LastingInterrupts()
    with lasting:
        pass
    lasting._again(1)
    with lasting:
        lasting._again(1)
        lasting._again(2)
    assert came == [True]


def test_other_handlers_stay() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with LastingInterrupts():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        press()
    signal.signal(signal.SIGINT, signal.default_int_handler)
