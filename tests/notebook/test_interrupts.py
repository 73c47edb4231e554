"""Interrupts that are lost come again; those inside of libraries are shown by the user's lines."""

from __future__ import annotations

import re
import signal
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from support.interrupts import press
from support.patience import PATIENCE, calls, wait_until
from support.shell import Notebook

from tpunb.notebook.interrupts import LastingInterrupts, shorten

LIBRARY = """
def call(function):
    return function()

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


def library(name: str) -> dict[str, Any]:
    names = {"__name__": name}
    exec(LIBRARY, names)
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


class Key:
    """What weak dictionaries have for keys."""


def test_lost_where_a_weak_reference_ends() -> None:
    noticed: list[Any] = []

    def gone(_: Any) -> None:
        noticed.append(press())

    def cell() -> None:
        key = Key()
        reference = weakref.ref(key, gone)
        del key
        assert reference() is None
        wait_until(lambda: False)

    hook = sys.unraisablehook
    with LastingInterrupts(), pytest.raises(KeyboardInterrupt):
        cell()
    assert noticed == []  # it was raised there and lost, and nothing is printed about it
    assert sys.unraisablehook is hook


class Scope:
    """A context, and an object with a destructor, in all of which the button is pressed.

    Args:
        where: The names of the methods in which it is.
    """

    def __init__(self, *where: str) -> None:
        self._where = where
        self.done: list[str] = []

    def __enter__(self) -> Scope:
        self._press("__enter__")
        return self

    def __exit__(self, *_: object) -> None:
        self._press("__exit__")

    def __del__(self) -> None:
        self._press("__del__")

    def _press(self, name: str) -> None:
        if name in self._where:
            press()
        self.done.append(name)


@pytest.mark.parametrize("name", ["__enter__", "__exit__", "__del__"])
def test_it_waits_until_it_can_be_raised(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpunb.notebook.interrupts.PATIENCE", PATIENCE)
    scope = Scope(name)
    done = scope.done

    def cell(scope: list[Scope]) -> None:
        with scope[0]:
            pass
        scope.clear()
        wait_until(lambda: False)

    holding = [scope]
    del scope
    with LastingInterrupts(), pytest.raises(KeyboardInterrupt):
        cell(holding)
    # The body of a context that was interrupted while it was entered is empty here, so it may
    # have come to its end before; nothing is left half done.
    holding.clear()
    assert done == ["__enter__", "__exit__", "__del__"]


def test_what_cannot_be_raised_for_long_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpunb.notebook.interrupts.PATIENCE", 0.1)

    class Scope:
        def __enter__(self) -> None:
            press()
            wait_until(lambda: False)

        def __exit__(self, *_: object) -> None:
            raise AssertionError("It was never entered.")

    with LastingInterrupts(), pytest.raises(KeyboardInterrupt), Scope():
        pass


def test_other_reports_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lambda what: reported.append(what.exc_type))
    destroyed = library("tensorflow.made_up")["Destroyed"]
    with LastingInterrupts():
        destroyed(lambda: 1 / 0)
    assert reported == [ZeroDivisionError]


def test_caught_by_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[int] = []
    monkeypatch.setattr(LastingInterrupts, "_again", lambda _, entry, __: again.append(entry))
    swallow, own = library("keras.src.made_up")["swallow"], library("__main__")["swallow"]
    with LastingInterrupts():
        own(press)
        own(lambda: own(press))
        assert swallow(press) is False
        wait_until(lambda: again)
    assert again == [1]


def test_when_the_cell_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[bool] = []
    monkeypatch.setattr("tpunb.notebook.interrupts.interrupt_main", lambda: came.append(True))
    lasting = LastingInterrupts()
    with lasting:
        pass
    lasting._again(1, 0.0)
    with lasting:
        lasting._again(1, 0.0)
        lasting._again(2, 0.0)
    assert came == [True]


def test_other_handlers_stay() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with LastingInterrupts():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        press()
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def book(book: Notebook) -> Notebook:
    book.good("%load_ext tpunb")
    book.names["call"] = library("tensorflow.python.made_up")["call"]
    book.good("def press(n=0):\n    if n == 0:\n        raise KeyboardInterrupt\n    press(n - 1)")
    return book


def shown(book: Notebook, source: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", book.run(source).text)


def test_the_users_lines(book: Notebook) -> None:
    text = shown(book, "x = 1\ncall(press)")
    lines = text.splitlines()
    assert lines[0] == "Traceback (most recent call last; your code alone):"
    assert re.search(r"line 2, in <module>$", lines[1])
    assert lines[2] == "    call(press)"
    assert re.search(r"line 3, in press$", lines[3])
    assert lines[4:] == ["    raise KeyboardInterrupt", "KeyboardInterrupt"]


def test_outside_of_libraries_it_is_shown_as_ever(book: Notebook) -> None:
    text = shown(book, "press()")
    assert "your code alone" not in text
    assert "KeyboardInterrupt" in text
    book.good("%unload_ext tpunb")
    assert "your code alone" not in shown(book, "call(press)")


def test_other_errors_are_shown_as_ever(book: Notebook) -> None:
    assert "your code alone" not in shown(book, "call(lambda: 1 / 0)")


def test_many_frames(book: Notebook) -> None:
    text = shown(book, "call(lambda: press(500))")
    assert "… 495 more …" in text
    assert text.count("in press\n") == 6


def test_what_it_costs(book: Notebook) -> None:
    caught: list[Any] = []
    book.names["caught"] = caught
    book.good("try:\n    call(press)\nexcept KeyboardInterrupt as e:\n    caught.append(e)")
    assert calls(lambda: shorten(caught[0], book.shell)) < 1000
