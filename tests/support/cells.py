"""Cells without a shell: a namespace and a runner, for each kind of strategy."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.tensorflow.cells.runner import CellRunner
from tpunb.training.run_result import RunResult
from tpunb.virtual import VirtualTPUStrategy

KINDS = ("one", "mirrored", "virtual")


@functools.cache
def strategy_of(kind: str) -> Any:
    """Return the strategy of a kind, which all tests share."""
    if kind == "one":
        return tf.distribute.OneDeviceStrategy("CPU:0")
    if kind == "virtual":
        # These tests are about Python, not about a TPU's refusals.
        return VirtualTPUStrategy(2, strict=False)
    operations = tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=operations)


class Notebook:
    """A namespace with a runner, as the magics use them."""

    def __init__(self, kind: str) -> None:
        self.strategy = strategy_of(kind)
        self.runner = CellRunner(self.strategy)
        self.names: dict[str, Any] = {"tf": tf, "np": np, "__name__": "__main__"}

    def plain(self, text: str) -> None:
        """Execute an ordinary cell."""
        exec(text, self.names)

    def cell(self, text: str, **options: Any) -> RunResult:
        """Execute a `%%tpu_run` cell."""
        result = self.runner.run(text, self.names, **options)
        self.names.update(result.assigned)
        return result

    def each(self, value: Any) -> list[Any]:
        """Return the value of each replica."""
        return [
            np.asarray(part).tolist() for part in self.strategy.experimental_local_results(value)
        ]
