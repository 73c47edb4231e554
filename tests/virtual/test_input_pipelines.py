"""Batches on their way to the cores: one iterator for all cores, in order, to the end."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.strategies import local, stepper, strategy_of
from support.tiers import thorough
from tensorflow.core.framework import dataset_options_pb2

from tpunb.tensorflow.virtual.input.distributed_datasets import WholeBatchIterator
from tpunb.tensorflow.virtual.input.iterators import HostIterator

CORES, SIZE, BATCHES = 4, 8, 3
NUMBERS = np.arange(BATCHES * SIZE * 2, dtype=np.float32).reshape(BATCHES * SIZE, 2)
EXPECTED = NUMBERS.reshape(BATCHES, CORES, SIZE // CORES, 2).tolist()


@pytest.fixture(params=[False, True], ids=["any size", "one size"])
def drop(request: pytest.FixtureRequest) -> Any:
    """Whether to drop a short last batch, so that all batches have one size."""
    return request.param


def texts(strategy: Any, rows: int, drop: bool) -> Any:
    data = tf.data.Dataset.range(rows).map(lambda x: {"x": x, "text": tf.as_string(x)})
    return strategy.experimental_distribute_dataset(data.batch(8, drop_remainder=drop))


def rows_of(batches: Any) -> list[int]:
    return [row for batch in batches for part in batch for row in part.tolist()]


@pytest.mark.parametrize("soft", [True, *thorough([False])])
def test_batches_come_in_order_and_end(
    four: Any, soft: bool, drop: bool, place_softly: Any
) -> None:
    place_softly(soft)
    batches, end = texts(four, 22, drop), 16 if drop else 22
    eager = [local(four, batch) for batch in batches]
    assert [part["text"].astype(int).tolist() for batch in eager for part in batch] == [
        part["x"].tolist() for batch in eager for part in batch
    ]

    @tf.function
    def step(iterator: Any) -> Any:
        return four.run(lambda x: x + 0, args=(next(iterator)["x"],))

    iterator = iter(batches)
    traced = [local(four, step(iterator)) for _ in eager]
    with pytest.raises(tf.errors.OutOfRangeError):
        step(iterator)
    step(iter(texts(four, 8, drop)))
    assert step.experimental_get_tracing_count() == 1

    @tf.function
    def total(batches: Any) -> Any:
        result = tf.constant(0, tf.int64)
        for batch in batches:
            sums = four.run(lambda x: tf.reduce_sum(x), args=(batch["x"],))
            result += four.reduce("SUM", sums, axis=None)
        return result

    assert total(batches).numpy() == sum(range(end))
    assert rows_of(traced) == rows_of([[x["x"] for x in value] for value in eager]) == [*range(end)]
    assert [len(row) for row in traced[-1]] == ([2] * 4 if drop else [2, 2, 2, 0])


def test_batches_are_on_their_cores(four: Any, drop: bool) -> None:
    batch = next(iter(texts(four, 22, drop)))
    for core, x, text in zip(
        four.extended._tpu_devices[:, 0], batch["x"].values, batch["text"].values, strict=True
    ):
        assert x.device == core
        assert [int(word) for word in text.numpy()] == x.numpy().tolist()


def test_optional_batches(four: Any, drop: bool) -> None:
    iterator = iter(texts(four, 8, drop))
    first, second = iterator.get_next_as_optional(), iterator.get_next_as_optional()
    assert first.has_value().numpy()
    assert rows_of([local(four, first.get_value()["x"])]) == [*range(8)]
    assert not second.has_value().numpy()


# TensorFlow's own iterators.


def test_one_iterator_serves_all_cores(four: Any) -> None:
    fed = four.distribute_datasets_from_function(lambda _: tf.data.Dataset.range(8).batch(2))
    (worker,) = iter(fed)._iterators
    assert isinstance(worker.iterator, tf.data.Iterator)


def test_other_devices_keep_tensorflows_iterators(four: Any) -> None:
    # The last logical CPUs of the tests, which no virtual TPU uses.
    mirrored = tf.distribute.MirroredStrategy(["CPU:38", "CPU:39"])
    dataset = mirrored.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(4))
    iterator = iter(dataset)
    assert len(iterator._iterators[0]._iterator._device_iterators) == 2
    step = tf.function(lambda iterator: mirrored.experimental_local_results(next(iterator)))
    assert [part.numpy().tolist() for part in step(iterator)] == [[0, 1], [2, 3]]


def test_the_device_of_virtual_hosts_keeps_tensorflows_iterators(four: Any) -> None:
    """Functions traced for another strategy's iterator stay right."""
    other = tf.distribute.OneDeviceStrategy("CPU:0")
    batches = iter(other.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(2)))
    assert not isinstance(batches._iterators[0], HostIterator)
    assert tf.function(lambda it: next(it))(batches).numpy().tolist() == [0, 1]


