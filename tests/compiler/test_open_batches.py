"""Open batches: the verdict of the TPU's compiler, and the size that it compiles."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf
from support.rules import check as check_by_rules
from support.strategies import strategy_of
from support.tiers import thorough
from verdicts import open_batches
from verdicts.compare import Compiler, Itself, Ours
from verdicts.functions import FUNCTIONS

from tpunb.compiler.ask import verdict
from tpunb.compiler.compile import compile  # noqa: A004
from tpunb.compiler.fit.batch_sizes import largest_batch
from tpunb.compiler.program import CompileError
from tpunb.tensorflow.compiler.check import check

pytestmark = pytest.mark.usefixtures("libtpu")

SOME = (
    "networks.attention_masked",
    "networks.gru_gradient",
    "arrays.sort_gradient",
    "mathematics.solve",
)


@pytest.fixture(scope="module")
def libtpu_itself() -> Iterator[Compiler]:
    created = Compiler()
    yield created
    created.close()


def examples(*sizes: int) -> Any:
    return tf.data.Dataset.from_tensors(tf.zeros(sizes)).repeat()


def model_of(width: int = 256) -> Any:
    created = keras.Sequential([keras.Input((width,)), keras.layers.Dense(width)])
    created.compile("sgd", "mse")
    return created


def pairs(width: int = 256) -> Any:
    return tf.data.Dataset.zip((examples(width), examples(width)))


@pytest.mark.parametrize("name", [*SOME[:2], *thorough(SOME[2:])])
def test_the_verdict_and_the_peak_match_libtpu(name: str, libtpu_itself: Compiler) -> None:
    entry = FUNCTIONS[name]
    assert open_batches.open_places(entry)
    ours, expected = open_batches.ours(entry), open_batches.itself(entry, libtpu_itself)
    assert not open_batches.difference(name, ours, expected)
    assert ours.peak == expected.peak


def test_differences_are_found() -> None:
    different = open_batches.difference
    assert different("name", Ours(), Itself("TensorFlow: it")).startswith("rules, compile, check")
    assert "compile, check" in different("name", Ours(), Itself("libtpu: UNIMPLEMENTED"))
    assert different("name", Ours(rules=("dynamic-batch",)), Itself()).startswith("rules")
    assert "compile" in different("name", Ours(), Itself("libtpu: #stablehlo.bounds<"))
    assert not different("name", Ours(unknown="two sizes"), Itself("libtpu: #stablehlo.bounds<"))
    assert "a peak of 90" in different("name", Ours(peak=90), Itself(peak=100))


def test_the_size_comes_from_the_dataset() -> None:
    model, rows = model_of(), 2**21
    for fn, data in (
        (model, pairs().batch(rows)),
        (model, pairs().batch(rows).prefetch(2)),
        (model.evaluate, pairs().batch(rows)),
        (model.predict, examples(256).batch(rows)),
    ):
        program = compile(fn, data, tpu="v5e-8")
        assert program.ok
        assert program.examples == rows
        assert program.memory is not None
        assert program.memory.arguments >= rows // 8 * 256 * 4
    large = compile(model, pairs().batch(2**27), tpu="v5e-8")
    assert [error.code for error in large.errors] == ["memory"]
    assert "A batch of" in large.errors[0].fix


def test_a_note_names_the_compiled_size() -> None:
    program = compile(model_of(), pairs().batch(64), tpu="v5e-8")
    assert any("at most 8 a replica" in note for note in program.notes)
    assert not any("depend on data" in note for note in program.notes)
    fixed = compile(model_of(), pairs().batch(64, drop_remainder=True), tpu="v5e-8")
    assert not any("replica" in note for note in fixed.notes)


def unsized() -> Iterator[Any]:
    yield tf.TensorSpec([None, 256])

    def rows() -> Any:
        pytest.fail("it was read")

    yield tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([None, 256]))


def test_without_a_size_memory_is_not_reported() -> None:
    for argument in unsized():
        program = compile(model_of().predict, argument, tpu="v5e-8")
        assert not program.ok
        assert not program.errors
        assert program.memory is None
        assert program.row.fits is None
        assert "because the batch has no size" in program.headline
        assert "drop_remainder=True" in program.headline
        assert "Compiles. Whether it fits is not known" in str(program)
        with pytest.raises(CompileError, match="the batch has no size"):
            program.raise_if_refused()


def test_a_refusal_at_every_size_is_a_refusal_without_a_size() -> None:
    program = compile(lambda x: tf.linalg.inv(x), tf.TensorSpec([None, 8, 8]), tpu="v5e-8")
    assert [error.code for error in program.errors] == ["dynamic-batch"]


@functools.cache
def dilation() -> Any:
    created = keras.layers.Conv2D(4, 3, dilation_rate=2)
    created.build([None, 32, 32, 3])
    return created


def dilated(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.abs(dilation()(x)))
    return tape.gradient(loss, [x, *dilation().trainable_variables])


def inverse(x: Any) -> Any:
    y = x * 2.0
    return tf.linalg.inv(y)


@pytest.mark.parametrize(("fn", "sizes", "line"), [(dilated, (32, 32, 3), 3), (inverse, (8, 8), 2)])
def test_a_refusal_by_libtpu_is_an_error_with_its_line(
    fn: Any, sizes: tuple[int, ...], line: int
) -> None:
    dilation()
    program = compile(fn, examples(*sizes).batch(64), tpu="v5e-8")
    (error,) = program.errors
    assert error.code == "dynamic-batch"
    assert error.line == inspect.getsourcelines(fn)[1] + line
    assert "The batch is not fixed" in error.reason
    assert "drop_remainder=True" in error.fix
    assert compile(fn, examples(*sizes).batch(64, drop_remainder=True), tpu="v5e-8").ok
    assert compile(fn, examples(*sizes).batch(64), tpu="v5e-1").ok  # a single replica
    # The rules alone do not find it. A check with the compiler does.
    assert check_by_rules(fn, examples(*sizes).batch(64)).ok
    (found,) = check(fn, examples(*sizes).batch(64)).errors
    assert (found.code, found.line) == ("dynamic-batch", error.line)


def test_an_inexpressible_size_gives_no_verdict() -> None:
    program = compile(
        lambda x: tf.matmul(x, x, transpose_b=True), examples(8).batch(64), tpu="v5e-8"
    )
    assert not program.errors
    assert "several open sizes" in program.unknown
    assert "drop_remainder=True" in program.unknown


def test_a_crash_on_an_open_size_gives_no_verdict() -> None:
    def convolved(x: Any) -> Any:
        return tf.nn.conv1d(x, tf.ones([3, 4, 4]), 1, "SAME")

    sequences = tf.data.Dataset.from_tensors(tf.zeros([6, 4])).repeat()
    padded = sequences.padded_batch(8, padded_shapes=[None, 4])
    program = compile(convolved, padded, tpu="v5e-8")
    assert program.unknown
    assert "padded_batch" in program.unknown


def test_a_batch_is_global_with_and_without_a_connection() -> None:
    x = y = tf.TensorSpec([1024, 256])
    eight = strategy_of("v5e-8", strict=True)
    with eight.scope():
        connected = model_of()
    program = compile(connected, x, y, strategy=eight)
    assert program.examples == 1024
    for tpu in ("v5e-8", "v5e-16", "v5e-1"):
        with_connection, without = (
            compile(model, x, y, tpu=tpu) for model in (connected, model_of())
        )
        assert with_connection.examples == without.examples == 1024
        for compiled in (with_connection, without):
            assert compiled.memory is not None
            inputs = 2 * 1024 // compiled.replicas * 256 * 4
            assert inputs <= compiled.memory.arguments < inputs + 2**19


def test_a_replica_function_gets_one_replicas_batch() -> None:
    several = compile(lambda x: x * 2.0, tf.TensorSpec([64, 8]), tpu=["v5e-1", "v5e-8"])
    assert [program.examples for program in several] == [64, 512]


def test_several_types_show_the_batch_that_fits() -> None:
    types = compile(
        model_of(), tf.TensorSpec([2**26, 256]), tf.TensorSpec([2**26, 256]), tpu=["v2-8", "v5e-8"]
    )
    for program in types:
        assert program.fitting_batch is not None
        assert f"A batch of {program.fitting_batch:,} (" in program.errors[0].fix
        assert f"{program.fitting_batch:,}" in str(types)
    assert "batch that fits" in str(types)


def test_the_largest_batch_of_an_open_dataset() -> None:
    largest = largest_batch(model_of(), pairs().batch(4096), tpu="v2-8", step=4096)
    assert not isinstance(largest, tuple)
    assert largest.batch == largest.per_replica * 8
    assert any("is not fixed" in note for note in largest.program.notes)


def test_a_fixed_batch_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ask = verdict.libtpu.ask

    def counted(prepared: Any, *args: Any, **options: Any) -> Any:
        asked.append(prepared.bounded)
        return ask(prepared, *args, **options)

    monkeypatch.setattr(verdict.libtpu, "ask", counted)
    assert compile(model_of(), pairs().batch(64, drop_remainder=True), tpu="v5e-8").ok
    assert asked == [None]
    assert compile(model_of(), pairs().batch(64), tpu="v5e-8").ok
    assert len(asked) == 2
