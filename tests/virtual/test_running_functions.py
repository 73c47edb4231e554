"""Running functions are known in any thread, however they were called."""

from __future__ import annotations

import _thread
import gc
import threading
from typing import Any

import pytest
import tensorflow as tf
from support.divergence import function
from support.strategies import copies, make, strategy_of

from tpunb.tensorflow.virtual.private_names import context
from tpunb.tensorflow.virtual.runtime import running_functions
from tpunb.tensorflow.virtual.runtime.running_functions import any_runs
from tpunb.tensorflow.virtual.runtime.stoppable import StoppableCalls


class Gate:
    """A function that calls another, and pauses in the middle of its run until it is released."""

    def __init__(self, inner: Any) -> None:
        self.began, self.goes_on = threading.Event(), threading.Event()

        @function
        def outer() -> None:
            inner()
            tf.py_function(self._wait, [], [])

        self.call = outer
        outer.get_concrete_function()

    def _wait(self) -> None:
        self.began.set()
        assert self.goes_on.wait(60)


def name_of(traced: Any) -> str:
    return str(traced.get_concrete_function().name.decode())


def test_a_function_that_another_calls_is_running(three: Any) -> None:
    inner, other = function(lambda: tf.constant(1)), function(lambda: tf.constant(2))
    gate = Gate(inner)
    assert not any_runs([name_of(inner)])
    thread = threading.Thread(target=gate.call)
    thread.start()
    assert gate.began.wait(60)
    assert any_runs([name_of(gate.call)])
    assert any_runs([name_of(other), name_of(inner)])
    assert not any_runs([name_of(other)])
    gate.goes_on.set()
    thread.join()
    assert not any_runs([name_of(gate.call), name_of(inner)])


def test_a_function_under_a_tape(three: Any) -> None:
    """Under a tape, TensorFlow calls another function, which keeps values for the gradient."""
    v, x = make(three, 0.0), tf.Variable(2.0)

    @function
    def inner(y: Any) -> Any:
        three.run(lambda: [v.assign_add(1.0), tf.zeros([])][1])
        return y * y

    @function
    def outer() -> Any:
        with tf.control_dependencies([tf.py_function(lambda: v.values[1].assign(5.0), [], [])]):
            return inner(x)

    with (
        tf.GradientTape(),
        pytest.raises(tf.errors.OpError, match="cannot get values of their own"),
    ):
        outer()
    assert copies(v) == [0.0, 0.0, 0.0]


def test_an_error_ends_a_run(three: Any) -> None:
    one = tf.constant(1)
    fails = function(lambda x: tf.ensure_shape(tf.fill([x], 1), [2]))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        fails(one)
    assert caught.traceback  # the traceback keeps the frames of the call
    assert not any_runs([fails.get_concrete_function(one).name.decode()])


def test_an_interrupted_call_keeps_running(three: Any) -> None:
    v = make(three, 0.0)
    gate = Gate(function(lambda: three.run(lambda: [v.assign_add(1.0), tf.zeros([])][1])))
    calls = StoppableCalls()

    def interrupt() -> None:
        assert gate.began.wait(60)
        _thread.interrupt_main()

    threading.Thread(target=interrupt).start()
    with calls, pytest.raises(KeyboardInterrupt):
        gate.call()
    assert calls.left_behind
    with pytest.raises(tf.errors.FailedPreconditionError, match="cannot get values of their own"):
        v.values[2].assign(5.0)
    gate.goes_on.set()
    while calls.left_behind or any_runs([name_of(gate.call)]):
        pass
    v.values[2].assign(5.0)
    calls.close()
    assert copies(v) == [1.0, 1.0, 5.0]


def test_new_functions_wait(three: Any) -> None:
    ended = threading.Event()
    step = function(lambda: tf.constant(1))
    step()
    thread = threading.Thread(target=lambda: [step(), ended.set()])
    with running_functions.none_begins():
        thread.start()
        step()  # this thread's own functions do not wait
        assert not ended.is_set()
    thread.join()
    assert ended.is_set()


def test_without_a_strategy_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = context.context()
    counting = vars(runtime).pop("call_function", None)
    monkeypatch.setattr(running_functions, "_strategies", set())
    strategy = strategy_of(2)
    assert "call_function" in vars(runtime)
    del strategy
    gc.collect()
    assert "call_function" not in vars(runtime)
    if counting is not None:
        runtime.call_function = counting
