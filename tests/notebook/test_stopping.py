"""The stop button in notebooks, and the progress line of a slow cell."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from counterparts.children import WITHOUT_KERAS, environment
from jupyter_client.manager import KernelManager
from support.interrupts import When, counts, press
from support.kernels import Client
from support.shell import Notebook

from tpunb._util.interrupts import Stopped
from tpunb.display import live_progress as progress
from tpunb.display.widgets import frontend

SETUP = """\
import tensorflow as tf, tpunb
%load_ext tpunb
%tpu_connect --simulate 2
with strategy.scope():
    count = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)
rounds = tf.constant(10**9)"""
LOOP = """
for _ in tf.range(rounds):
    count.assign_add(ctx.all_reduce("mean", 1.0))
done = count + 0.0
"""
SHORT = "%%tpu_run\nlater = replica_id + 1\n"


@pytest.fixture(scope="module")
def shell(tf: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with Notebook(tmp_path_factory.mktemp("ipython"), SETUP) as notebook:
        yield notebook


@pytest.fixture
def book(shell: Notebook) -> Iterator[Notebook]:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    shell.names["count"].assign(0.0)
    yield shell
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], str, bool]]:
    """Record a watched front end's messages: data, the display's name, whether it is an update."""
    messages: list[tuple[dict[str, Any], str, bool]] = []

    def publish(data: Any, metadata: Any, *, display_id: str, update: bool) -> None:
        messages.append((data, display_id, update))

    monkeypatch.setattr(frontend, "publish", publish)
    monkeypatch.setenv(frontend.VARIABLE, "always")
    return messages


def test_a_slow_cell_shows_that_it_is_running(
    book: Notebook, published: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_SLOW", 0.0)
    publish = frontend.publish
    pressed: list[Any] = []

    def publish_and_press(data: Any, *arguments: Any, **options: Any) -> None:
        publish(data, *arguments, **options)
        if data and "running" in data["text/plain"] and not pressed:
            pressed.append(data)  # only once: the next cell shows progress, too
            press()  # otherwise the cell would run for hours

    monkeypatch.setattr(frontend, "publish", publish_and_press)
    ran = book.run(f"%%tpu_run{LOOP}")
    assert isinstance(ran.error, Stopped)
    assert ran.text.startswith("Stopped: inside the cell. Variables have the values")
    assert "done" not in book.names
    first, *_, last = published
    assert not first[2]
    assert {display for _, display, _ in published} == {first[1]}
    lines = [data["text/plain"] for data, _, _ in published[:-1]]
    phase = re.compile(r"(tracing|compiling and running|running), \d+ s")
    assert all(phase.fullmatch(line) for line in lines), lines
    assert last == ({}, first[1], True)  # the saved notebook is the same after every run
    book.good(SHORT)


def test_a_quick_cell_shows_nothing(book: Notebook, published: Any) -> None:
    book.good(SHORT)
    assert published == []


def test_a_kernel_without_a_front_end_shows_no_progress(
    book: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(frontend.VARIABLE, raising=False)
    # The progress line never updates.
    monkeypatch.setattr(progress._LiveLine, "_tick", lambda _: press())
    book.good(SHORT)


def test_a_check_is_stopped(book: Notebook) -> None:
    book.names["press"] = press
    ran = book.run("%%tpu_check\npress()\nx = tf.ones([2])\n")
    assert isinstance(ran.error, Stopped)
    assert ran.text == "Stopped: before the check was done; nothing was run.\n"
    ran = book.run("%%tpu_run -n 2 --check\npress()\nx = tf.ones([2])\n")
    assert ran.text == "Stopped: before the check was done; nothing was run.\n"


def test_pressed_too_late(book: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    leave = progress.RunDisplay.__exit__

    def press_and_leave(display: Any, *error: Any) -> None:
        press()
        leave(display, *error)

    monkeypatch.setattr(progress.RunDisplay, "__exit__", press_and_leave)
    ran = book.run("%%tpu_run -n 3\ncount.assign_add(1.0)\ntotal = count + 0.0\n")
    assert isinstance(ran.error, Stopped)
    assert "Stopped: when all of the 3 steps were made; nothing is lost." in ran.text
    assert "3 steps\n" in ran.plain
    assert float(book.names["total"].values[0]) == 3.0


def test_a_step_that_does_not_end(book: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpunb.cells.step_run._GRACE", 0.2)
    with When(counts(book.names)):
        ran = book.run(f"%%tpu_run -n 5{LOOP}")
    assert isinstance(ran.error, Stopped)
    assert "Stopped: inside step 1, after 0 of 5 steps. Variables have the values" in ran.text
    book.good(SHORT)


@pytest.mark.tensorflow
def test_a_kernel() -> None:
    """A kernel may be interrupted by a signal or by a message."""
    manager = KernelManager()
    manager.start_kernel(env={**environment(), frontend.VARIABLE: "always"})
    client = Client(manager)
    try:
        content, _ = client.run(WITHOUT_KERAS + SETUP)
        assert content["status"] == "ok", content
        for mode in ("signal", "message"):
            manager.kernel_spec.interrupt_mode = mode
            client.run("rounds = tf.constant(10**9)")
            content, _ = client.run(f"%%tpu_run{LOOP}", interrupt_at="running, ")
            assert content["status"] == "error"
            assert content["ename"] == "Stopped", content
            content, shown = client.run("rounds = tf.constant(3); count.assign(0.0)")
            content, shown = client.run(f"%%tpu_run{LOOP}done")
            assert content["status"] == "ok", content
            assert "3" in shown
    finally:
        client.close()


PLAIN = """
@tf.function
def plain():
    for _ in tf.range(rounds):
        strategy.run(lambda: count.assign_add(1.0))
"""


def test_a_function_in_an_ordinary_cell_is_stopped(book: Notebook) -> None:
    book.good(PLAIN)
    with When(counts(book.names)):
        ran = book.run("plain()")
    assert isinstance(ran.error, KeyboardInterrupt)
    # IPython would take seconds to highlight the source of TensorFlow's frames.
    assert "_execute" not in ran.text
    assert re.search(r"line 1, in <module>\n    plain\(\)\nKeyboardInterrupt\n", ran.text)
    reached = float(book.names["count"].numpy())
    assert reached > 0
    assert float(book.names["count"].numpy()) == reached  # the loop has stopped
    book.good(SHORT)
