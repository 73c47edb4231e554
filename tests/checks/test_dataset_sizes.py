"""The largest elements of a dataset: its own sizes if known, else those of its first batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpunb.tensorflow.checks.dataset_sizes import batch_of, batch_sizes, with_batches
from tpunb.tensorflow.checks.empty_shares import empty_share


def rows() -> Any:
    return tf.data.Dataset.from_tensor_slices(np.zeros((64, 8), np.float32))


def pairs() -> Any:
    return tf.data.Dataset.zip((rows(), tf.data.Dataset.range(64)))


def sequences() -> Any:
    return tf.data.Dataset.range(1, 20).map(tf.range)


def doubled(x: Any, y: Any) -> Any:
    return tf.concat([x, x], 0), tf.one_hot(y, 3)


NAMED: dict[str, tuple[Callable[[], Any], Any]] = {
    "batch": (lambda: rows().batch(16), [16, 8]),
    "of a small dataset": (lambda: rows().batch(16384), [16384, 8]),
    "prefetch": (lambda: pairs().shuffle(10).batch(16).prefetch(2), ([16, 8], [16])),
    "cache and repeat": (lambda: rows().map(tf.abs).batch(16).cache().repeat().take(3), [16, 8]),
    "options": (lambda: rows().batch(3).with_options(tf.data.Options()), [3, 8]),
    "filter": (lambda: rows().batch(16).filter(lambda x: x[0, 0] > 1), [16, 8]),
    "map changes it": (lambda: pairs().batch(16).map(doubled), ([32, 8], [16, 3])),
    "rebatch": (lambda: rows().batch(16).rebatch(5), [5, 8]),
    "concatenate": (lambda: rows().batch(16).concatenate(rows().batch(32)), [32, 8]),
    "zip": (lambda: tf.data.Dataset.zip((rows().batch(16), rows().batch(8))), ([16, 8], [8, 8])),
    "a dict": (
        lambda: rows().map(lambda x: {"a": x, "b": x[:2]}).batch(6),
        {"a": [6, 8], "b": [6, 2]},
    ),
    "padded": (lambda: sequences().padded_batch(4, padded_shapes=[32]), [4, 32]),
    "drop_remainder": (lambda: rows().batch(16, drop_remainder=True), [16, 8]),
    "a variable": (lambda: rows().batch(tf.Variable(7, dtype=tf.int64)), [7, 8]),
}


def sizes(specs: Any) -> Any:
    return tf.nest.map_structure(lambda spec: spec.shape.as_list(), specs)


@pytest.mark.parametrize("name", NAMED)
def test_known_sizes_do_not_read_the_dataset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, expected = NAMED[name]
    dataset = make()
    monkeypatch.setattr(tf.data.Dataset, "__iter__", lambda _: pytest.fail("it was read"))
    batch = batch_of(dataset)
    assert sizes(batch.largest) == expected
    assert not batch.was_read
    assert batch.element_spec == dataset.element_spec


def lines(name: Any) -> Any:
    return tf.data.TextLineDataset(name).batch(4)


def windows(window: Any) -> Any:
    return window.batch(5)


READ: dict[str, tuple[Callable[[], Any], list[int]]] = {
    "longest of the first batch": (lambda: sequences().padded_batch(4), [4, 4]),
    "buckets": (
        lambda: sequences().bucket_by_sequence_length(lambda x: tf.shape(x)[0], [5, 10], [4, 3, 2]),
        [4, 4],
    ),
    "flat_map": (lambda: rows().window(5).flat_map(windows), [5, 8]),
    "shuffled": (lambda: rows().window(5).flat_map(windows).shuffle(10**6).repeat(), [5, 8]),
}


@pytest.mark.parametrize("name", READ)
def test_unknown_sizes_come_from_the_first_batch(name: str) -> None:
    make, expected = READ[name]
    batch = batch_of(make())
    assert batch.largest.shape.as_list() == expected
    assert batch.was_read


def test_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\nb\nc\nd\ne\n")
    files = tf.data.Dataset.list_files(str(tmp_path / "*.txt")).interleave(lines)
    assert batch_of(files).largest.shape.as_list() == [4]


def test_datasets_with_side_effects_are_not_read(tmp_path: Path) -> None:
    called = []

    def generated() -> Any:
        called.append("generator")
        yield np.zeros([4, 8], np.float32)

    def same(x: Any) -> Any:
        called.append("py_function")
        return x

    def in_python(x: Any) -> Any:
        return tf.ensure_shape(tf.py_function(same, [x], tf.float32), [None, 8])

    written = tmp_path / "cache"
    unbatched = sequences().padded_batch(4)
    for dataset in (
        tf.data.Dataset.from_generator(generated, output_signature=tf.TensorSpec([None, 8])),
        rows().batch(16).map(in_python),
        unbatched.cache(str(written)),
        unbatched.snapshot(str(written)),
    ):
        batch = batch_of(dataset)
        assert None in batch.largest.shape.as_list()
        assert not batch.was_read
    assert not called
    assert not list(tmp_path.iterdir())


def test_a_batched_generator_needs_no_read() -> None:
    generated = tf.data.Dataset.from_generator(
        lambda: pytest.fail("it was read"), output_signature=tf.TensorSpec([8])
    )
    assert batch_of(generated.batch(16384).prefetch(1)).largest.shape.as_list() == [16384, 8]


def test_reading_a_batch_does_not_change_random_numbers() -> None:
    def order() -> list[int]:
        tf.random.set_seed(3)
        numbers = tf.data.Dataset.range(50).shuffle(50).window(5).flat_map(windows)
        if looked:
            assert batch_of(numbers).was_read
        return [int(x) for _ in range(2) for batch in numbers for x in batch]

    looked = False
    before = order()
    looked = True
    assert order() == before


def test_another_batch_size_is_fixed_if_the_first_is() -> None:
    (open_batch,) = with_batches([pairs().batch(16)])
    other = open_batch.with_batch(5)
    assert sizes(other.element_spec) == ([None, 8], [None])
    assert sizes(other.largest) == ([5, 8], [5])
    (fixed,) = with_batches([pairs().batch(16, drop_remainder=True)])
    assert sizes(fixed.with_batch(5).element_spec) == ([5, 8], [5])


def test_full_batches_are_known() -> None:
    assert batch_of(rows().batch(16)).is_full
    assert not batch_of(rows().batch(24)).is_full


SIZES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "batch": (lambda of_34: of_34, (34, 6, 40)),
    "prefetch": (lambda of_34: of_34.prefetch(1), (34, 6, 40)),
    "map": (lambda of_34: of_34.map(lambda x: x * 2), (34, 6, 40)),
    "map to two": (lambda of_34: of_34.map(lambda x: (x, x)).cache(), (34, 6, 40)),
    "take": (lambda of_34: of_34.take(1), (34, None, None)),
    "filter": (lambda of_34: of_34.filter(lambda x: x[0] > 0), (34, None, None)),
    "map to fewer rows": (lambda of_34: of_34.map(lambda x: x[1:]), (None, None, None)),
    "map to unequal rows": (lambda of_34: of_34.map(lambda x: (x, x[:3])), (None, None, None)),
    "map to numbers": (lambda of_34: of_34.map(tf.reduce_sum), (None, None, None)),
    "unbatch": (lambda of_34: of_34.unbatch(), (None, None, None)),
    "map without batches": (
        lambda of_34: of_34.unbatch().map(lambda x: [x, x]),
        (None, None, None),
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_batches(name: str) -> None:
    change, expected = SIZES[name]
    assert batch_sizes(change(tf.data.Dataset.range(40).batch(34))) == expected


def test_a_check_and_a_fit_see_the_same_empty_share() -> None:
    rows = tf.data.Dataset.from_tensor_slices((np.zeros([40, 4]), np.zeros([40, 1]))).batch(34)
    for dataset in (rows, rows.map(lambda x, y: (x * 2.0, y)), rows.take(9)):
        assert empty_share(dataset, 8).startswith("Each batch has 34 examples for 8 replicas")