# TensorFlow itself warns when it asks for options in a graph.
@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options")
@pytest.mark.parametrize("option", [None, True])
def test_tensorflow_1_iterators_do_not_tune_themselves(four: Any, option: bool | None) -> None:
    """Each tuner would delay the end of its session by up to a minute."""

    def batches(_: Any = None) -> tf.data.Dataset:
        options = tf.data.Options()
        if option is not None:
            options.autotune.enabled = option
        return tf.data.Dataset.range(8).batch(8).with_options(options)

    with tf.Graph().as_default() as graph, four.scope():
        of_dataset = four.extended._make_dataset_iterator(batches())
        of_function = four.extended._make_input_fn_iterator(batches)
        if option is None:
            with tf.compat.v1.Session() as session:
                for iterator in (of_dataset, of_function):
                    session.run(iterator.initializer)
                    first = four.experimental_local_results(iterator.get_next())[0]
                    assert session.run(first).tolist()[:2] == [0, 1]
    untuned = [node for node in graph.get_operations() if _is_untuned(node)]
    # Each core has an iterator over the elements of the host's iterator.
    assert len(untuned) == 2 * 4 + (2 if option is None else 0)


def _is_untuned(node: tf.Operation) -> bool:
    if node.type != "OptionsDataset":
        return False
    options = dataset_options_pb2.Options.FromString(node.get_attr("serialized_options"))
    tuning = options.autotune_options
    return tuning.WhichOneof("optional_enabled") == "enabled" and not tuning.enabled


# Elements of one shape.


def whole(data: Any = NUMBERS) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(data).batch(SIZE, drop_remainder=True)


def parts(strategy: Any, batch: Any) -> list[Any]:
    return [part.numpy().tolist() for part in strategy.experimental_local_results(batch)]


def test_a_structure_of_several_types(four: Any) -> None:
    structure = {"x": NUMBERS, "y": (np.arange(BATCHES * SIZE), NUMBERS > 7.0)}
    first = next(iter(four.experimental_distribute_dataset(whole(structure).prefetch(1))))
    assert parts(four, first["x"]) == EXPECTED[0]
    assert parts(four, first["y"][0]) == np.arange(SIZE).reshape(CORES, -1).tolist()
    assert parts(four, first["y"][1]) == (np.array(EXPECTED[0]) > 7.0).tolist()


def test_a_generator_lives_as_long_as_its_batches(four: Any) -> None:
    def iterator() -> Any:
        spec = tf.TensorSpec([2], tf.float32)
        data = tf.data.Dataset.from_generator(lambda: iter(NUMBERS), output_signature=spec)
        return iter(four.experimental_distribute_dataset(data.batch(SIZE, drop_remainder=True)))

    batches = iterator()
    gc.collect()
    assert [parts(four, batch) for batch in batches] == EXPECTED


def test_batches_of_different_sizes_are_cut(four: Any) -> None:
    """Batches of several sizes are cut as TensorFlow cuts them."""
    left = tf.data.Dataset.from_tensor_slices(NUMBERS).batch(SIZE)
    from_function = four.distribute_datasets_from_function(
        lambda _: whole().unbatch().batch(2, drop_remainder=True)
    )
    for distributed in (four.experimental_distribute_dataset(left), from_function):
        assert [parts(four, batch) for batch in distributed] == EXPECTED


