"""Sizes that are not fixed are bounded on a TPU; what TensorFlow cannot lower then is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.rules import check
from support.strategies import each, stepper, strategy_of

from tpunb.tensorflow.checks.rule_check import CheckError
from tpunb.tensorflow.virtual.strict import examination

OPEN = tf.TensorSpec([None, 4])


def rows() -> Any:
    return tf.data.Dataset.from_tensor_slices(np.zeros((32, 4), np.float32))


@pytest.fixture(scope="module")
def two() -> Any:
    return strategy_of(2, strict=True)


def strided(x: Any) -> Any:
    y = x * 2.0
    return tf.reduce_sum(y[::2])


REFUSED: dict[str, Callable[[Any], Any]] = {
    "every second": strided,
    "backwards": lambda x: x[::-1],
    "split": lambda x: tf.split(x, 2)[0],
    "squeezed": lambda x: tf.squeeze(x),
    "one-hot": lambda x: tf.one_hot(tf.range(tf.shape(x)[0]), tf.shape(x)[0]),
}
COMPILE: dict[str, Callable[[Any], Any]] = {
    "product": lambda x: tf.reduce_mean(tf.nn.relu(x @ tf.ones([4, 3]))),
    "last axis backwards": lambda x: x[..., ::-1],
    "batch shape": lambda x: tf.reshape(x, [tf.shape(x)[0], 2, 2]),
    "concatenated": lambda x: tf.concat([x, x], 0),
    "first": lambda x: x[0] + x[-1],
    "sorted": lambda x: tf.sort(x, 0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_operations_that_tensorflow_cannot_lower_are_refused(two: Any, name: str) -> None:
    (error,) = check(REFUSED[name], OPEN, strategy=two).errors
    assert error.code == "dynamic-batch"
    assert "The batch is not fixed (float32[?, 4])" in error.reason
    assert "drop_remainder=True" in error.fix
    assert check(REFUSED[name], tf.TensorSpec([8, 4]), strategy=two).ok


@pytest.mark.parametrize("name", COMPILE)
def test_operations_that_tensorflow_lowers_pass(two: Any, name: str) -> None:
    assert check(COMPILE[name], OPEN, strategy=two).ok


def test_the_line_is_named(two: Any) -> None:
    (error,) = check(strided, OPEN, strategy=two).errors
    assert error.line == inspect.getsourcelines(strided)[1] + 2


def test_one_replica_gets_actual_sizes() -> None:
    assert check(strided, OPEN, strategy=strategy_of(1, strict=True)).ok


def batches(strategy: Any, **options: Any) -> Any:
    return iter(strategy.experimental_distribute_dataset(rows().batch(8, **options)))


def reading(strategy: Any, options: Any = None) -> Any:
    def step(iterator: Any) -> Any:
        return strategy.run(strided, args=(next(iterator),), options=options)

    return tf.function(step)


def test_a_run_is_refused_in_its_first_step(two: Any) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="The batch is not fixed") as refused:
        reading(two)(batches(two))
    assert "dynamic sized slice" in str(refused.value)  # TensorFlow's own message
    assert "y[::2]" in str(refused.value)


def test_a_fixed_batch_is_not_examined(two: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(examination, "refused_for_open_sizes", lambda *args: asked.append(args))
    reading(two)(batches(two, drop_remainder=True))
    stepper(two, strided)(each(two, [np.ones([4, 4], np.float32)] * 2))
    assert not asked
    reading(two)(batches(two))
    assert len(asked) == 1


def test_a_batch_that_cannot_be_divided_is_not_fixed(two: Any) -> None:
    indivisible = iter(two.experimental_distribute_dataset(rows().batch(7, drop_remainder=True)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="The batch is not fixed"):
        reading(two)(indivisible)


def test_a_loop_over_a_distributed_dataset_does_not_fix_the_batch(two: Any) -> None:
    def epoch(data: Any) -> None:
        for batch in data:
            two.run(strided, args=(batch,))

    fixed = two.experimental_distribute_dataset(rows().batch(8, drop_remainder=True))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Read it with `next\(iterator\)`"):
        tf.function(epoch)(fixed)


def test_the_rule_can_be_switched_off() -> None:
    lenient = strategy_of(2, strict={"dynamic-batch": False})
    reading(lenient)(batches(lenient))


@pytest.mark.parametrize(
    "options",
    [
        tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False),
        tf.distribute.RunOptions(
            experimental_xla_options=tf.tpu.XLAOptions(enable_xla_dynamic_padder=False)
        ),
    ],
    ids=["not padded", "padded earlier"],
)
def test_the_options_of_a_run_decide(two: Any, options: Any) -> None:
    reading(two, options)(batches(two))


def test_images_and_sequences_of_any_size(two: Any) -> None:
    (error,) = check(lambda x: x[:, ::2], tf.TensorSpec([4, None, 3]), strategy=two).errors
    assert error.code == "dynamic-batch"
    assert "A size of an input is not fixed (float32[4, ?, 3])" in error.reason
    assert "padded_batch" in error.fix
    assert "dataset.batch" not in error.fix
    (error,) = check(lambda x: x[:, ::2], tf.TensorSpec([None, None, 3]), strategy=two).errors
    assert "The batch and other sizes are not fixed" in error.reason


def test_a_captured_tensor_of_any_size_is_not_padded(two: Any) -> None:
    @tf.function
    def step(x: Any, table: Any) -> Any:
        return two.run(lambda y: tf.reduce_sum(table[::2]) + y, args=(x,))

    assert check(step, tf.TensorSpec([]), OPEN, strategy=two).ok


def test_code_that_may_compile_with_another_size_is_not_refused(two: Any) -> None:
    """The size that the check tries cannot be reshaped, whether the batch is fixed or not."""
    reading_rows = tf.function(
        lambda iterator: two.run(lambda x: tf.reshape(x, [16, 1]), args=(next(iterator),))
    )
    reading_rows(batches(two))


def test_a_model_is_refused_in_its_first_step(two: Any) -> None:
    class Halved(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return tf.repeat(x[::2], 2, axis=0)

    with two.scope():
        model = keras.Sequential([keras.Input((4,)), Halved(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    pairs = tf.data.Dataset.zip((rows(), rows().map(lambda x: x[:1])))
    with pytest.raises(tf.errors.InvalidArgumentError, match="The batch is not fixed"):
        model.fit(pairs.batch(8), shuffle=False, verbose=0)
    model.fit(pairs.batch(8, drop_remainder=True), shuffle=False, verbose=0)
    # Keras reads a batch before it predicts, so the step knows its size.
    model.predict(rows().batch(8), verbose=0)
    assert check(model.predict, rows().batch(8)).ok
    assert not check(model.predict, rows().batch(12)).ok
    assert [error.code for error in check(model.evaluate, pairs.batch(8)).errors] == [
        "dynamic-batch"
    ]


def test_memory_and_products_use_the_datasets_batch_size(two: Any) -> None:
    with two.scope():
        model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(2**15)])
        model.compile("sgd", "mse")
    wide = tf.data.Dataset.from_tensors((tf.zeros([256]), tf.zeros([2**15]))).repeat()
    for rest in (False, True):
        report = check(model, wide.batch(2**21, drop_remainder=rest), strategy=two)
        assert "memory" in {error.code for error in report.errors}
        assert "float32[1048576, 32768]" in report.errors[0].reason
    assert check(model, wide.batch(64), strategy=two).ok
    small = check(model, wide.batch(8), strategy=two)
    assert "small-batch" in {warning.code for warning in small.warnings}


def test_data_from_python_is_not_read(two: Any) -> None:
    def batches() -> Any:
        pytest.fail("it was read")
        yield

    class Batches(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            pytest.fail("it was read")

    with two.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    for data in (batches(), Batches()):
        with pytest.raises(CheckError, match="not known before Python reads them") as error:
            check(model, data)
        assert "tf.TensorSpec" in error.value.fix


@pytest.mark.timeout(60)
def test_an_error_ends_a_check_with_an_endless_dataset() -> None:
    pairs = tf.data.Dataset.zip((rows(), rows())).repeat()
    with pytest.raises(TypeError):
        check(lambda batch: strided(*batch), pairs.batch(8))
