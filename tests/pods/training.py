"""Run the same programs on one process or on the workers of a Pod, and print their results.

Usage: training.py HOST:PORT [HOST:PORT ...]: the workers, with 4 cores in all. A test imports
this module to run the programs without workers.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from pods.mistakes import mistakes

import tpunb

CORES = 4
EXAMPLES, FEATURES, CLASSES, BATCH = 64, 6, 3, 16

rng = np.random.default_rng(7)
X = rng.normal(size=(EXAMPLES, FEATURES)).astype("float32")
Y = rng.integers(0, CLASSES, EXAMPLES)


def model() -> Any:
    """A small network with fixed weights."""
    tf.keras.utils.set_random_seed(3)
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input((FEATURES,)),
            tf.keras.layers.Dense(12, activation="tanh"),
            tf.keras.layers.Dense(CLASSES),
        ]
    )


def weights(network: Any) -> list[float]:
    """All weights as a flat list."""
    return [float(w) for array in network.get_weights() for w in np.ravel(array)]


def loop(strategy: Any) -> list[float]:
    """Train in a custom loop; return the weights."""
    with strategy.scope():
        network = model()
        optimizer = tf.keras.optimizers.Adam(0.01)
        optimizer.build(network.trainable_variables)

    def step(batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            losses = tf.keras.losses.sparse_categorical_crossentropy(
                y, network(x, training=True), from_logits=True
            )
            loss = tf.reduce_sum(losses) / BATCH
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))

    @tf.function
    def steps(iterator: Any, count: Any) -> None:
        for _ in tf.range(count):
            strategy.run(step, args=(next(iterator),))

    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH, drop_remainder=True).repeat()
    steps(iter(strategy.experimental_distribute_dataset(data)), tf.constant(12))
    return weights(network)


def fit(strategy: Any) -> list[float]:
    """Train with Keras's `fit`; return the weights and the evaluation."""
    with strategy.scope():
        network = model()
        network.compile(
            optimizer=tf.keras.optimizers.SGD(0.1, momentum=0.9),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            steps_per_execution=2,
        )
    network.fit(X, Y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0)
    evaluated = network.evaluate(X, Y, batch_size=BATCH, verbose=0)
    return [*weights(network), *map(float, evaluated)]


def talk(strategy: Any) -> list[list[float]]:
    """Exchange values between replicas, also in a loop and in a branch."""

    @tf.function
    def run() -> Any:
        def replica() -> Any:
            ctx = tf.distribute.get_replica_context()
            own_value = tf.cast(ctx.replica_id_in_sync_group, tf.float32) + 1
            together = ctx.all_reduce("sum", own_value)
            for _ in tf.range(3):
                together = ctx.all_reduce("mean", together + own_value)
            if together > 0:
                together = ctx.all_reduce("sum", together)
            return together, ctx.all_gather(tf.fill([1], own_value), 0)

        return strategy.run(replica)

    together, gathered = run()
    rows = strategy.gather(strategy.run(tf.function(lambda: tf.fill([1, 2], together_of(1.0)))), 0)
    return [
        [float(v) for v in strategy.experimental_local_results(together)],
        [float(v) for v in strategy.experimental_local_results(gathered)[-1]],
        [float(v) for v in np.ravel(rows.numpy())],
    ]


def together_of(value: float) -> Any:
    """A value that differs between replicas."""
    ctx = tf.distribute.get_replica_context()
    return value + tf.cast(ctx.replica_id_in_sync_group, tf.float32)


def pipelines(strategy: Any) -> dict[str, Any]:
    """The calls of an input function, and the batches that replicas get."""
    calls = []

    def dataset(context: Any) -> Any:
        calls.append((context.input_pipeline_id, context.num_input_pipelines))
        first = context.input_pipeline_id * 100
        return tf.data.Dataset.range(first, first + 4).batch(1)

    batches = [
        [int(v[0]) for v in strategy.experimental_local_results(batch)]
        for batch in strategy.distribute_datasets_from_function(dataset)
    ]
    return {"calls": calls, "batches": batches}


def cell(connection: Any) -> list[float]:
    """Run a cell on every replica, then many steps."""
    namespace = {"tf": tf, "x": tf.constant([1.0, 2.0])}
    cell_result = connection.run_cell(
        "y = x * (1 + replica_id_as_float(replica_id))\nctx.all_reduce('sum', y)",
        {**namespace, "replica_id_as_float": lambda r: tf.cast(r, tf.float32)},
    )
    data = tf.data.Dataset.from_tensor_slices(X).batch(BATCH).repeat()
    with connection.strategy.scope():
        total = tf.Variable(tf.zeros([FEATURES]))

    def step(batch: Any) -> Any:
        ctx = tf.distribute.get_replica_context()
        total.assign_add(ctx.all_reduce("mean", tf.reduce_mean(batch, 0)))
        return {"sum": tf.reduce_sum(total)}

    result = connection.run(step, data, steps=30, plot="sum")
    sums = result.history["sum"] if hasattr(result.history, "__getitem__") else []
    shown = connection.strategy.experimental_local_results(cell_result.value)
    return [*map(float, shown[-1]), *map(float, total.numpy()), len(list(sums)) * 1.0]


def saved(strategy: Any) -> list[float]:
    """Save and restore a model, a variable and a counter of the notebook."""
    with strategy.scope():
        network = model()
        optimizer = tf.keras.optimizers.Adam(0.01)
        optimizer.build(network.trainable_variables)
        variable = tf.Variable(tf.range(5.0))
    step = tf.Variable(3)
    checkpoint = tf.train.Checkpoint(model=network, optimizer=optimizer, v=variable, step=step)
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint.save(f"{folder}/at")
        for each in (*network.variables, variable, step):
            each.assign(tf.zeros(each.shape, each.dtype))
        checkpoint.restore(path).assert_consumed()
    return [*weights(network), *map(float, variable.numpy()), float(step.numpy())]


def diverged(strategy: Any) -> list[float]:
    """Read a variable's copies with a function that was traced while they were equal."""
    with strategy.scope():
        variable = tf.Variable(1.0)

    def total() -> Any:
        return tf.distribute.get_replica_context().all_reduce("sum", variable.read_value())

    read = tf.function(lambda: strategy.run(total)).get_concrete_function()
    before = strategy.experimental_local_results(read())
    strategy.run(tf.function(lambda: variable.assign(together_of(0.0))))
    return [float(v) for v in (*before, *strategy.experimental_local_results(read()))]


def programs(workers: list[str]) -> dict[str, Any]:
    """Run all programs; return their results."""
    connection = tpunb.connect(simulate=CORES, workers=workers or None)
    strategy = connection.strategy
    description = connection.describe()
    results = {
        "loop": loop(strategy),
        "fit": fit(strategy),
        "talk": talk(strategy),
        "pipelines": pipelines(strategy),
        "cell": cell(connection),
        "saved": saved(strategy),
        "diverged": diverged(strategy),
        "replicas": description.replicas,
        "hosts": description.hosts,
        "memory": list(connection.memory_per_core()),
        "text": str(connection.strategy.run(tf.function(lambda: together_of(0.0)))),
    }
    connection.close()
    return results


if __name__ == "__main__":
    print(json.dumps(programs(sys.argv[1:]) | {"mistakes": mistakes(sys.argv[1])}))
