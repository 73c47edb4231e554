"""An interrupt inside a library shows the user's lines only."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.interrupts import press
from support.patience import calls, wait_until
from support.shell import Notebook

from tpunb.notebook.interrupted_cells import shorten

LIBRARY = """
def call(function):
    return function()

class Context:
    def __init__(self, function):
        self.function, self.left = function, False
    def __enter__(self):
        self.function()
    def __exit__(self, *error):
        self.left = True
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
    assert sys.getprofile() is None


@pytest.fixture
def book(book: Notebook) -> Notebook:
    book.good("%load_ext tpunb")
    book.names["call"] = library("tensorflow.python.made_up")["call"]
    book.good("def press(n=0):\n    if n == 0:\n        raise KeyboardInterrupt\n    press(n - 1)")
    return book


def shown(book: Notebook, source: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", book.run(source).text)


def test_an_interrupt_shows_the_users_lines(book: Notebook) -> None:
    text = shown(book, "x = 1\ncall(press)")
    lines = text.splitlines()
    assert lines[0] == "Traceback (most recent call last; your code alone):"
    assert re.search(r"line 2, in <module>$", lines[1])
    assert lines[2] == "    call(press)"
    assert re.search(r"line 3, in press$", lines[3])
    assert lines[4:] == ["    raise KeyboardInterrupt", "KeyboardInterrupt"]


def test_an_interrupt_outside_of_libraries_is_shown_as_usual(book: Notebook) -> None:
    text = shown(book, "press()")
    assert "your code alone" not in text
    assert "KeyboardInterrupt" in text
    book.good("%unload_ext tpunb")
    assert "your code alone" not in shown(book, "call(press)")


def test_other_errors_are_shown_as_usual(book: Notebook) -> None:
    assert "your code alone" not in shown(book, "call(lambda: 1 / 0)")


def test_many_frames(book: Notebook) -> None:
    text = shown(book, "call(lambda: press(500))")
    assert "… 495 more …" in text
    assert text.count("in press\n") == 6


REFUSED = """
import warnings, keras, numpy as np, tensorflow as tf
%tpu_connect --simulate 2
class Mine(keras.layers.Layer):
    def call(self, x):
        return tf.strings.to_number(tf.strings.as_string(x))
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), Mine(name="mine"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    theirs = keras.Sequential([keras.Input((4,)), keras.layers.Hashing(8, name="hashing")])
x = np.ones([4, 4], "float32")
"""


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("source", "start"),
    [
        ("model.fit(x, x[:, :1], batch_size=4, verbose=0)", "In the layer mine: StringToNumber"),
        ("model.predict(x, verbose=0)", "In the layer mine: StringToNumber works"),
        ("strategy.run(tf.function(tf.strings.as_string), args=(x,))", "A string tensor comes"),
        ("theirs.predict(x, verbose=0)", "In the layer hashing: "),
    ],
)
def test_a_refusal_shows_the_users_lines(book: Notebook, source: str, start: str) -> None:
    book.good(REFUSED)
    lines = shown(book, source).splitlines()
    assert lines[0] == "Traceback (most recent call last; your code alone):"
    assert lines[2] == f"    {source}"
    assert lines[-1].startswith(f"InvalidArgumentError: {start}")
    assert "Known error" in lines[-1]
    assert not [line for line in lines if "site-packages" in line or "tpunb/" in line]
    assert ("    return tf.strings.to_number(tf.strings.as_string(x))" in lines) == (
        source.startswith("model")
    )


def test_a_librarys_context_is_entered_completely_or_left(book: Notebook) -> None:
    context = library("tensorflow.made_up")["Context"](press)
    book.names.update(context=context, wait=lambda: wait_until(lambda: False))
    assert isinstance(book.run("with context:\n    wait()").error, KeyboardInterrupt)
    assert context.left


def test_a_waiting_interrupt_ends_with_its_cell(book: Notebook) -> None:
    context = library("tensorflow.made_up")["Context"](press)
    book.names["context"] = context
    book.run("with context: pass")  # the interrupt may arrive in a function that IPython calls
    book.good("1")


def test_an_interrupt_before_the_cells_code_waits_for_it(book: Notebook) -> None:
    events, names = book.shell.events, book.names
    names["done"] = False
    events.register("pre_run_cell", press_before := lambda _: press())
    try:
        ran = book.run("done = True\nwait_in_cell = (lambda: None)()")
    finally:
        events.unregister("pre_run_cell", press_before)
    assert isinstance(ran.error, KeyboardInterrupt)
    assert "traitlets" not in ran.text
    assert "run_cell_async" not in ran.text


def test_shortening_takes_few_calls(book: Notebook) -> None:
    caught: list[Any] = []
    book.names["caught"] = caught
    book.good("try:\n    call(press)\nexcept KeyboardInterrupt as e:\n    caught.append(e)")
    assert calls(lambda: shorten(caught[0], book.shell)) < 1000
