"""One training step under one strategy, in a process of its own.

``python -m benchmarks.training STRATEGY CORES MODEL`` prints JSON: seconds of the
first step (tracing, compiling, running) and of a steady one (median).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

STRATEGIES = ("virtual", "lenient", "mirrored", "one")
MODELS = ("mlp", "guide", "lstm")
_PER_CORE_BATCH = 4
# MirroredStrategy on many logical devices can hang with one thread per processor.
_THREADS = 16
_STEADY_SECONDS = 4.0


def main() -> None:
    """Measures what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("strategy", choices=STRATEGIES)
    parser.add_argument("cores", type=int)
    parser.add_argument("model", choices=MODELS)
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print(json.dumps(measure(args.strategy, args.cores, args.model)))


def measure(strategy_name: str, cores: int, model_name: str) -> dict[str, float]:
    """Seconds of the first and of a steady step."""
    strategy = _strategy(strategy_name, cores)
    step = _training_step(strategy, model_name, cores * _PER_CORE_BATCH)
    began = time.perf_counter()
    step()
    first = time.perf_counter() - began
    step()
    return {"first": first, "steady": _steady(step)}


def _steady(step: Callable[[], None]) -> float:
    times: list[float] = []
    while len(times) < 5 or (sum(times) < _STEADY_SECONDS and len(times) < 200):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _strategy(name: str, cores: int) -> Any:
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(_THREADS)
    if name in {"virtual", "lenient"}:
        from tpunb.virtual import VirtualTPUStrategy

        return VirtualTPUStrategy(cores, strict=name == "virtual")
    if name == "one":
        return tf.distribute.OneDeviceStrategy("CPU:0")
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration() for _ in range(cores)]
    tf.config.set_logical_device_configuration(cpu, devices)
    return tf.distribute.MirroredStrategy([f"CPU:{core}" for core in range(cores)])


def _model(name: str) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    if name == "mlp":
        layers = [keras.layers.Flatten(), keras.layers.Dense(64, activation="relu")]
    elif name == "lstm":  # a loop, which XLA has to be asked about
        layers = [keras.layers.Reshape((8, 8)), keras.layers.LSTM(32)]
    else:  # that of TensorFlow's TPU guide, on digits of 8 by 8 pixels
        layers = [
            keras.layers.Conv2D(256, 3, activation="relu"),
            keras.layers.Conv2D(256, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(128, activation="relu"),
        ]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers, keras.layers.Dense(10)])


def _training_step(strategy: Any, model_name: str, global_batch: int) -> Callable[[], None]:
    import keras
    import tensorflow as tf

    with strategy.scope():
        model = _model(model_name)
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
    batch = global_batch // strategy.num_replicas_in_sync
    images = strategy.experimental_distribute_values_from_function(
        lambda _: tf.random.stateless_uniform((batch, 8, 8, 1), (1, 2))
    )
    labels = strategy.experimental_distribute_values_from_function(lambda _: tf.range(batch) % 10)

    def replica_step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            loss = tf.reduce_sum(losses) / global_batch
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, logits)

    @tf.function
    def step() -> None:
        strategy.run(replica_step, args=(images, labels))

    return step


if __name__ == "__main__":
    main()
