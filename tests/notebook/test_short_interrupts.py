"""Interrupts inside TensorFlow and Keras are shown by the user's own lines."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.patience import calls
from support.shell import Notebook

from tpunb.notebook.interrupts import shorten

LIBRARY = "def call(function):\n    return function()\n"


@pytest.fixture
def book(book: Notebook) -> Notebook:
    book.good("%load_ext tpunb")
    names = {"__name__": "tensorflow.python.made_up"}
    exec(LIBRARY, names)
    book.names["call"] = names["call"]
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
