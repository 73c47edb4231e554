"""Steps whose replicas all get the same tensor, against the same steps on one device.

``python -m benchmarks.shared first|later CORES`` prints JSON: the seconds of the first step of a
process, or of each later step, on the virtual TPU and on one device in turns.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

_LAYERS, _WIDTH, _EXAMPLES = 8, 512, 256
_STEPS = 15


def main() -> None:
    """Measure the steps that the command line names."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    measure, cores = sys.argv[1:]
    print(json.dumps({"first": first, "later": later}[measure](int(cores))))


def first(cores: int) -> float:
    """Return the seconds of a process's first step. A single core means one device."""
    return _seconds(_step(cores))


def later(cores: int) -> dict[str, list[float]]:
    """Return the seconds of each later step, for the virtual TPU and for one device."""
    steps = {"ours": _step(cores), "peer": _step(1)}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(_STEPS + 1):
        for name, step in steps.items():
            times[name].append(_seconds(step))
    return {name: each[1:] for name, each in times.items()}


def _step(cores: int) -> Callable[[], Any]:
    """Return a training step of an MLP by hand, which returns each replica's loss."""
    import tensorflow as tf

    from tpunb.virtual import VirtualTPUStrategy

    one = tf.distribute.OneDeviceStrategy
    strategy = one("CPU:0") if cores == 1 else VirtualTPUStrategy(cores)
    examples = tf.random.stateless_uniform((_EXAMPLES, _WIDTH), (1, 2))
    with strategy.scope():
        weights = [
            tf.Variable(tf.random.stateless_normal((_WIDTH, _WIDTH), (1, k), stddev=0.06))
            for k in range(_LAYERS)
        ]

    def replica_step(layer: Any) -> Any:
        with tf.GradientTape() as tape:
            for kernel in weights:
                layer = tf.nn.relu(layer @ kernel)
            loss = tf.reduce_mean(tf.square(layer - 1.0))
        gradients = tape.gradient(loss, weights)
        gradients = tf.distribute.get_replica_context().all_reduce("mean", gradients)
        for kernel, gradient in zip(weights, gradients, strict=True):
            kernel.assign_sub(0.01 * gradient)
        return loss

    step = tf.function(lambda examples: strategy.run(replica_step, args=(examples,)))
    return lambda: step(examples)


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
