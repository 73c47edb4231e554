"""Cells without a shell: a namespace and a runner, on strategies of each kind."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.cells.runner import CellRunner
from tpunb.training.run_result import RunResult
from tpunb.virtual import VirtualTPUStrategy

KINDS = ("one", "mirrored", "virtual")


@functools.cache
def strategy_of(kind: str) -> Any:
    """One strategy of each kind for all tests."""
    if kind == "one":
        return tf.distribute.OneDeviceStrategy("CPU:0")
    if kind == "virtual":
        # These cells are about Python, not about what a TPU refuses.
        return VirtualTPUStrategy(2, strict=False)
    operations = tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], cross_device_ops=operations)


class Notebook:
    """A namespace with a runner: what magics make of the two."""

    def __init__(self, kind: str) -> None:
        self.strategy = strategy_of(kind)
        self.runner = CellRunner(self.strategy)
        self.names: dict[str, Any] = {"tf": tf, "np": np, "__name__": "__main__"}

    def plain(self, text: str) -> None:
        """Executes an ordinary cell."""
        exec(text, self.names)

    def cell(self, text: str, **options: Any) -> RunResult:
        """Executes a `%%tpu_run` cell."""
        result = self.runner.run(text, self.names, **options)
        self.names.update(result.assigned)
        return result

    def each(self, value: Any) -> list[Any]:
        """The values of the replicas."""
        return [
            np.asarray(part).tolist() for part in self.strategy.experimental_local_results(value)
        ]
