"""What compiles for a TPU and what does not, and at which line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.strategies import strategy_of

import tpunb
from tpunb.virtual._tensorflow import tpu_ops
from tpunb.virtual.check import CheckError, CheckReport, Problem, check
from tpunb.virtual.replicate.replication import Divergence

X = tf.TensorSpec([8, 16])
IDS = tf.TensorSpec([8, 5], tf.int32)
MARK = "# here"

good: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
bad: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = []
fragile: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = []


def compiles(*args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Lists a function that compiles for a TPU."""

    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        good.append((fn, args))
        return fn

    return add


def refused(code: str, *args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Lists a function that does not, at the line that is marked."""

    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        bad.append((fn, args, code))
        return fn

    return add


def warned(code: str, *args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Lists a function that compiles with a warning, at the line that is marked."""

    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        fragile.append((fn, args, code))
        return fn

    return add


@compiles(X)
def elementwise(x: Any) -> Any:
    return tf.nn.relu(x) * 2.0 + tf.exp(-tf.abs(x))


@compiles(X, tf.TensorSpec([16, 4]))
def a_matrix_product(x: Any, w: Any) -> Any:
    return tf.matmul(x, w)


@compiles(X)
def reductions(x: Any) -> Any:
    return tf.reduce_mean(x), tf.reduce_logsumexp(x, axis=1), tf.argmax(x, axis=-1)


@compiles(X)
def static_reshaping(x: Any) -> Any:
    return tf.transpose(tf.reshape(x, [tf.shape(x)[0], 4, -1]), [0, 2, 1])


@compiles(tf.TensorSpec([4, 12, 12, 3]), tf.TensorSpec([3, 3, 3, 8]))
def convolution_and_pooling(x: Any, kernel: Any) -> Any:
    return tf.nn.max_pool2d(tf.nn.conv2d(x, kernel, 1, "SAME"), 2, 2, "VALID")


@compiles(X)
def a_loop_of_fixed_length(x: Any) -> Any:
    for _ in tf.range(10):
        x = tf.tanh(x)
    return x


@compiles(X, tf.TensorSpec([], tf.int32))
def a_loop_of_any_length(x: Any, n: Any) -> Any:
    for _ in tf.range(n):
        x = tf.tanh(x)
    return x


@compiles(X)
def a_loop_that_waits(x: Any) -> Any:
    while tf.reduce_sum(x) < 1000.0:
        x = x * 2.0 + 1.0
    return x


@compiles(X)
def the_gradient_of_a_fixed_loop(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x
        for _ in tf.range(3):
            y = y * x
    return tape.gradient(y, x)


@compiles(X)
def branches(x: Any) -> Any:
    if tf.reduce_sum(x) > 0:
        y = x * 3.0
    else:
        y = tf.zeros_like(x)
        y -= x
    return tf.switch_case(tf.argmax(y[0], output_type=tf.int32) % 2, [lambda: y, lambda: y * 2.0])


@compiles(X)
def slices_of_fixed_length(x: Any) -> Any:
    total = 0.0
    for i in tf.range(4):
        total += tf.reduce_sum(tf.slice(x, [2 * i, 0], [2, 16])) + tf.reduce_sum(x[i])
    return total


@compiles(X)
def where_with_three_arguments(x: Any) -> Any:
    return tf.where(x > 0, x, tf.zeros_like(x))


@compiles(IDS)
def embedding_lookup(ids: Any) -> Any:
    return tf.gather(tf.ones([100, 4]), ids), tf.one_hot(ids, 10)


@compiles(tf.TensorSpec([8], tf.int32))
def a_mask_of_fixed_length(lengths: Any) -> Any:
    return tf.sequence_mask(lengths, maxlen=64)


@compiles(X)
def a_tensor_array_of_fixed_size(x: Any) -> Any:
    array = tf.TensorArray(tf.float32, size=4)
    for i in tf.range(4):
        array = array.write(i, x * tf.cast(i, tf.float32))
    return array.stack()


@compiles(X)
def a_scan(x: Any) -> Any:
    return tf.scan(lambda total, row: total + row, x), tf.map_fn(tf.reduce_sum, x)


@compiles(X)
def random_numbers(x: Any) -> Any:
    drawn = tf.random.stateless_normal(tf.shape(x), [1, 2]) + tf.random.uniform(tf.shape(x))
    return tf.nn.dropout(x, 0.5) + drawn


@compiles(X)
def bfloat16(x: Any) -> Any:
    half = tf.cast(x, tf.bfloat16)
    return tf.cast(tf.matmul(half, half, transpose_b=True), tf.float32)


@compiles(X)
def sorting(x: Any) -> Any:
    return tf.sort(x, axis=-1), tf.math.top_k(x, 3), tf.cumsum(x, axis=1)


@compiles(X)
def linear_algebra(x: Any) -> Any:
    square = tf.matmul(x, x, transpose_b=True) + 100.0 * tf.eye(8)
    return tf.linalg.cholesky(square), tf.einsum("ij,kj->ik", x, x), tf.linalg.inv(square)


@compiles(X)
def assertions(x: Any) -> Any:
    tf.debugging.assert_greater(x, -1.0, message="too small")
    tf.debugging.Assert(tf.reduce_all(x < 1.0), [x])
    return x


@compiles(X, tf.TensorSpec([8], tf.int64))
def losses(x: Any, labels: Any) -> Any:
    per_example = keras.losses.sparse_categorical_crossentropy(labels, x, from_logits=True)
    return tf.nn.compute_average_loss(per_example, global_batch_size=8)


@compiles(tf.TensorSpec([8], tf.int32), X)
def segments_of_a_fixed_number(ids: Any, x: Any) -> Any:
    return tf.math.unsorted_segment_sum(x, ids, num_segments=4)


@compiles(X)
def a_fourier_transform(x: Any) -> Any:
    return tf.abs(tf.signal.rfft(x)), tf.image.resize(x[:, :, None], [4, 4])


@compiles(X)
def a_function_in_the_function(x: Any) -> Any:
    inner = tf.function(lambda y: tf.nn.softmax(y))
    return tf.recompute_grad(inner)(x)


@refused("unsupported-op", X)
def printing(x: Any) -> Any:
    tf.print("mean", tf.reduce_mean(x))  # here
    return x


@refused("unsupported-op", X)
def python(x: Any) -> Any:
    y = tf.py_function(lambda value: value * 2, [x], tf.float32)  # here
    return tf.reshape(y, [8, 16])


@refused("unsupported-op", X)
def numpy_function(x: Any) -> Any:
    y = tf.numpy_function(np.square, [x], tf.float32)  # here
    return tf.ensure_shape(y, [8, 16])


@refused("unsupported-op", X)
def strings(x: Any) -> Any:
    text = tf.strings.as_string(x)  # here
    return tf.strings.length(text)


@refused("unsupported-type", tf.TensorSpec([8], tf.string))
def a_string_argument(words: Any) -> Any:
    return tf.ones([8])


@refused("unsupported-type", X)
def a_string_result(x: Any) -> Any:
    return tf.constant("done")  # here


@refused("unsupported-op", IDS)
def a_table(ids: Any) -> Any:
    with tf.init_scope():
        rows = tf.lookup.KeyValueTensorInitializer([1, 2], [10, 20])
        table = tf.lookup.StaticHashTable(rows, -1)
    return table.lookup(ids)  # here


@warned("dynamic-shape", X)
def where_with_one_argument(x: Any) -> Any:
    return tf.reduce_sum(tf.where(x > 0))  # here


@warned("dynamic-shape", X)
def a_boolean_mask(x: Any) -> Any:
    kept = tf.boolean_mask(x, x > 0)  # here
    return tf.reduce_mean(kept)


@warned("dynamic-shape", IDS)
def distinct_values(ids: Any) -> Any:
    return tf.unique(tf.reshape(ids, [-1]))  # here


@warned("dynamic-shape", X)
def parts(x: Any) -> Any:
    halves = tf.dynamic_partition(x, tf.cast(x > 0, tf.int32), 2)  # here
    return tf.reduce_sum(halves[0])


@warned("bounded-shape", X, tf.TensorSpec([], tf.int32))
def a_slice_of_any_length(x: Any, n: Any) -> Any:
    return tf.reduce_sum(x[:n])  # here


@warned("bounded-shape", X)
def a_slice_in_a_loop(x: Any) -> Any:
    total = 0.0
    for i in tf.range(4):
        total += tf.reduce_sum(x[2 * i : 2 * i + 2])  # here
    return total


@refused("constant-size", tf.TensorSpec([8], tf.int32))
def a_mask_of_any_length(lengths: Any) -> Any:
    return tf.sequence_mask(lengths)  # here


@refused("constant-size", tf.TensorSpec([], tf.int32))
def as_many_as_it_says(n: Any) -> Any:
    return tf.zeros([n, 4])  # here


@refused("constant-size", X, tf.TensorSpec([], tf.int32))
def the_first_few(x: Any, n: Any) -> Any:
    return tf.reduce_sum(tf.reshape(x, [n, -1]))  # here


@refused("constant-size", tf.TensorSpec([], tf.int32))
def a_range(n: Any) -> Any:
    return tf.reduce_sum(tf.range(n))  # here


@refused("list-size", X)
def a_growing_tensor_array(x: Any) -> Any:
    array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    for i in tf.range(3):
        array = array.write(i, x)  # here
    return array.stack()


@refused("list-size", X)
def the_gradient_of_an_open_loop(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x
        while tf.reduce_sum(y) < 100.0:
            y = y * 2.0
    return tape.gradient(y, x)  # here


@refused("x64-op", tf.TensorSpec([8, 8], tf.int64))
def a_product_of_long_integers(x: Any) -> Any:
    return tf.matmul(x, x)  # here


@refused("x64-op", tf.TensorSpec([2, 8, 8, 1], tf.float64))
def the_gradient_of_max_pooling_in_float64(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.max_pool2d(x, 2, 2, "VALID")
    return tape.gradient(y, x)  # here


@refused("x64-op")
def random_numbers_in_float64() -> Any:
    return tf.random.normal([8], dtype=tf.float64)  # here


@refused("unsupported-type", X)
def complex_numbers_inside(x: Any) -> Any:
    y = tf.cast(x, tf.complex128) * 1j  # here
    return tf.cast(tf.abs(y), tf.float32)


@refused("unsupported-op", tf.RaggedTensorSpec([8, None], tf.int32, ragged_rank=1))
def ragged(x: Any) -> Any:
    return x.to_tensor()  # here


@refused("unsupported-op", X)
def sparse(x: Any) -> Any:
    matrix = tf.sparse.SparseTensor([[0, 1]], [1.0], [4, 8])
    return tf.sparse.sparse_dense_matmul(matrix, x)  # here


@refused("unsupported-op", tf.TensorSpec([8, 8, 8, 3]))
def an_image_resized(x: Any) -> Any:
    return tf.image.resize(x, [4, 4], method="bicubic")  # here


@refused("unsupported-op", X)
def in_a_branch(x: Any) -> Any:
    if tf.reduce_sum(x) > 0:
        tf.print("positive")  # here
    return x


@refused("unsupported-op", X)
def in_a_loop(x: Any) -> Any:
    for i in tf.range(3):
        tf.print(i)  # here
        x = x + 1.0
    return x


@refused("unsupported-op", X)
def in_a_nested_function(x: Any) -> Any:
    @tf.function
    def inner(y: Any) -> Any:
        tf.print(y)  # here
        return y

    return inner(x) + 1.0


def marked(fn: Callable[..., Any]) -> int | None:
    lines, first = inspect.getsourcelines(fn)
    found = [first + place for place, line in enumerate(lines) if line.rstrip().endswith(MARK)]
    return found[0] if found else None


@pytest.mark.parametrize(("fn", "args"), good, ids=[fn.__name__ for fn, _ in good])
def test_what_compiles_is_not_spoken_of(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    assert check(fn, *args) == CheckReport()


@pytest.mark.parametrize(("fn", "args", "code"), bad, ids=[fn.__name__ for fn, _, _ in bad])
def test_what_does_not_compile(fn: Callable[..., Any], args: tuple[Any, ...], code: str) -> None:
    found = check(fn, *args)
    assert not found.ok
    first = found.errors[0]
    assert first.code == code
    assert first.line == (marked(fn) or fn.__code__.co_firstlineno)
    assert first.reason
    assert first.fix
    assert first.file == __file__


@pytest.mark.parametrize(("fn", "args", "code"), fragile, ids=[fn.__name__ for fn, _, _ in fragile])
def test_sizes_that_depend_on_data_are_fragile(
    fn: Callable[..., Any], args: tuple[Any, ...], code: str
) -> None:
    found = check(fn, *args)
    assert found.ok
    (first,) = found.warnings
    assert (first.code, first.line) == (code, marked(fn))
    assert "pads it to its bound" in first.reason
    assert first.fix


def test_the_open_connection_is_checked_with() -> None:
    connection = tpunb.connect(simulate=2)
    with connection.strategy.scope():
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(2)])
        optimizer = keras.optimizers.SGD()
    stray = keras.metrics.Mean()

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return tf.distribute.get_replica_context().all_reduce("sum", loss)

    before = model.get_weights()
    assert check(step, X) == CheckReport()
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    assert {one.code for one in check(stray.update_state, X).errors} == {"scope"}
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

    for given in ({"strategy": strategy}, {}):
        codes = {one.code for one in check(train, iterator, **given).warnings}
        assert "dynamic-shape" in codes
    with strategy.scope():
        assert check(train, iterator).warnings


def test_what_is_only_checked_is_not_written_out_for_all_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write(*_: Any) -> Any:
        raise AssertionError("it is written out")

    monkeypatch.setattr(Divergence, "write", write)
    strategy = strategy_of("v3-8", strict=True)

    def step(x: Any) -> Any:
        both = tf.distribute.get_replica_context().all_reduce("sum", {"x": x, "y": [2 * x]})
        return both, tf.RaggedTensor.from_row_splits(x[:, 0], tf.constant([0, 3, 8])), None

    @tf.function
    def caller(x: Any) -> Any:
        both, ragged, nothing = strategy.run(step, args=(x,))
        assert nothing is None or set(strategy.experimental_local_results(nothing)) == {None}
        total = strategy.reduce("sum", both["y"][0], axis=None)
        return total, strategy.experimental_local_results(ragged)

    assert check(step, X, strategy=strategy).ok
    assert check(caller, X, strategy=strategy).ok


def test_partners_that_do_not_match_are_refused_in_what_is_called_too() -> None:
    @tf.function
    def halves(x: Any) -> Any:
        return tpu_ops.cross_replica_sum(x, [[0, 1, 2, 3], [4, 5, 6, 6]])

    def step(x: Any) -> Any:
        return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, halves(y)), [0, x])[1]

    with pytest.raises(ValueError, match="must be in exactly one group"):
        check(step, X, strategy=strategy_of("v3-8", strict=True))


def test_a_dataset_stands_for_a_batch() -> None:
    data = tf.data.Dataset.from_tensor_slices(np.zeros([20, 4], np.float32))
    seen = []
    strategy = strategy_of(2)
    report = check(lambda x: seen.append(x.shape), data.batch(8), strategy=strategy)
    assert [one.code for one in report.warnings] == ["last-batch"]
    assert check(tf.abs, data.batch(8, drop_remainder=True), strategy=strategy).warnings == ()
    assert seen[0] == [None, 4]


def test_retracing() -> None:
    function = tf.function(lambda x, rate: x * rate)
    found = check(function, X, 0.1).warnings
    assert [one.code for one in found] == ["retracing"]
    assert "1 of the arguments are Python numbers (0.1)" in found[0].reason


def test_errors_of_the_function_are_its_own() -> None:
    with pytest.raises(ValueError, match="Dimensions must be equal"):
        check(lambda x: tf.matmul(x, x), X)
    with pytest.raises(CheckError, match="Does not compile"):
        check(a_growing_tensor_array, X).raise_if_refused()


def test_a_report_says_where_in_which_words() -> None:
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
    """TensorFlow asks for their kernels while it traces: nobody has to run them to know."""
    strategy = strategy_of(2)
    with strategy.scope():
        embedding = embedding_of("TPUEmbedding")

    @tf.function
    def step(ids: Any) -> Any:
        embedding.enqueue(ids)
        return strategy.run(embedding.dequeue)

    found = tpunb.check(step, tf.constant([1, 2]), strategy=strategy)
    assert [(one.code, one.entry) for one in found.errors] == [("unsupported-op", "48")]
    assert found.errors[0].line == inspect.getsourcelines(step.python_function)[1]
    assert "TPUEmbeddingV0" in found.errors[0].fix


def test_embedding_tables_on_the_cores() -> None:
    """What the catalogue recommends in their place computes and learns."""
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
    """Some of thousands of problems are shown, and the others counted."""
    problem = Problem("rule", "because " * 10_000, "Do otherwise.", 1)
    report = CheckReport((problem,) * 10_000, (problem,) * 40)
    shown = str(report)
    assert shown.startswith("Does not compile for a TPU: 10000 errors, 40 warnings.")
    assert shown.count("error rule") == shown.count("warning rule") == 30
    assert "and 9970 more errors" in shown
    assert "and 10 more warnings" in shown
    assert "and 9970 more errors" in report._repr_html_()
    assert len(shown) + len(report._repr_html_()) < 400_000
