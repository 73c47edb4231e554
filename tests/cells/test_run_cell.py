"""`connection.run_cell` and `connection.check_cell`: running cells in tests and graders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tpunb
from tpunb.errors import CellError, TpunbError


def test_run_cell() -> None:
    with tpunb.connect(simulate=2) as connection:
        names: dict[str, Any] = {"x": np.ones(2, np.float32)}
        result = connection.run_cell(
            "y = x + 1\nz = y[:1]\ny", names, reduce={"y": "sum"}, gather={"z": 0}
        )
        assert names["y"].numpy().tolist() == [4, 4]
        assert names["z"].numpy().tolist() == [2, 2]
        assert len(result.value.values) == 2
        assert connection.cells.traces == 1
        for source in ("return 1", "x +"):
            with pytest.raises((TpunbError, SyntaxError)):
                connection.run_cell(source, names)
        with pytest.raises(TpunbError):
            connection.run_cell("y = 1", names, reduce={"y": "max"})


def test_a_function_as_a_cell() -> None:
    def step(batch: Any) -> dict[str, Any]:
        return {"total": tf.reduce_sum(batch)}

    with tpunb.connect(simulate=2) as connection:
        names: dict[str, Any] = {}
        data = np.ones([4, 2], np.float32)
        once = connection.run_cell(lambda: tf.constant(3.0), names)
        assert (once.steps, once.traced, names) == (1, True, {})
        assert [float(part) for part in once.value.values] == [3.0, 3.0]
        assert connection.timings is None  # there are timings only for many steps
        many = connection.run_cell(step, data=data, plot="total", reduce={"total": "sum"})
        assert float(many.assigned["total"]) == 8.0
        assert many.history.values("total").tolist() == [8.0]
        assert connection.timings is many.timings
        assert connection.check_cell(step, data=data).ok
        with pytest.raises(CellError, match="type int cannot be run"):
            connection.run_cell(5)  # type: ignore[arg-type]


def test_a_cell_for_many_steps() -> None:
    with tpunb.connect(simulate=2) as connection:
        names: dict[str, Any] = {"tf": tf, "total": tf.constant(0.0)}
        data = tf.data.Dataset.from_tensor_slices(np.ones([8, 2], np.float32)).batch(4)
        source = "total = total + tf.reduce_sum(x)"
        result = connection.run_cell(
            source, names, data=data, names=["x"], reduce={"total": "mean"}
        )
        assert result.steps == 2
        assert float(names["total"]) == 8.0
        assert connection.check_cell(source, names, data=data, names=["x"]).ok
