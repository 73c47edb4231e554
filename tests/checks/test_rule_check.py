"""Programs that compile for a TPU and programs that do not, with the line at fault."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.checked_functions import (
    CASES,
    CHECK,
    X,
    a_boolean_mask,
    a_growing_tensor_array,
    asked,
)
from support.keras_models import squares_lessened
from support.rules import check
from support.strategies import all_reduce, strategy_of

import tpunb
from tpunb.tensorflow.checks.rule_check import CheckError, CheckReport, Problem
from tpunb.tensorflow.virtual.private_names import tpu_ops
from tpunb.tensorflow.virtual.replicate import registration


@pytest.mark.parametrize("name", asked(CHECK))
def test_programs_that_compile_or_not(name: str) -> None:
    case = CASES[name]
    report = check(case.function, *case.args)
    if not (case.refused or case.warned):
        assert report == CheckReport()
        return
    assert report.ok is not bool(case.refused)
    first = (report.errors or report.warnings)[0]
    assert (first.code, first.line) == (case.refused or case.warned, case.line)
    assert first.file == case.function.__code__.co_filename
    assert first.reason
    assert first.fix


@pytest.mark.parametrize("name", asked(CHECK, "warned"))
def test_data_dependent_sizes_give_a_warning(name: str) -> None:
    (warning,) = check(CASES[name].function, *CASES[name].args).warnings
    assert "pads it to its bound" in warning.reason


def test_a_check_uses_the_open_connection() -> None:
    connection = tpunb.connect(simulate=2)
    with connection.strategy.scope():
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(2)])
        optimizer = keras.optimizers.SGD()
    stray = keras.metrics.Mean()

    def step(x: Any) -> Any:
        return all_reduce(squares_lessened(model, optimizer, x))

    before = model.get_weights()
    assert check(step, X) == CheckReport()
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    assert {error.code for error in check(stray.update_state, X).errors} == {"scope"}
    connection.close()
    assert check(stray.update_state, X).ok


def test_a_function_that_runs_replicas() -> None:
    strategy = strategy_of(2)
    data = tf.data.Dataset.range(8).map(lambda x: tf.cast(x, tf.float32)).batch(4)
    iterator = iter(strategy.experimental_distribute_dataset(data))

    @tf.function
    def train(batches: Any) -> Any:
        total = 0.0
        for _ in tf.range(2):
            kept = strategy.run(lambda x: tf.boolean_mask(x, x > 0), args=(next(batches),))
            total += tf.reduce_sum(strategy.experimental_local_results(kept)[0])
        return total

    for options in ({"strategy": strategy}, {}):
        codes = {warning.code for warning in check(train, iterator, **options).warnings}
        assert "dynamic-shape" in codes
    with strategy.scope():
        assert check(train, iterator).warnings


def test_a_check_does_not_expand_the_function_for_all_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def expand(*_: Any, **__: Any) -> Any:
        raise AssertionError("the function is expanded")

    monkeypatch.setattr(registration, "expand", expand)
    strategy = strategy_of("v3-8", strict=True)

    def step(x: Any) -> Any:
        sums = all_reduce({"x": x, "y": [2 * x]})
        return sums, tf.RaggedTensor.from_row_splits(x[:, 0], tf.constant([0, 3, 8])), None

    @tf.function
    def caller(x: Any) -> Any:
        results, ragged, nothing = strategy.run(step, args=(x,))
        assert nothing is None or set(strategy.experimental_local_results(nothing)) == {None}
        total = strategy.reduce("sum", results["y"][0], axis=None)
        return total, strategy.experimental_local_results(ragged)

    assert check(step, X, strategy=strategy).ok
    assert check(caller, X, strategy=strategy).ok


def test_invalid_groups_are_refused_in_called_functions_too() -> None:
    @tf.function
    def halves(x: Any) -> Any:
        return tpu_ops.cross_replica_sum(x, [[0, 1, 2, 3], [4, 5, 6, 6]])

    def step(x: Any) -> Any:
        return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, halves(y)), [0, x])[1]

    with pytest.raises(ValueError, match="must be in exactly one group"):
        check(step, X, strategy=strategy_of("v3-8", strict=True))


def test_a_dataset_represents_its_batches() -> None:
    data = tf.data.Dataset.from_tensor_slices(np.zeros([20, 4], np.float32))
    seen = []
    strategy = strategy_of(2)
    report = check(lambda x: seen.append(x.shape), data.batch(8), strategy=strategy)
    assert [warning.code for warning in report.warnings] == ["last-batch"]
    assert check(tf.abs, data.batch(8, drop_remainder=True), strategy=strategy).warnings == ()
    assert seen[0] == [None, 4]


def test_retracing() -> None:
    function = tf.function(lambda x, rate: x * rate)
    warnings = check(function, X, 0.1).warnings
    assert [warning.code for warning in warnings] == ["retracing"]
    assert "1 of the arguments are Python numbers (0.1)" in warnings[0].reason


def test_a_functions_own_errors_are_raised() -> None:
    with pytest.raises(ValueError, match="Dimensions must be equal"):
        check(lambda x: tf.matmul(x, x), X)
    with pytest.raises(CheckError, match="Does not compile"):
        check(a_growing_tensor_array, X).raise_if_refused()


def test_the_text_of_a_report() -> None:
    report = check(a_boolean_mask, X)
    assert str(report).startswith("Compiles for a TPU: 1 warning.\nline ")
    assert "boolean_mask" in report._repr_html_()
    assert repr(report).startswith("CheckReport(errors=(), warnings=(Problem(code='dynamic-shape'")


def embedding_of(kind: str) -> Any:
    embedding = tf.tpu.experimental.embedding
    table = embedding.TableConfig(
        vocabulary_size=8, dim=4, initializer=tf.ones_initializer(), name="table"
    )
    feature = embedding.FeatureConfig(table=table)
    return getattr(embedding, kind)(feature, optimizer=embedding.SGD(0.1))


def test_embedding_tables_of_a_tpu() -> None:
    """TensorFlow asks for their kernels while it traces, so tracing is enough to refuse them."""
    strategy = strategy_of(2)
    with strategy.scope():
        embedding = embedding_of("TPUEmbedding")

    @tf.function
    def step(ids: Any) -> Any:
        embedding.enqueue(ids)
        return strategy.run(embedding.dequeue)

    report = tpunb.check(step, tf.constant([1, 2]), strategy=strategy)
    assert [(error.code, error.entry) for error in report.errors] == [("unsupported-op", "48")]
    assert report.errors[0].line == inspect.getsourcelines(step.python_function)[1]
    assert "TPUEmbeddingV0" in report.errors[0].fix


def test_the_recommended_embedding_tables_work() -> None:
    """The replacement that the catalogue recommends computes and learns."""
    strategy = strategy_of(2)
    with strategy.scope():
        embedding = embedding_of("TPUEmbeddingV0")
        embedding.build()
        optimizer = keras.optimizers.SGD(0.1)
    (table,) = embedding.embedding_tables.values()

    @tf.function
    def step(ids: Any) -> Any:
        def replica(ids: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(embedding(ids) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(loss, [table]), [table], strict=True))

        strategy.run(replica, args=(ids,))

    step(tf.constant([[1], [2]]))
    np.testing.assert_allclose(table.numpy()[:4, 0], [1, 0.6, 0.6, 1])


def test_many_problems() -> None:
    """Some of thousands of problems are shown; the others are counted."""
    problem = Problem("rule", "because " * 10_000, "Do otherwise.", 1)
    report = CheckReport((problem,) * 10_000, (problem,) * 40)
    shown = str(report)
    assert shown.startswith("Does not compile for a TPU: 10000 errors, 40 warnings.")
    assert shown.count("error rule") == shown.count("warning rule") == 30
    assert "and 9970 more errors" in shown
    assert "and 10 more warnings" in shown
    assert "and 9970 more errors" in report._repr_html_()
    assert len(shown) + len(report._repr_html_()) < 400_000