def test_equal_types_end_differently(four: Any) -> None:
    """A function takes data known to be endless, and data that ends."""
    endless = iter(four.experimental_distribute_dataset(whole().repeat()))
    ending = iter(four.experimental_distribute_dataset(whole()))

    def steps(batches: Any) -> Any:
        result = tf.zeros([])
        for _ in tf.range(BATCHES + 1):
            optional = batches.get_next_as_optional()
            if not optional.has_value():
                break
            x = optional.get_value()
            result += four.reduce("SUM", four.run(tf.reduce_sum, (x,)), axis=None)
        return result

    total, first = NUMBERS.sum(), NUMBERS[:SIZE].sum()
    assert float(tf.function(steps)(endless)) == total + first
    assert float(tf.function(steps)(ending)) == total


def last_not_full(strategy: Any) -> Iterator[Any]:
    """Elements for one and a half steps."""
    data = tf.data.Dataset.range(12).batch(2, drop_remainder=True)
    iterator = iter(strategy.distribute_datasets_from_function(lambda _: data))
    assert not isinstance(iterator, WholeBatchIterator)
    return iterator


def test_an_incomplete_step_is_not_lost(four: Any) -> None:
    iterator: Any = last_not_full(four)
    values = []
    while (optional := iterator.get_next_as_optional()).has_value():
        values += rows_of([local(four, optional.get_value())])
    assert values == list(range(12))


@pytest.mark.parametrize("traced", [False, True])
def test_next_raises_before_an_incomplete_step(four: Any, traced: bool) -> None:
    take = tf.function(lambda iterator: next(iterator)) if traced else next
    iterator = last_not_full(four)
    assert rows_of([local(four, take(iterator))]) == [*range(8)]
    with pytest.raises((StopIteration, tf.errors.OutOfRangeError)):
        take(iterator)


def test_training_does_not_change_its_data(four: Any) -> None:
    rows = np.ones([8, 4], np.float32)

    step = stepper(four, lambda x: tf.nn.relu(x * 2.0 - 3.0) + x)
    iterator = iter(
        four.experimental_distribute_dataset(tf.data.Dataset.from_tensors(rows).repeat())
    )
    for _ in range(3):
        np.testing.assert_array_equal(step(next(iterator)), np.ones([4, 2, 4]))
    assert (rows == 1.0).all()


def test_batches_from_python_do_not_change_its_arrays(four: Any) -> None:
    """The replica that uses its part of a batch last must not reuse the memory."""
    memory = np.empty([64 * 4 + 64], np.uint8)
    start = -memory.ctypes.data % 64
    # TensorFlow uses aligned arrays without a copy.
    array = memory[start : start + 64 * 4].view(np.float32)
    array[:] = np.arange(64)

    def batches() -> Any:
        yield from array.reshape([2, 32])

    dataset = tf.data.Dataset.from_generator(
        batches, output_signature=tf.TensorSpec([32], tf.float32)
    )

    step = stepper(four, lambda x: x * 2.0 - 1.0)
    for _ in range(4):
        for batch in four.experimental_distribute_dataset(dataset):
            step(batch)
    np.testing.assert_array_equal(array, np.arange(64))


def words() -> Any:
    return tf.lookup.KeyValueTensorInitializer(
        tf.constant(["a", "b"]), tf.constant([1, 2], tf.int64)
    )


@pytest.mark.parametrize("inside", [False, True])
def test_tables_in_the_input_pipeline(four: Any, inside: bool) -> None:
    with four.scope() if inside else tf.device(None):
        table = tf.lookup.StaticHashTable(words(), -1)
        vocabulary = tf.lookup.StaticVocabularyTable(words(), 2)
    dataset = tf.data.Dataset.from_tensor_slices(["a", "b", "c", "a"])
    dataset = dataset.map(lambda word: (table.lookup(word), vocabulary.lookup(word)))
    (batch,) = four.experimental_distribute_dataset(dataset.batch(4))
    rows = [(int(row[0][0]), int(row[1][0])) for row in local(four, batch)]
    assert [pair[0] for pair in rows] == [1, 2, -1, 1]
    assert [pair[1] for pair in rows if pair[0] > 0] == [1, 2, 1]
    assert 0 <= rows[2][1] < 4


