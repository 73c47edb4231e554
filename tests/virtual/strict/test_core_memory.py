"""A program too large for a core, or for this machine, is refused before it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.rules import check
from support.strategies import all_reduce, each, run, strategy_of, strategy_of_parts

from tpunb import explain
from tpunb.errors import MemoryLimitError
from tpunb.machine.resources import Memory
from tpunb.tensorflow.cells.runner import CellRunner
from tpunb.tensorflow.virtual.strict import core_memory
from tpunb.tpu.types import accelerator, accelerator_types, largest_memory

EXHAUSTED = tf.errors.ResourceExhaustedError


@pytest.fixture(scope="module")
def v5e() -> Any:
    return strategy_of("v5e-8", strict=True)


@pytest.fixture
def small() -> Any:
    """A TPU whose cores hold 1,000 bytes."""
    strategy = strategy_of(2, strict={"host-op": False})
    object.__setattr__(strategy.extended._options, "memory", 1000)
    return strategy


@pytest.fixture
def poor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with 1,000 bytes left."""
    monkeypatch.setattr(core_memory, "measure", lambda: Memory(available=1000))


def huge() -> Any:
    return tf.reduce_sum(tf.zeros([400000, 400000]))  # this line


def test_a_tensor_too_large_for_a_core(v5e: Any) -> None:
    with pytest.raises(EXHAUSTED, match=r"float32\[400000, 400000\], which takes 596") as refused:
        run(v5e, huge)
    assert "a core of v5e-8 has 16 GiB" in str(refused.value)
    assert f'{__file__}", line {huge.__code__.co_firstlineno + 1}' in str(refused.value)
    known = explain(refused.value)
    assert known
    assert known.number == 30


@pytest.mark.parametrize("tpu", ["v5e-1", "v5e-8", None])
def test_a_check_names_the_line(tpu: str | None) -> None:
    report = check(huge, strategy=tpu and strategy_of(tpu))
    assert not report.ok
    assert [(error.code, error.line) for error in report.errors] == [
        ("memory", huge.__code__.co_firstlineno + 1)
    ]
    assert ("16 GiB" if tpu else "96 GiB") in report.errors[0].reason


def test_a_cell(v5e: Any) -> None:
    runner = CellRunner(v5e)
    with pytest.raises(EXHAUSTED, match="hbm"):
        runner.run("x = tf.zeros([400000, 400000])", {"tf": tf, "__name__": "__main__"})
    runner.close()


def test_a_plain_number_of_cores_gets_the_memory_of_the_largest_type() -> None:
    known = {accelerator(name).hbm_bytes for name in accelerator_types()}
    assert largest_memory() == max(known)
    assert strategy_of(2).extended._options.memory == max(known)


def test_the_memory_of_a_replicas_cores_is_added() -> None:
    options = strategy_of_parts(4).extended._options
    assert options.memory == 2 * accelerator("v3-8").hbm_bytes
    assert options.called == "a replica of 2 cores of v3-8"


def plain(x: Any) -> Any:
    return tf.reduce_sum(tf.fill([300], x))


def loop(x: Any) -> Any:
    for _ in tf.range(2):
        x += tf.reduce_sum(tf.fill([300], x))
    return x


def call(x: Any) -> Any:
    return tf.function(lambda y: tf.function(plain)(y))(x)


def loop_with_collectives(x: Any) -> Any:
    for _ in tf.range(2):
        x = all_reduce(tf.fill([300], x))[0]
    return x


def branch(x: Any) -> Any:
    return tf.cond(x > 9.0, lambda: plain(x), lambda: x)


@pytest.mark.parametrize("function", [plain, loop, call, loop_with_collectives, branch])
def test_a_large_tensor_in_any_place(small: Any, function: Callable[[Any], Any]) -> None:
    with pytest.raises(EXHAUSTED, match=r"float32\[300\], which takes 1.172 KiB"):
        run(small, function, each(small, [1.0, 2.0]))


def halves(x: Any) -> Any:
    return tf.reduce_sum(tf.fill([300], tf.cast(x, tf.bfloat16)))


def unused(x: Any) -> Any:
    tensor = tf.fill([300], x) * 2.0
    del x
    return tf.cast(tf.shape(tensor)[0] + tf.size(tf.zeros_like(tensor)), tf.float32)


@pytest.mark.parametrize("function", [halves, unused])
@pytest.mark.usefixtures("poor")
def test_tensors_that_fit_or_are_never_computed_run(
    small: Any, monkeypatch: pytest.MonkeyPatch, function: Callable[[Any], Any]
) -> None:
    monkeypatch.setattr(core_memory, "measure", lambda: Memory(available=1300))
    assert len(run(small, function, each(small, [1.0, 1.0]))) == 2


def test_variables_together(small: Any) -> None:
    with small.scope():
        variables = [tf.Variable(tf.zeros([100])) for _ in range(3)]
    with pytest.raises(EXHAUSTED, match=r"The variables take 1.172 KiB"):
        run(small, lambda: sum(tf.reduce_sum(variable) for variable in variables))


def test_the_rule_can_be_switched_off() -> None:
    lenient = strategy_of(2, strict={"memory": False})
    object.__setattr__(lenient.extended._options, "memory", 1000)
    assert run(lenient, plain, each(lenient, [1.0, 2.0])) == [300.0, 600.0]


@pytest.mark.parametrize("function", [plain, loop, call])
@pytest.mark.usefixtures("poor")
def test_tensors_too_large_for_this_machine(function: Callable[[Any], Any]) -> None:
    strategy = strategy_of(2, strict=True)
    with pytest.raises(
        MemoryLimitError, match=r"on each of 2 replicas, which takes 2\.34"
    ) as error:
        run(strategy, function, each(strategy, [1.0, 2.0]))
    assert "this machine has 1000 B left" in str(error.value)
    assert __file__ in str(error.value)
    assert "fewer cores" in error.value.fix
    # A check runs nothing, so this machine's memory does not matter.
    assert check(function, tf.TensorSpec([]), strategy=strategy).ok


@pytest.mark.usefixtures("poor")
def test_an_optional_branch_and_a_shared_value() -> None:
    strategy = strategy_of(2, strict=True)
    assert run(strategy, branch, each(strategy, [1.0, 2.0])) == [1.0, 2.0]

    def once(x: Any) -> Any:
        total = all_reduce(x)
        return tf.reduce_sum(tf.fill([200], total))  # the replicas share one result

    assert run(strategy, once, each(strategy, [1.0, 2.0])) == [600.0, 600.0]


@pytest.mark.usefixtures("poor")
def test_small_steps_run() -> None:
    strategy = strategy_of(2, strict=True)
    results = run(strategy, lambda x: x + 1.0, each(strategy, [np.ones(3, np.float32)] * 2))
    assert results[0].tolist() == [2.0] * 3
