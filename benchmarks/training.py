"""Training steps of one model under one strategy, in a process that makes them on request."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.models import inputs, model

__all__ = ["FIRST", "LATER", "STRATEGIES", "serve"]

STRATEGIES = ("virtual", "lenient", "mirrored", "one")
FIRST, LATER = "first", "later"

_PER_CORE_BATCH = 16
# MirroredStrategy on many logical devices can hang with one thread per processor.
_THREADS = 16
_SECONDS = 0.5
_LEAST, _MOST = 2, 100


def serve(asked: Connection, strategy: str, cores: int, name: str) -> None:
    """Make a model, report it, then make and measure the requested steps.

    A measurement has `seconds`, `cpu` (seconds of a processor) and `memory` (bytes at the peak,
    without the memory that importing TensorFlow takes).

    Args:
        asked: The pipe that gives `FIRST` or `LATER`, and takes the measurement.
        strategy: One of `STRATEGIES`.
        cores: The number of replicas. One device takes the batches of all of them.
        name: The model's name.
    """
    from benchmarks import preloaded  # noqa: F401

    imported = _peak_memory()
    step = training_step(_strategy(strategy, cores), name, cores)
    asked.send({})
    while True:
        measured = _first(step) if asked.recv() == FIRST else _later(step)
        asked.send({**measured, "memory": _peak_memory() - imported})


def _first(step: Callable[[], None]) -> dict[str, float]:
    """Return the seconds of the first step, and the processor's seconds."""
    began, worked = time.perf_counter(), time.process_time()
    step()
    found = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - worked}
    step()  # the second step still does some work once, which counts nowhere
    return found


def _later(step: Callable[[], None]) -> dict[str, float]:
    """Return the average seconds of a step, and the processor's seconds."""
    count, began, worked = 0, time.perf_counter(), time.process_time()
    while count < _LEAST or (time.perf_counter() - began < _SECONDS and count < _MOST):
        step()
        count += 1
    seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    return {"seconds": seconds / count, "cpu": cpu / count}


def _peak_memory() -> int:
    """Return the peak bytes of this process and its child processes."""
    children = Path("/proc/self/task").glob("*/children")
    started = [number for path in children for number in path.read_text().split()]
    return sum(map(_peak_of, ["self", *started]))


def _peak_of(process: str) -> int:
    """Return the peak bytes of a process. `ru_maxrss` would include the parent's memory."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:  # the process has ended
        return 0
    line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), "VmHWM: 0")
    return int(line.split()[1]) * 1024


def _strategy(name: str, cores: int) -> Any:
    import tensorflow as tf

    if name in {"virtual", "lenient"}:
        from tpunb.virtual import VirtualTPUStrategy

        return VirtualTPUStrategy(cores, strict=name == "virtual")
    if name == "one":
        return tf.distribute.OneDeviceStrategy("CPU:0")
    tf.config.threading.set_inter_op_parallelism_threads(_THREADS)
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration() for _ in range(cores)]
    tf.config.set_logical_device_configuration(cpu, devices)
    return tf.distribute.MirroredStrategy([f"CPU:{core}" for core in range(cores)])


def training_step(strategy: Any, name: str, cores: int) -> Callable[[], None]:
    """Return a custom loop's step, on a batch that already exists."""
    import keras
    import tensorflow as tf

    with strategy.scope():
        made = model(name)
        optimizer = keras.optimizers.Adam()
        optimizer.build(made.trainable_variables)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
    global_batch = cores * _PER_CORE_BATCH
    batch = global_batch // strategy.num_replicas_in_sync
    examples = strategy.experimental_distribute_values_from_function(lambda _: inputs(name, batch))
    labels = strategy.experimental_distribute_values_from_function(lambda _: tf.range(batch) % 10)

    def replica_step(examples: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            logits = made(examples, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            loss = tf.reduce_sum(losses) / global_batch
        gradients = tape.gradient(loss, made.trainable_variables)
        optimizer.apply_gradients(zip(gradients, made.trainable_variables, strict=True))
        accuracy.update_state(labels, logits)

    def step() -> None:
        strategy.run(replica_step, args=(examples, labels))

    traced: Callable[[], None] = tf.function(step)
    return traced
