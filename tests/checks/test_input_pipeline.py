"""The graph of an input pipeline: its stages, their work, and copies with other settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpunb.tensorflow.checks.input_pipeline import (
    Pipeline,
    StageStatistics,
    Statistics,
    differences,
    transformation,
)


def heavy(x: Any) -> Any:
    """A thousand matrix products."""
    y = tf.fill([64, 64], tf.cast(x, tf.float32))
    for _ in tf.range(1000):
        y = tf.nn.relu(y @ y) * 1e-3
    return tf.reduce_sum(y)


def positive(x: Any) -> Any:
    return heavy(x) >= 0


def light(x: Any) -> Any:
    return x + 1


def python(x: Any) -> Any:
    return tf.numpy_function(lambda value: value, [x], tf.int64)


def thumbnail(x: Any) -> Any:
    image = tf.io.decode_jpeg(tf.io.encode_jpeg(tf.zeros([32, 32, 3], tf.uint8)))
    return tf.image.resize(image, [8, 8]) + tf.cast(x, tf.float32)


def numbers(count: int = 12) -> tf.data.Dataset:
    return tf.data.Dataset.range(count)


def values(dataset: tf.data.Dataset) -> list[Any]:
    return [np.asarray(value).tolist() for value in dataset.as_numpy_iterator()]


def generated() -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(
        lambda: iter(range(3)), output_signature=tf.TensorSpec([], tf.int64)
    )


@pytest.mark.parametrize(
    ("dataset", "slowest"),
    [
        (lambda: numbers().map(light).map(heavy).batch(2), "map(heavy)"),
        (lambda: numbers().map(heavy).map(light).batch(2), "map(heavy)"),
        (lambda: numbers().map(light).map(heavy, num_parallel_calls=2), "map(heavy)"),
        (lambda: numbers().filter(positive).map(light), "filter(positive)"),
    ],
)
def test_the_stage_with_the_most_work_is_the_slowest(dataset: Any, slowest: str) -> None:
    pipeline = dataset()
    statistics = Statistics(pipeline, Pipeline(pipeline).names())
    for _, _ in zip(range(6), statistics, strict=False):
        pass
    stages = statistics.stages()
    assert max(stages, key=lambda stage: stage.seconds).name.startswith(slowest)
    assert {stage.workers for stage in stages} <= {1, 2}


def test_statistics_add_up_over_passes() -> None:
    dataset = numbers(4).map(light)
    statistics = Statistics(dataset, Pipeline(dataset).names())
    read = sum(1 for _, _ in zip(range(10), statistics, strict=False))
    assert read == 10
    assert [stage.name for stage in statistics.stages()] == ["map(light)", "range"]
    assert all(stage.seconds >= 0 for stage in statistics.stages())
    assert statistics.stages()[0].elements >= 3  # at least the first element of each pass


def test_an_empty_dataset_ends() -> None:
    dataset = numbers(0)
    statistics = Statistics(dataset, {})
    assert list(statistics) == []
    assert statistics.stages() == []


def test_composite_tensors_have_no_statistics() -> None:
    ragged = tf.data.Dataset.from_tensors(tf.ragged.constant([[1], [2, 3]]))
    with pytest.raises(NotImplementedError):
        Statistics(ragged, {})


def test_serial_maps_become_parallel_with_the_same_results() -> None:
    dataset = numbers().map(light).map(heavy, num_parallel_calls=2).map(light).batch(5)
    changed = Pipeline(dataset).in_parallel()
    assert changed is not None
    assert changed.element_spec == dataset.element_spec
    assert values(changed) == values(dataset)
    assert list(Pipeline(dataset).serial_maps()) == ["light", "light"]
    assert list(Pipeline(changed).serial_maps()) == []
    assert Pipeline(changed).in_parallel() is None


def test_pipelines_with_python_can_be_copied() -> None:
    changed = Pipeline(generated().map(python)).in_parallel()
    assert changed is not None
    assert values(changed) == [0, 1, 2]


def test_unnamed_functions_have_no_name() -> None:
    files = tf.data.Dataset.from_tensors("nowhere").interleave(tf.data.TextLineDataset)
    grouped = numbers().group_by_window(lambda x: x % 2, lambda key, group: group.batch(2), 2)
    assert Pipeline(files).names() == {}
    assert not any(
        "Dataset" in name for names in Pipeline(grouped).names().values() for name in names
    )


def test_options_are_kept() -> None:
    options = tf.data.Options()
    options.deterministic = True
    changed = Pipeline(numbers().map(light).with_options(options)).in_parallel()
    assert changed is not None
    assert changed.options().deterministic is True


@pytest.mark.parametrize(
    ("dataset", "batched"),
    [
        (numbers, False),
        (lambda: numbers().batch(3), True),
        (lambda: numbers().batch(3).prefetch(1).map(light), True),
        (lambda: numbers().map(light).padded_batch(2), True),
        (lambda: tf.data.Dataset.from_tensors(np.zeros([4, 4])), False),
    ],
)
def test_batches_are_distinguished_from_examples(dataset: Any, batched: bool) -> None:
    assert Pipeline(dataset()).is_batched is batched


def test_properties_of_functions() -> None:
    pipeline = Pipeline(generated().map(python).map(thumbnail).batch(2).map(light).prefetch(2))
    assert pipeline.python == ["python"]
    assert pipeline.has_generator
    assert pipeline.decoding_for_resizing == ["thumbnail"]
    assert set(pipeline.maps_before_batches()) == {"python", "thumbnail"}
    assert pipeline.last == "PrefetchDataset"
    plain = Pipeline(numbers().map(light).with_options(tf.data.Options()))
    assert not plain.python
    assert not plain.has_generator
    assert not list(plain.maps_before_batches())
    assert plain.last == "MapDataset"


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("MapDataset", "map"),
        ("ParallelMapDatasetV2", "map"),
        ("ParallelMapV2", "map"),
        ("BatchDatasetV2", "batch"),
        ("PaddedBatchV2", "batch"),
        ("ParallelInterleaveDatasetV4", "interleave"),
        ("FlatMapDataset", "flat_map"),
        ("TFRecordDataset", "TFRecordDataset"),
        ("FiniteRepeat", "repeat"),
        ("MemoryCacheImpl", "cache"),
        ("Shuffle", "shuffle"),
    ],
)
def test_transformations_are_named_after_their_methods(operation: str, name: str) -> None:
    assert transformation(operation) == name


def test_work_between_two_measurements() -> None:
    def stage(seconds: float, elements: int, name: str = "map") -> StageStatistics:
        return StageStatistics(name, seconds, elements, 1)

    before, after = [stage(1.0, 3)], [stage(4.0, 5)]
    assert differences(before, after) == [stage(3.0, 2)]
    assert differences(after, after) == after
    assert differences([stage(1.0, 3, "batch")], after) == after
