"""Descriptions of the values on each replica."""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import hypothesis.extra.numpy as nps
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiers import thorough

from tpunb.display.describe import statistics, tensorflow_values
from tpunb.display.describe.replicas import (
    MAX_SECTIONS,
    Leaf,
    Section,
    describe_chosen_replicas,
    describe_leaves,
    describe_replica_values,
)
from tpunb.display.describe.values import ReplicaValue
from tpunb.display.draw.replicas.text import nested_values
from tpunb.display.draw.static_forms import mimebundle


@pytest.fixture(scope="session")
def strategy(tf: Any) -> Any:
    devices = tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices[:4]])


def per_replica(strategy: Any, make: Any) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: make(context.replica_id_in_sync_group)
    )


def only(value: Any) -> Section:
    description = describe_replica_values(value)
    assert len(description.sections) == 1
    return description.sections[0]


def test_chosen_replicas_are_drawn_even_with_high_numbers(tf: Any) -> None:
    from tensorflow.python.distribute.values import PerReplica

    parts = [tf.fill([20, 20], replica) for replica in range(100)]
    value = {"a": PerReplica(parts), "b": 3}
    targets = [slice(99, 100), slice(70, 72)]
    section, ordinary = describe_chosen_replicas(value, targets).sections
    assert section.chosen == (99, 70, 71)
    assert [each.statistics.mean for each in section.values if each.statistics] == [99, 70, 71]
    assert all(each.preview is not None for each in section.values)
    assert section.differs == (False, True, True)
    assert ordinary.chosen == ()
    with pytest.raises(IndexError, match="There is no replica 100: choose 0 to 99"):
        describe_chosen_replicas(value, [slice(100, 101)])


def leaf(value: Any) -> ReplicaValue:
    return only(value).values[0]


def test_per_replica_values(tf: Any, strategy: Any) -> None:
    value = per_replica(strategy, lambda i: tf.constant([1.0, 2.0 + i, math.nan, math.inf]))
    description = describe_replica_values(value)
    section = description.sections[0]
    assert description.num_replicas == strategy.num_replicas_in_sync
    assert section.type_name == "PerReplica"
    assert section.differs[:2] == (False, True)
    assert not section.all_equal
    statistics = section.values[1].statistics
    assert statistics is not None
    assert (statistics.minimum, statistics.mean, statistics.maximum) == (1, 2, 3)
    assert (statistics.nans, statistics.infs) == (1, 1)


def test_values_of_the_same_shape_are_drawn_alike() -> None:
    """All are pictures, or all are matrices: of one number alone, only 0 to 1 is a picture."""

    def kinds(*tops: float, dtype: str = "float32") -> list[str]:
        pictures = [np.full([4, 16, 16, 3], top, dtype) for top in tops]
        leaf = Leaf("", "PerReplica", tuple(pictures), distributed=True)
        values = describe_leaves("PerReplica", [leaf], 0).sections[0].values
        return [value.preview.kind for value in values if value.preview]

    assert kinds(1.0, 0.5) == ["images"] * 2
    assert kinds(1.0, 1.5) == ["grid"] * 2
    assert kinds(*[1.0] * 70, 1.5) == ["grid"] * 64  # the last value is not drawn
    assert kinds(1, 200, dtype="uint8") == ["images"] * 2


