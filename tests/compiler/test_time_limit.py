"""The time limit covers the whole compilation: tracing, lowering, and the compiler itself."""

from __future__ import annotations

import re
from typing import Any

import keras
import pytest
import tensorflow as tf
from support.patience import PATIENCE

from tpunb._util.child_process import ChildLostError, ChildProcess
from tpunb._util.deadline import Deadline
from tpunb.compiler.ask import libtpu
from tpunb.compiler.ask.verdict import LOWERING, about_the_limit
from tpunb.compiler.compile import compile  # noqa: A004
from tpunb.tensorflow.virtual.strict import lowering, xla

pytestmark = pytest.mark.usefixtures("libtpu")

X = tf.TensorSpec([16, 16])


def product(x: Any) -> Any:
    return x @ x


def test_lowering_may_take_the_callers_whole_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient = ChildProcess(xla._start, 0.0)
    monkeypatch.setattr(lowering, "ask", impatient.ask)
    try:
        program = compile(product, X, tpu="v5e-8", timeout=PATIENCE)
    finally:
        impatient.close()
    assert program.ok, str(program)


def test_the_time_limit_ends_an_endless_lowering(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(xla, "_CODE", "import time; time.sleep(1000)")
    slow = ChildProcess(xla._start, PATIENCE)
    monkeypatch.setattr(lowering, "ask", slow.ask)
    messages: list[str] = []
    program = compile(product, X, tpu="v5e-8", timeout=1, progress=messages.append)
    assert program.unknown == (
        "TensorFlow's compiler took longer than 1 seconds while it looked at this function. "
        "Give it more: timeout=2 (--timeout 2)."
    )
    assert messages[-1] == LOWERING
    assert slow._process is None


def test_an_endless_lowering_names_the_layer_with_most_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(xla, "_CODE", "import time; time.sleep(1000)")
    slow = ChildProcess(xla._start, PATIENCE)
    monkeypatch.setattr(lowering, "ask", slow.ask)
    model = keras.Sequential(
        [keras.layers.Dense(4, name="first"), keras.layers.LSTM(4, unroll=True, name="second")]
    )
    program = compile(
        lambda x: model(x, training=True), tf.TensorSpec([4, 20, 3]), tpu="v5e-8", timeout=3
    )
    assert re.search(
        r"Layer `lstm_cell` has \d\d% of the function's [\d,]+ operations\.", program.unknown
    ), program.unknown


def test_an_endless_lowering_names_the_line_with_most_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(xla, "_CODE", "import time; time.sleep(1000)")
    slow = ChildProcess(xla._start, PATIENCE)
    monkeypatch.setattr(lowering, "ask", slow.ask)

    def step(x: Any) -> Any:
        for number in range(100):
            x = x @ x + number
        return x + 1.0

    line = step.__code__.co_firstlineno + 2
    program = compile(step, X, tpu="v5e-8", timeout=1)
    assert f"Line {line} has 9" in program.unknown, program.unknown


def test_all_types_and_steps_share_one_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines: list[Deadline] = []
    lower, ask = lowering.ask, libtpu.ask

    def lowered(request: Any, deadline: Deadline) -> Any:
        deadlines.append(deadline)
        return lower(request, deadline)

    def asked(*args: Any, **options: Any) -> Any:
        deadlines.append(options["deadline"])
        return ask(*args, **options)

    monkeypatch.setattr(lowering, "ask", lowered)
    monkeypatch.setattr(libtpu, "ask", asked)
    assert compile(product, X, tpu=["v5e-8", "v3-8"], timeout=1500)[1].ok
    assert len(deadlines) == 3
    assert {deadline.seconds for deadline in deadlines} == {1500}
    assert len({deadline.end for deadline in deadlines}) == 1
    compile(product, X, tpu=["v5e-8", "v3-8"])
    assert deadlines[-1].seconds == 600


def test_a_waiting_caller_times_out_without_ending_the_process() -> None:
    child = libtpu._child()
    process = child._running()
    with child._lock, pytest.raises(ChildLostError, match="took longer than"):
        child.ask({}, Deadline(0.1))
    assert process.poll() is None


def test_a_slow_compiler_is_given_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: Any, deadline: Deadline, **__: Any) -> Any:
        deadline.end -= deadline.seconds
        raise ChildLostError("the compiler took longer than 100 seconds.")

    monkeypatch.setattr(libtpu, "ask", ask)
    assert compile(product, X, tpu="v5e-8", timeout=100).unknown == (
        "the compiler took longer than 100 seconds. Give it more: timeout=200 (--timeout 200)."
    )


def test_the_time_before_the_compiler_is_told() -> None:
    assert about_the_limit(300, 120) == (
        " The steps before it took 180 of them. Give it more: timeout=600 (--timeout 600)."
    )
