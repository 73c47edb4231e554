"""Slices, differences, reductions and histograms of the values on the replicas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.tiers import thorough

from tpunb.display.describe import statistics, tensorflow_values
from tpunb.display.describe.replicas import Leaf, describe_replica_values, leaves_of
from tpunb.display.describe.statistics import Tally, array_summary, statistics_of
from tpunb.display.describe.views import BINS, ReplicaView, ViewRequest, replica_view
from tpunb.display.widgets import ReplicasWidget


def view(*parts: Any, **request: Any) -> ReplicaView:
    return replica_view(Leaf("", "PerReplica", parts, distributed=True), ViewRequest(**request))


def arrays(result: ReplicaView) -> list[Any]:
    return [preview.array() for preview, _ in result.values]


RANDOM = np.random.default_rng(0)
CUBE = RANDOM.normal(size=(3, 4, 5))
BIG = RANDOM.normal(size=(2, 700, 800)).astype(np.float32)


def test_slices() -> None:
    result = view(CUBE, CUBE + 1, index=(2,))
    assert np.array_equal(arrays(result)[1], CUBE[2] + 1)
    assert np.array_equal(arrays(view(CUBE, index=(2, 1)))[0], CUBE[2, 1])
    assert result.values[0][1].mean == pytest.approx(CUBE[2].mean())


def test_some_replicas() -> None:
    assert [array.item() for array in arrays(view(*range(9), places=(3, 6)))] == [3, 4, 5]


def test_differences() -> None:
    first = np.array([1.0, math.nan, math.inf, math.nan, 5.0])
    second = np.array([2.0, math.nan, math.inf, 1.0, -math.inf])
    result = view(first, second, mode="difference")
    assert arrays(result)[0].tolist() == [0, 0, 0, 0, 0]
    assert np.array_equal(arrays(result)[1], [1, 0, 0, math.nan, -math.inf], equal_nan=True)
    assert (result.values[1][1].nans, result.values[1][1].infs) == (1, 1)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.uint64, np.bool_])
def test_differences_of_integers_do_not_wrap(dtype: Any) -> None:
    result = view(np.array([1, 0], dtype), np.array([0, 1], dtype), mode="difference")
    assert arrays(result)[1].tolist() == [-1, 1]


def test_differences_of_large_integers_are_exact() -> None:
    result = view(
        np.array([2**63, 5], np.uint64), np.array([2**63 - 1, 4], np.uint64), mode="difference"
    )
    assert arrays(result)[1].tolist() == [-1, -1]


def test_reductions() -> None:
    parts = [CUBE, CUBE + 1, CUBE + 2]
    assert np.allclose(arrays(view(*parts, mode="mean"))[0], CUBE + 1)
    assert np.allclose(arrays(view(*parts, mode="sum", index=(1,)))[0], 3 * CUBE[1] + 3)


def test_a_difference_is_never_an_image() -> None:
    result = view(*RANDOM.random((2, 16, 16, 3)), mode="difference")
    assert result.values[0][0].kind == "grid"


def test_histograms() -> None:
    result = view(BIG[0], BIG[1], counts=True)
    assert result.limits == (BIG.min(), BIG.max())
    for counts, part in zip(result.counts, BIG, strict=True):
        expected = np.histogram(part.astype(np.float64), BINS, result.limits)[0]
        assert sum(counts) == part.size
        assert np.abs(np.array(counts) - expected).max() <= 3
    odd = view(np.array([math.nan, 1.0, math.inf]), counts=True)
    assert sum(odd.counts[0]) == 1
    assert sum(view(np.array([1e308, -1e308]), counts=True).counts[0]) == 2


def test_impossible_views_are_refused() -> None:
    with pytest.raises(ValueError, match="different shapes"):
        view(np.zeros(3), np.zeros(4), mode="mean")
    with pytest.raises(ValueError, match="Only numbers"):
        view(object())
    with pytest.raises(IndexError, match="no place 3"):
        view(CUBE, index=(3,))
    with pytest.raises(IndexError, match="more axes"):
        view(CUBE, index=(0, 0, 0))
    with pytest.raises(IndexError, match="replicas 0 to 0"):
        view(CUBE, places=(0, 2))
    with pytest.raises(IndexError, match="replicas 0 to 0"):
        view(CUBE, mode="difference", reference=1)


@pytest.mark.parametrize("on_host", [True, False], ids=["host", "device"])
@pytest.mark.parametrize("dtype", ["float32", *thorough(["bfloat16", "int32"])])
@pytest.mark.parametrize("mode", ["values", "difference", "mean", "sum"])
def test_views_of_tensors_equal_views_of_arrays(
    tf: Any, mode: Any, dtype: str, on_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [tf.cast(part * 100, dtype) for part in BIG]
    wide = [part.numpy().astype(np.float64) for part in parts]
    if not on_host:
        monkeypatch.setattr(tensorflow_values, "host_view", lambda tensor: None)
    actual = view(*parts, mode=mode, counts=True)
    expected = view(*wide, mode=mode, counts=True)
    for (preview, actual_statistics), (expected_preview, expected_statistics) in zip(
        actual.values, expected.values, strict=True
    ):
        assert np.allclose(preview.array(), expected_preview.array(), rtol=1e-6)
        assert actual_statistics.minimum == pytest.approx(expected_statistics.minimum)
        assert actual_statistics.maximum == pytest.approx(expected_statistics.maximum)
        assert actual_statistics.mean == pytest.approx(expected_statistics.mean, abs=1e-3)
    assert [sum(counts) for counts in actual.counts] == [sum(counts) for counts in expected.counts]


def test_symbolic_tensors_have_no_views(tf: Any) -> None:
    @tf.function
    def traced(x: Any) -> Any:
        with pytest.raises(ValueError, match="symbolic"):
            view(x)
        return x

    traced(tf.constant([1.0]))


def test_leaves_match_the_description() -> None:
    leaves, more = leaves_of({"a": [1.0, None], "b": ({"c": "x"},)})
    assert [leaf.path for leaf in leaves] == ["['a'][0]", "['a'][1]", "['b'][0]['c']"]
    assert more == 0


def test_widgets_flatten_a_structure_once() -> None:
    class Counting(dict[str, Any]):
        flattened = 0

        def items(self) -> Any:
            self.flattened += 1
            return super().items()

    value = Counting(a=np.ones(2), b=[1, None])
    widget = ReplicasWidget(value)
    assert value.flattened == 1
    assert [leaf.path for leaf in widget._leaves] == ["['a']", "['b'][0]", "['b'][1]"]
    assert widget.update(value)
    assert value.flattened == 2
    widget.close()


@pytest.mark.parametrize("size", [100, 2**21])
def test_booleans_are_numbers_of_any_size(size: int) -> None:
    array = np.zeros(size, bool)
    array[0] = True
    result = describe_replica_values(array).sections[0].values[0].statistics
    assert result is not None
    assert (repr(result.minimum), repr(result.maximum)) == ("0", "1")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "float32", "float64"])
def test_accurate_statistics_of_any_layout(dtype: str) -> None:
    """Statistics are exact even for views that are not contiguous, and for extreme values."""
    array = np.full((2**10, 2**11), np.inf if dtype[0] == "f" else np.iinfo(dtype).max, dtype)
    array[:, : 2**10] = np.finfo(dtype).max if dtype[0] == "f" else np.iinfo(dtype).max
    result = statistics_of(array[:, ::2])
    assert result.infs == (array.size // 4 if dtype[0] == "f" else 0)
    assert result.minimum == result.maximum == array[0, 0]
    assert result.mean == pytest.approx(float(array[0, 0]), rel=1e-12)


@pytest.mark.parametrize(
    "dtype",
    ["float16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "uint64", "bool"],
)
def test_summaries_agree_with_numpy(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "PIECE", 1000)
    numbers = (RANDOM.normal(size=9_999) * 50).astype(np.int64)
    array = (abs(numbers) if dtype.startswith("u") else numbers).astype(dtype)
    result, checksum = array_summary(array)
    assert (result.minimum, result.maximum) == (array.min(), array.max())
    assert result.mean == pytest.approx(array.mean(dtype=np.float64), rel=1e-5)
    spread = array.std(dtype=np.float64)
    assert result.deviation == pytest.approx(spread, rel=1e-4)
    for place in (0, 999, 1000, 9_998):
        changed = array.copy()
        changed[place] = not changed[place] if dtype == "bool" else changed[place] + 1
        assert array_summary(changed)[1] != checksum
    swapped = np.concatenate([array[:1][:0], array[1:2], array[:1], array[2:]])
    if array[0] != array[1]:
        assert array_summary(swapped)[1] != checksum


def test_equal_elements_have_equal_checksums() -> None:
    first = np.array([0.0, np.nan, 1.0] * 3, np.float32)
    second = np.array([-0.0, -np.nan, 1.0] * 3, np.float32)
    assert array_summary(first) == array_summary(second)
    assert array_summary(-np.abs(first) + 2) != array_summary(second)


def test_flipped_signs_do_not_cancel_out() -> None:
    array = np.ones(1000, np.float32)
    array[[3, 5]] = -1
    flipped = np.ones(1000, np.float32)
    assert array_summary(array)[1] != array_summary(flipped)[1]


def test_tallies_of_numbers_that_overflow() -> None:
    tally = Tally()
    tally.add(np.full(100, 3e38, np.float32))
    assert tally.statistics.mean == pytest.approx(3e38, rel=1e-6)
    tally.add(np.array([np.nan, np.inf, 3e38], np.float32))
    assert (tally.nans, tally.infs, tally.finite) == (1, 1, 101)
    tally.add(np.zeros(0, np.float32))
    assert tally.maximum == pytest.approx(3e38)
    huge = Tally()
    huge.add(np.array([1.7e308, 1.7e308]))
    assert huge.statistics.mean == pytest.approx(1.7e308)