@pytest.mark.parametrize(
    ("low", "high", "black", "white"),
    [
        (0.0, 1.0, 0.0, 1.0),
        (-1.0, 1.0, -1.0, 1.0),
        (0.0, 255.0, 0.0, 256.0),
        (-2.1, 2.6, -4.0, 4.0),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_of_images_of_any_range(
    low: float, high: float, black: float, white: float, channels: int
) -> None:
    """The replicas' images have one scale, also if one replica's numbers need a smaller one."""
    images = np.linspace(low, high, 2 * 16 * 8 * channels, dtype=np.float32)
    images = images.reshape(2, 16, 8, channels)
    leaf = Leaf("", "PerReplica", (images, images / 4), distributed=True)
    first, second = describe_leaves("PerReplica", [leaf], 0).sections[0].values
    for value, numbers in ((first, images), (second, images / 4)):
        assert value.preview is not None
        assert value.preview.kind == "images"
        pixels = value.preview.array() / 255.0 * (white - black) + black
        np.testing.assert_allclose(pixels, numbers, atol=(white - black) / 500)


@pytest.mark.parametrize(
    "array",
    [
        np.linspace(-1, 1, 16 * 16 * 3).reshape(16, 16, 3),  # perhaps no image
        np.linspace(-1, 1, 2 * 16 * 16 * 4).reshape(2, 16, 16, 4),
        np.linspace(-1, 1, 5 * 3 * 3 * 3).reshape(5, 3, 3, 3),  # a kernel
        np.arange(2 * 16 * 16 * 3).reshape(2, 16, 16, 3),
    ],
)
def test_other_arrays_are_no_images(array: Any) -> None:
    preview = leaf(array).preview
    assert preview is not None
    assert preview.kind == "grid"


def test_equal_replicas_with_nan(tf: Any, strategy: Any) -> None:
    section = only(per_replica(strategy, lambda _: tf.constant([math.nan, 1.0])))
    assert section.all_equal


def test_minus_zero_equals_zero(tf: Any, strategy: Any) -> None:
    assert only(per_replica(strategy, lambda i: tf.constant([0.0 if i else -0.0]))).all_equal


def test_variables(tf: Any, strategy: Any) -> None:
    with strategy.scope():
        mirrored = tf.Variable([1.0, 2.0])
        summed = tf.Variable(
            0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    assert only(mirrored).all_equal
    assert only(mirrored).type_name == "MirroredVariable"
    assert only(summed).type_name == "SyncOnReadVariable"
    assert len(only(summed).values) == strategy.num_replicas_in_sync


def test_structures(tf: Any, strategy: Any) -> None:
    pair = namedtuple("pair", "loss logits")
    part = per_replica(strategy, lambda i: tf.constant(i))
    description = describe_replica_values({"a": [part, None], "b": pair(part, 3)})
    assert [section.path for section in description.sections] == [
        "['a'][0]",
        "['a'][1]",
        "['b'].loss",
        "['b'].logits",
    ]
    assert [section.distributed for section in description.sections] == [True, False, True, False]


def test_a_structure_inside_each_replica(tf: Any, strategy: Any) -> None:
    value = per_replica(strategy, lambda i: {"x": tf.constant(i), "y": None})
    assert [section.path for section in describe_replica_values(value).sections] == [
        "['x']",
        "['y']",
    ]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8", "uint8", "bool"])
def test_dtypes(tf: Any, dtype: str) -> None:
    value = leaf(tf.cast([0, 1], dtype))
    assert value.dtype == dtype
    assert value.preview is not None
    assert value.preview.array().tolist() == [0, 1]


def test_composites(tf: Any) -> None:
    ragged = leaf(tf.ragged.constant([[1, 2], [], [3]]))
    assert (ragged.kind, ragged.shape) == ("ragged", (3, None))
    assert (ragged.texts, ragged.rows) == (("3 values in 3 rows",), ((2, 0, 1),))
    assert nested_values(ragged) == "[[1, 2], [], [3]]"
    sparse = leaf(tf.sparse.from_dense([[0, 1], [2, 0]]))
    assert (sparse.kind, sparse.shape, sparse.texts) == ("sparse", (2, 2), ("2 values set",))
    slices = leaf(tf.IndexedSlices(tf.ones([2, 3]), tf.constant([0, 4]), tf.constant([9, 3])))
    assert (slices.kind, slices.shape, slices.texts) == ("slices", (9, 3), ("2 slices",))
    assert nested_values(leaf(tf.ragged.constant([["a"], []]))) == "[['a'], []]"
    assert nested_values(leaf(tf.ragged.constant([[[1], [2, 3]], []]))) == "[[[1], [2, 3]], []]"
    many = leaf(tf.ragged.range(np.full(100, 3)))
    assert (many.texts, many.rows) == (("300 values in 100 rows",), ())


def test_ragged_rows_count_for_equality(tf: Any, strategy: Any) -> None:
    rows = ([[1], [2, 3]], [[1, 2], [3]])
    section = only(per_replica(strategy, lambda i: tf.ragged.constant(rows[min(i, 1)])))
    assert section.differs[1]


@pytest.mark.parametrize("on_host", [True, False], ids=["host", "device"])
def test_large_tensors_agree_with_numpy(
    tf: Any, on_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = np.random.default_rng(0).normal(size=(700, 800)).astype(np.float32)
    numbers[3, 4], numbers[5, 6], numbers[7, 8] = np.nan, np.inf, -np.inf
    expected = leaf(numbers[:, ::-1][:, ::-1].T.copy().T)
    monkeypatch.setattr(tensorflow_values, "_CHUNK", 100_000)
    monkeypatch.setattr(statistics, "PIECE", 100_000)
    if not on_host:
        monkeypatch.setattr(tensorflow_values, "host_view", lambda tensor: None)
    described = leaf(tf.constant(numbers))
    assert described.statistics is not None
    assert expected.statistics is not None
    assert described.statistics.minimum == pytest.approx(expected.statistics.minimum)
    assert described.statistics.mean == pytest.approx(expected.statistics.mean, abs=1e-5)
    assert described.statistics.deviation == pytest.approx(expected.statistics.deviation, rel=1e-4)
    assert described.statistics.nans == 1
    assert described.statistics.infs == 2
    assert described.preview is not None
    assert expected.preview is not None
    assert described.preview == expected.preview
    assert max(described.preview.shape) <= 96


LARGE_DTYPES = ["float32", "bfloat16", "float16", "float64", "int32", "int64", "int8", "uint8"]


@pytest.mark.parametrize("on_host", [True, False], ids=["host", "device"])
@pytest.mark.parametrize("dtype", [*LARGE_DTYPES[:2], *thorough(LARGE_DTYPES[2:])])
def test_large_tensors_are_compared_without_copying(
    tf: Any, strategy: Any, dtype: str, on_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not on_host:
        monkeypatch.setattr(tensorflow_values, "host_view", lambda tensor: None)
    size = tensorflow_values.LARGE_BYTES // tf.as_dtype(dtype).size + 3
    numbers = np.arange(size).reshape(1, -1) % 100

    def make(replica: int, *, differing: bool) -> Any:
        changed = numbers.copy()
        changed[0, 77] += differing and replica == 1
        return tf.cast(changed, dtype)

    equal = per_replica(strategy, lambda i: make(i, differing=False))
    differs = per_replica(strategy, lambda i: make(i, differing=True))
    pulled: list[int] = []
    cls = type(equal.values[0])
    original = cls.numpy
    monkeypatch.setattr(
        cls, "numpy", lambda self: pulled.append(int(tf.size(self))) or original(self)
    )
    assert only(equal).all_equal
    assert only(differs).differs[:2] == (False, True)
    assert max(pulled, default=0) <= 512


def test_long_string_tensors(tf: Any) -> None:
    value = leaf(tf.fill([100, 3000], "x"))
    assert len(value.texts) == 64
    assert value.omitted == 300_000 - 64


def test_symbolic_tensors(tf: Any) -> None:
    descriptions = []

    # AutoGraph would take a second for the code that describes values.
    @tf.function(autograph=False)
    def traced(x: Any) -> Any:
        descriptions.append(leaf(x))
        return x

    traced(tf.constant([1.0, 2.0]))
    assert descriptions[0].shape == (2,)
    assert "symbolic" in descriptions[0].texts[0]


def test_images_curves_and_grids() -> None:
    def kind(array: Any) -> str:
        preview = leaf(array).preview
        assert preview is not None
        return preview.kind

    assert kind(np.zeros((16, 16, 3), np.uint8)) == "images"
    assert kind(np.zeros((20, 16, 16, 1), np.float32)) == "images"
    assert kind(np.full((16, 16, 3), 2.0)) == "grid"
    assert kind(np.zeros((300, 1))) == "curve"
    assert kind(np.zeros((8, 9))) == "grid"
    assert kind(np.zeros((8, 8))) == "values"
    assert kind(np.zeros((0, 8))) == "values"


class Rude:
    """An object whose repr raises an error."""

    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (object(), "<object object>"),
        (Rude(), "<Rude>"),
        (10**5000, "<int>"),
        ("a\x1b[31m", r"'a\x1b[31m'"),
        (b"\xff", r"'\\xff'"),
        ({}, "{}"),
        ([], "[]"),
        (np.array([None, 1], dtype=object), "array([None, 1], dtype=object)"),
        (np.datetime64("2020-01-01"), "np.datetime64('2020-01-01')"),
        (1 + 2j, "1+2j"),
        ("x" * 1000, "'" + "x" * 198 + "…"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_objects_are_shown_by_their_repr(value: Any, text: str) -> None:
    shown = leaf(value).texts[0].replace("numpy.", "np.")
    assert shown == text


def test_endless_structures() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert len(describe_replica_values(endless).sections) == 1
    wide = describe_replica_values([None] * 1000)
    assert len(wide.sections) == MAX_SECTIONS
    assert wide.omitted > 0


ARRAYS = nps.arrays(
    dtype=st.one_of(
        nps.boolean_dtypes(),
        nps.integer_dtypes(),
        nps.unsigned_integer_dtypes(),
        nps.floating_dtypes(),
        nps.complex_number_dtypes(),
        nps.unicode_string_dtypes(max_len=4),
        nps.byte_string_dtypes(max_len=4),
        nps.datetime64_dtypes(),
    ),
    shape=nps.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=9),
)


@settings(max_examples=150, deadline=None)
@given(ARRAYS)
def test_any_array_can_be_described_and_shown(array: Any) -> None:
    description = describe_replica_values(array)
    value = description.sections[0].values[0]
    if array.dtype.kind != "M":
        assert value.shape == array.shape
    assert mimebundle(description) == mimebundle(describe_replica_values(array.copy()))


def test_keras_variables(tf: Any, strategy: Any) -> None:
    keras = pytest.importorskip("keras")
    with strategy.scope():
        dense = keras.layers.Dense(3)
        dense.build((None, 2))
    kernel = only(dense.kernel)
    assert kernel.distributed
    assert kernel.all_equal
    assert kernel.values[0].shape == (2, 3)
