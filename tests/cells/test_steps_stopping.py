"""The stop button while TensorFlow runs a function: the call ends, and the next call works."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.interrupts import When, counts, press

import tpunb
from tpunb._util.interrupts import Stopped
from tpunb.errors import CellError
from tpunb.tensorflow.connection.connection import Connection
from tpunb.tensorflow.virtual.runtime import stoppable

LOOP = """
for _ in tf.range(rounds):
    count.assign_add(ctx.all_reduce("mean", 1.0))
done = count + 0.0
"""
HOURS = 10**9  # rounds


@pytest.fixture(scope="module")
def connection(tf: Any) -> Iterator[Connection]:
    with tpunb.connect(simulate=2) as connection:
        yield connection


@pytest.fixture
def names(tf: Any, connection: Connection) -> dict[str, Any]:
    with connection.strategy.scope():
        count = tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)
    return {"tf": tf, "os": os, "signal": signal, "count": count, "rounds": tf.constant(HOURS)}


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Check that Python's own handler is restored after each test."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def next_works(connection: Any, names: dict[str, Any]) -> None:
    names["rounds"] = names["tf"].constant(3)
    names["count"].assign(0.0)
    assert float(connection.cells.run(LOOP, names).assigned["done"].values[1]) == 3.0


def test_a_loop_in_a_cell(connection: Any, names: dict[str, Any]) -> None:
    with When(counts(names)), pytest.raises(Stopped, match="Variables have the values"):
        connection.cells.run(LOOP, names)
    assert float(names["count"].numpy()) > 0
    assert not connection.cells.calls.left_behind
    next_works(connection, names)


def test_a_cell_that_ran_before(connection: Any, names: dict[str, Any]) -> None:
    next_works(connection, names)
    names["count"].assign(0.0)
    names["rounds"] = names["tf"].constant(HOURS)
    with When(counts(names)), pytest.raises(Stopped):
        connection.run_cell(LOOP, names)
    assert "done" not in names
    next_works(connection, names)


def test_tracing(connection: Any, names: dict[str, Any]) -> None:
    source = "\nos.kill(os.getpid(), signal.SIGINT)\ncount.assign_add(1.0);\n"
    with pytest.raises(Stopped, match="before the cell has run; nothing has changed"):
        connection.cells.run(source, names)
    assert float(names["count"].numpy()) == 0.0
    next_works(connection, names)


def test_an_endless_step(
    connection: Any, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpunb.cells.step_run._GRACE", 0.2)
    run = connection.cells.steps(LOOP, names, steps=3)
    with When(counts(names)):
        run.go()
    assert (run.stopped, run.is_half_done, run.done) == (True, True, 0)
    names["rounds"] = names["tf"].constant(3)
    names["count"].assign(0.0)
    run.go()
    assert (run.stopped, run.is_half_done, run.done) == (False, False, 3)
    assert float(names["count"].numpy()) == 9.0


def test_a_step_that_ends_in_time(
    connection: Any, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpunb.cells.step_run._GRACE", 120.0)
    names["rounds"] = names["tf"].constant(2000)
    run = connection.cells.steps(LOOP, names, steps=10**6)
    with When(counts(names)):
        run.go()
    assert (run.stopped, run.is_half_done) == (True, False)
    assert float(names["count"].numpy()) == 2000.0 * run.done


def test_an_endless_function(
    connection: Any, tf: Any, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpunb.cells.step_run._GRACE", 0.2)
    count = names["count"]

    def step() -> None:
        for _ in tf.range(HOURS):
            count.assign_add(tf.distribute.get_replica_context().all_reduce("mean", 1.0))

    with When(counts(names)), pytest.raises(Stopped, match="inside step 1, after 0 of 3 steps"):
        connection.run(step, steps=3)
    next_works(connection, names)


def test_a_second_press(
    connection: Any, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpunb.cells.step_run._GRACE", 120.0)
    run = connection.cells.steps(LOOP, names, steps=3)
    pressed = lambda: run._button.pressed  # noqa: E731
    with When(counts(names), pressed), pytest.raises(KeyboardInterrupt) as raised:
        run.go()
    assert raised.type is KeyboardInterrupt
    assert run.done == 0
    next_works(connection, names)


def test_a_batch_that_never_comes(
    connection: Any, tf: Any, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpunb.cells.step_run._GRACE", 0.2)
    goes_on, waits = threading.Event(), threading.Event()

    def batches() -> Iterator[Any]:
        for number in range(8):
            if number == 5:
                waits.set()
                goes_on.wait()
            yield np.full([2], number, "float32")

    data = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec([2], tf.float32))
    source = "\ncount.assign_add(tf.reduce_sum(batch));\n"
    run = connection.cells.steps(source, names, data=data, steps=8, steps_per_loop=1)
    with When(lambda: waits.is_set() and run.done == 5):
        run.go()
    assert (run.stopped, run.is_half_done, run.done) == (True, False, 5)
    goes_on.set()
    run.go()
    assert run.done == 8
    assert float(names["count"].numpy()) == sum(range(8))  # no batch was lost


def test_a_batch_of_a_step_that_was_only_traced(
    connection: Any, tf: Any, names: dict[str, Any]
) -> None:
    traced = threading.Event()

    def trace() -> None:
        if not traced.is_set():
            traced.set()
            press()
            threading.Event().wait()

    names["trace"] = tf.autograph.experimental.do_not_convert(trace)
    data = tf.data.Dataset.range(1, 9).map(lambda n: tf.cast(n, tf.float32)).batch(2)
    source = "\ntrace()\ncount.assign_add(ctx.all_reduce('sum', tf.reduce_sum(batch)));\n"
    run = connection.cells.steps(source, names, data=data)
    run.go()
    assert (run.stopped, run.is_half_done, run.done) == (True, False, 0)
    run.go()
    assert run.done == 4
    assert float(names["count"].numpy()) == sum(range(1, 9))


@pytest.fixture
def calls() -> Iterator[stoppable.StoppableCalls]:
    calls = stoppable.StoppableCalls()
    yield calls
    calls.close()


class Kernel:
    """An operation that cannot be cancelled."""

    def __init__(self, tf: Any) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.function = tf.function(lambda: tf.numpy_function(self._run, [], tf.float32))

    def _run(self) -> Any:
        self.begun.set()
        self.may_end.wait()
        return np.float32(2.0)


def test_an_operation_that_cannot_be_cancelled_is_left_behind(
    tf: Any, calls: stoppable.StoppableCalls
) -> None:
    kernel, other = Kernel(tf), tf.function(lambda: tf.ones([]) + 1.0)
    with calls:
        assert float(other()) == 2.0
        with When(kernel.begun.is_set), pytest.raises(KeyboardInterrupt):
            kernel.function()
        assert calls.left_behind
        # The next call waits for it, and can be interrupted, too.
        with When(lambda: calls.phase == stoppable.WAITING), pytest.raises(KeyboardInterrupt):
            other()
        threading.Timer(0.1, kernel.may_end.set).start()
        assert float(other()) == 2.0
        assert not calls.left_behind
        assert float(kernel.function()) == 2.0


def test_the_wait_for_it_is_limited(
    tf: Any, calls: stoppable.StoppableCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stoppable, "_PATIENCE", 0.4)
    kernel = Kernel(tf)
    with calls:
        with When(kernel.begun.is_set), pytest.raises(KeyboardInterrupt):
            kernel.function()
        with pytest.raises(CellError, match="A function that you stopped still runs"):
            kernel.function()
        kernel.may_end.set()
        assert float(kernel.function()) == 2.0


def test_functions_of_other_threads_continue(tf: Any, calls: stoppable.StoppableCalls) -> None:
    own_count, other_count = tf.Variable(0.0), tf.Variable(0.0)
    go_on = tf.Variable(True)

    @tf.function
    def loop(count: Any) -> Any:
        while go_on:
            count.assign_add(1.0)
        return count.read_value()

    results: list[float] = []
    with calls:
        thread = threading.Thread(target=lambda: results.append(float(loop(other_count))))
        thread.start()
        both_run = lambda: float(own_count) > 0 and float(other_count) > 0  # noqa: E731
        with When(both_run), pytest.raises(KeyboardInterrupt):
            loop(own_count)
    before = float(other_count)
    while float(other_count) == before:
        time.sleep(0.01)
    go_on.assign(False)
    thread.join()
    assert results[0] > before


def test_other_threads_have_no_stop_button(connection: Any, names: dict[str, Any]) -> None:
    names["rounds"] = names["tf"].constant(3)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(connection.cells.run(LOOP, names)))
    thread.start()
    thread.join()
    assert float(results[0].assigned["done"].values[0]) == 3.0


def test_tensorflow_is_restored(tf: Any, calls: stoppable.StoppableCalls) -> None:
    before = stoppable.pywrap_tfe.TFE_Py_ExecuteCancelable
    patched = []
    with pytest.raises(ZeroDivisionError), calls, calls:
        patched.append(stoppable.pywrap_tfe.TFE_Py_ExecuteCancelable) or 1 / 0
    assert patched != [before]
    assert stoppable.pywrap_tfe.TFE_Py_ExecuteCancelable is before
    assert stoppable.cancelling() is None


def test_errors_of_the_function_are_raised(tf: Any, calls: stoppable.StoppableCalls) -> None:
    function = tf.function(lambda x: tf.debugging.check_numerics(x, "no number"))
    with calls:
        for _ in range(2):
            with pytest.raises(tf.errors.InvalidArgumentError, match="no number"):
                function(tf.constant(np.nan))
        assert float(function(tf.constant(1.0))) == 1.0
