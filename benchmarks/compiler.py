"""Estimates of the TPU's own compiler, against rooflines and against measured steps.

``python -m benchmarks.compiler roofline`` and ``python -m benchmarks.compiler resnet v3-8`` print
JSON: the low, middle and high seconds of the estimate, and the seconds to compare them with.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from typing import Any

MEASURED = {"v2-8": 0.229, "v3-8": 0.137}
"""Seconds of a step of ResNet-50 in bfloat16 with 1024 images, from the time stamps of MLPerf."""

SCATTERS = {13_000_000: 0.29, 1_300_000: 0.026}
"""The seconds that JAX takes to scatter so many numbers on a v2 core (pytorch/xla#8720)."""

_TPU = "v5e-8"


def main() -> None:
    """Make the estimates that the command line names."""
    os.environ["TPUNB_VERDICTS"] = "off"
    found = _resnet(sys.argv[2]) if sys.argv[1] == "resnet" else _rooflines()
    print(json.dumps(found))


def _rooflines() -> dict[str, list[float]]:
    """Return the range for single operations, and the least time that the hardware allows."""
    from tpunb import connect
    from tpunb.compiler.ask.topologies import target
    from tpunb.compiler.read.costs import link_seconds

    connection = connect(simulate=_TPU)
    import tensorflow as tf

    core = target(_TPU, None).hardware
    half, big = tf.bfloat16, 2 * 8192 * 8192

    def reduce(x: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce("sum", x)

    def convolve(x: Any, w: Any) -> Any:
        return tf.nn.conv2d(x, w, 1, "SAME")

    cases: dict[str, tuple[Callable[..., Any], list[Any], float]] = {
        "matmul": (
            tf.matmul,
            [tf.TensorSpec([4096, 4096], half)] * 2,
            2 * 4096**3 / core.flops,
        ),
        "convolution": (
            convolve,
            [tf.TensorSpec([128, 28, 28, 256], half), tf.TensorSpec([3, 3, 256, 256], half)],
            2 * 128 * 28 * 28 * 9 * 256 * 256 / core.flops,
        ),
        "elementwise": (
            lambda x: tf.nn.relu(x) + x,
            [tf.TensorSpec([8192, 8192], half)],
            2 * big / core.hbm,
        ),
        "gather": (
            tf.gather,
            [tf.TensorSpec([2**20, 128]), tf.TensorSpec([2**18], tf.int32)],
            2 * 2**18 * 128 * 4 / core.hbm,
        ),
        "all-reduce": (
            reduce,
            [tf.TensorSpec([8192, 8192], half)],
            link_seconds("all-reduce", big, None, target(_TPU, None))[0],
        ),
    }
    found = {
        name: [*_range(fn, specs, _TPU, connection.strategy), best]
        for name, (fn, specs, best) in cases.items()
    }
    return {**found, **_scatters(connection.strategy)}


def _scatters(strategy: Any) -> dict[str, list[float]]:
    """Return the range for scattering into a table four times as large, and the measured time."""
    import tensorflow as tf

    def scatter(table: Any, places: Any, numbers: Any) -> Any:
        return tf.tensor_scatter_nd_min(table, places[:, None], numbers)

    found = {}
    for size, real in SCATTERS.items():
        table = tf.TensorSpec([size // 13 * 56])
        specs = [table, tf.TensorSpec([size], tf.int32), tf.TensorSpec([size])]
        ours = _range(scatter, specs, "v2-8", strategy)
        found[f"scatter of {size:,} numbers, v2"] = [*ours, real]
    return found


def _resnet(tpu: str) -> list[float]:
    """Return the range for ResNet-50's training step, and the measured time."""
    from tpunb import connect

    connection = connect(simulate=tpu)
    import keras
    import tensorflow as tf

    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    with connection.strategy.scope():
        model = keras.applications.ResNet50(weights=None)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        model.compile(optimizer, "sparse_categorical_crossentropy")
    specs = [tf.TensorSpec([1024, 224, 224, 3]), tf.TensorSpec([1024], tf.int64)]
    return [*_range(model, specs, tpu, connection.strategy), MEASURED[tpu]]


def _range(fn: Any, specs: list[Any], tpu: str, strategy: Any) -> list[float]:
    import tpunb

    program = tpunb.compile(fn, *specs, tpu=tpu, strategy=strategy, speed=True, timeout=3000)
    program.raise_if_refused()
    time = program.time
    return [math.nan] * 3 if time is None else [time.low, time.estimate, time.high - time.start]


if __name__ == "__main__":
    main()