def test_many_cores_and_many_batches_in_a_function() -> None:
    """TensorFlow takes more than 32 calls of an iterator for a loop that AutoGraph missed."""
    strategy = strategy_of(32)
    batches = strategy.experimental_distribute_dataset(tf.data.Dataset.range(32 * 4).batch(32))

    @tf.function(autograph=False)
    def three(iterator: Any) -> list[Any]:
        return [strategy.experimental_local_results(next(iterator)) for _ in range(3)]

    results = np.sort(np.ravel([[part.numpy() for part in step] for step in three(iter(batches))]))
    np.testing.assert_array_equal(results, np.arange(32 * 3))


# The types of iterators, which are created once for each iterator.


def batches_of(strategy: Any, size: int, **options: Any) -> Any:
    return strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(size, **options))


def test_each_iterator_keeps_its_own_type(two: Any) -> None:
    first, second, smaller = (
        iter(batches_of(two, size, drop_remainder=True)) for size in (4, 4, 2)
    )
    assert first._type_spec is first._type_spec is not second._type_spec
    assert first._type_spec._component_specs is first._type_spec._component_specs
    # Equality ignores what a type keeps.
    assert first._type_spec == second._type_spec != smaller._type_spec
    assert hash(first._type_spec) == hash(second._type_spec)


def reading(strategy: Any, *, reduce_retracing: bool = True) -> tuple[Any, list[int]]:
    """A step that reads a batch, and a list that grows when the step is traced."""
    traces: list[int] = []

    @tf.function(reduce_retracing=reduce_retracing)
    def step(batches: Any) -> Any:
        traces.append(1)
        return strategy.run(lambda value: value + 0, args=(next(batches),))

    return step, traces


@pytest.mark.parametrize("general", [True, *thorough([False])])
def test_a_function_takes_batches_of_any_kind_in_any_order(two: Any, general: bool) -> None:
    step, _ = reading(two, reduce_retracing=general)
    for _ in range(2):
        for size, exact in ((4, True), (2, True), (4, False), (8, True), (2, False)):
            batches = iter(batches_of(two, size, drop_remainder=exact))
            results = [local(two, step(batches)) for _ in range(8 // size)]
            assert rows_of(results) == list(range(8))


@pytest.mark.parametrize(
    ("sizes", "exact", "general", "expected"),
    [
        ((4, 4), True, False, 1),
        ((2, 4, 2, 4), True, True, 2),
        ((2, 4, 2, 4), False, True, 1),
        ((8, 8, 6, 3), False, False, 1),
    ],
)
def test_each_known_size_is_traced_once_and_unknown_ones_together(
    two: Any, sizes: tuple[int, ...], exact: bool, general: bool, expected: int
) -> None:
    step, traces = reading(two, reduce_retracing=general)
    for size in sizes:
        step(iter(batches_of(two, size, drop_remainder=exact)))
    assert len(traces) == expected


def test_fit_takes_batches_of_any_kind_in_any_order(two: Any) -> None:
    with two.scope():
        model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    x = tf.random.stateless_uniform([16, 1], (1, 2))
    data = tf.data.Dataset.from_tensor_slices((x, 2 * x))
    losses = []
    for size, exact in ((4, True), (8, True), (4, False), (6, False), (8, True)):
        batches = data.batch(size, drop_remainder=exact)
        losses += model.fit(batches, shuffle=False, verbose=0).history["loss"]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("from_function", [False, True])
def test_datasets_are_read_in_functions(two: Any, from_function: bool) -> None:
    def batches(context: Any = None) -> tf.data.Dataset:
        return tf.data.Dataset.range(6).batch(2 if context is None else 1, drop_remainder=True)

    distributed = (
        two.distribute_datasets_from_function(batches)
        if from_function
        else two.experimental_distribute_dataset(batches())
    )

    @tf.function
    def total(dataset: Any) -> Any:
        result = tf.constant(0, tf.int64)
        for batch in dataset:
            result += two.reduce("sum", two.run(lambda x: x * 10, (batch,)), axis=0)
        return result

    assert total(distributed).numpy() == 150
