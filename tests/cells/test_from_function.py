"""Functions as steps: their text is not parsed, and their results may have any keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpunb.connection.connect import connect
from tpunb.errors import CellError


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    with connect(simulate="v5e-4") as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpunb.cells.recent_cells.parse_cell", None)
    monkeypatch.setattr("tpunb.tensorflow.cells.traced_cell.compile_function", None)


def data(count: int = 6) -> Any:
    return tf.data.Dataset.from_tensor_slices(np.arange(8 * count, dtype="float32")).batch(8)


def test_a_function_of_this_file_is_not_parsed(connection: Any) -> None:
    total = tf.Variable(0.0, aggregation=tf.VariableAggregation.NONE)

    def step(batch: Any) -> dict[str, Any]:
        size = tf.constant(0.0)
        for number in tf.range(tf.size(batch)):  # converted by AutoGraph
            size += tf.cast(number, tf.float32)
        return {"size": size, "mean": tf.reduce_mean(batch)}

    result = connection.run(step, data(), steps_per_loop=2, plot=("size", "mean"))
    assert result.steps == 6
    assert result.history.values("size").tolist() == [1.0] * 6
    np.testing.assert_allclose(result.history.values("mean"), 3.5 + 8 * np.arange(6))
    assert float(total.numpy()) == 0.0


@pytest.mark.parametrize("key", ["batch", "function", "result", "a loss", "ctx", "replica_id"])
def test_any_key(connection: Any, key: str) -> None:
    def step(batch: Any) -> dict[str, Any]:
        return {key: tf.reduce_sum(batch), "other": batch}

    result = connection.run(step, data(), plot=key, reduce={key: "sum"}, gather={"other": 0})
    np.testing.assert_allclose(result.history.values(key), 28.0 + 64 * np.arange(6))


def test_a_single_number(connection: Any) -> None:
    result = connection.run(lambda x: tf.reduce_mean(x), data(), plot="loss")
    np.testing.assert_allclose(result.history.values("loss"), 3.5 + 8 * np.arange(6))


def test_parts_of_a_batch(connection: Any) -> None:
    pairs = tf.data.Dataset.zip((data(), data()))
    result = connection.run(lambda x, y: {"sum": tf.reduce_sum(x + y)}, pairs, plot="sum")
    assert result.steps == 6


@pytest.mark.parametrize(
    ("returned", "message"),
    [({"loss": 1.0}, r"returns no `los`.*\n?.*`loss`"), (None, "`los` holds a NoneType")],
)
def test_a_missing_key(connection: Any, returned: Any, message: str) -> None:
    with pytest.raises(CellError, match=message):
        connection.run(lambda: returned, steps=2, plot="los")


def test_another_function_is_traced_separately(connection: Any) -> None:
    before = connection.cells.traces
    first, second = (lambda: tf.constant(1.0)), (lambda: tf.constant(2.0))
    values = [
        connection.run(f, steps=1, plot="n").history.values("n")[0] for f in (first, second, first)
    ]
    assert values == [1.0, 2.0, 1.0]
    assert connection.cells.traces == before + 2


KEPT: list[Any] = []


def test_a_list_that_would_keep_tensors(connection: Any) -> None:
    def step(batch: Any) -> None:
        KEPT.append(batch)

    with pytest.raises(CellError, match="into `KEPT`, which"):
        connection.run(step, data())
    assert KEPT == []


def test_an_error_at_a_step(connection: Any) -> None:
    def step(batch: Any) -> None:
        tf.debugging.assert_less(batch, 10.0)

    with pytest.raises(tf.errors.InvalidArgumentError, match="Condition x < y") as caught:
        connection.run(step, data(), steps_per_loop=1)
    assert caught.value.tpunb_step == 2  # type: ignore[attr-defined]
    assert caught.value.tpunb_lines == []  # type: ignore[attr-defined]
