"""Kill a worker in the middle of a step, then continue training with new workers.

Prints the results as a line of JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import tempfile
import threading
from typing import Any

import numpy as np
import tensorflow as tf

import tpunb
from tpunb.connection.connection import Connection

STEPS = 6
rng = np.random.default_rng(1)
X = rng.normal(size=(8, 4)).astype("float32")
Y = rng.normal(size=(8, 1)).astype("float32")


class Training:
    """A model on a connection, with its checkpoints."""

    def __init__(self, connection: Any, folder: str) -> None:
        self.strategy = connection.strategy
        with self.strategy.scope():
            tf.keras.utils.set_random_seed(5)
            self.model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
            self.optimizer = tf.keras.optimizers.Adam(0.05)
            self.optimizer.build(self.model.trainable_variables)
            self.done = tf.Variable(0, dtype=tf.int64)
        self.checkpoint = tf.train.Checkpoint(
            model=self.model, optimizer=self.optimizer, done=self.done
        )
        self.path = f"{folder}/at"
        self.compiled = tf.function(self._step)

    def _step(self, rounds: Any) -> None:
        def replica() -> None:
            ctx = tf.distribute.get_replica_context()
            busy = tf.fill([100, 100], 1.0 + tf.cast(ctx.replica_id_in_sync_group, tf.float32))
            for _ in tf.range(
                rounds
            ):  # long enough for the worker to die in the middle of the loop
                busy = ctx.all_reduce("mean", tf.tanh(busy @ busy)) + busy
            x, y = (tf.split(data, 2)[0] for data in (X, Y))
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.model(x) - y) ** 2) / 2 + 0 * tf.reduce_sum(busy)
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply_gradients(
                zip(gradients, self.model.trainable_variables, strict=True)
            )
            self.done.assign_add(1)

        self.strategy.run(replica)

    def go_on(self, until: int) -> None:
        """Run steps up to a count, with a checkpoint after each."""
        while int(self.done.numpy()) < until:
            self.compiled(tf.constant(1))
            self.checkpoint.write(self.path)

    def weights(self) -> list[float]:
        """All weights as a flat list."""
        return [float(w) for array in self.model.get_weights() for w in np.ravel(array)]


def error_of(action: Any) -> BaseException | None:
    """The error that an action raises."""
    try:
        action()
    except Exception as error:
        return error
    return None


PRINTING = """
import tensorflow as tf
print("first", tf.range(4) * replica_id)
for i in tf.range(2):
    tf.print("sum", ctx.all_reduce("sum", i))
"""


def prints(connection: Connection) -> list[list[str]]:
    """The lines that a cell's replicas print, in its first and its second run."""
    lines = []
    for _ in range(2):
        with contextlib.redirect_stdout(io.StringIO()) as text:
            connection.run_cell(PRINTING, {})
        lines.append(text.getvalue().splitlines())
    return lines


def main(folder: str) -> None:
    """Train undisturbed, then with a worker that dies."""
    connection = tpunb.connect(simulate=2, local_workers=2)
    printed = prints(connection)
    whole = Training(connection, f"{folder}/whole")
    whole.go_on(STEPS)

    disturbed = Training(connection, f"{folder}/disturbed")
    disturbed.go_on(STEPS // 2)
    victim = connection.pod.local.process_ids[1]

    threading.Timer(0.4, os.kill, [victim, signal.SIGKILL]).start()
    error = error_of(lambda: disturbed.compiled(tf.constant(1_000_000)))
    explanation = tpunb.explain(error)
    lost = connection.lost()
    touched = error_of(lambda: disturbed.model.get_weights())
    local_sum = float(tf.reduce_sum(tf.ones([3])))
    expected = error_of(whole.weights)

    fresh = tpunb.connect(simulate=2, local_workers=2)
    stale = error_of(lambda: disturbed.model.get_weights())
    resumed = Training(fresh, f"{folder}/disturbed")
    resumed.checkpoint.read(resumed.path).assert_consumed()
    resumed_at = int(resumed.done.numpy())
    resumed.go_on(STEPS)
    weights = resumed.weights()
    undisturbed = Training(fresh, f"{folder}/whole")
    undisturbed.checkpoint.read(undisturbed.path).assert_consumed()
    print(
        json.dumps(
            {
                "error": type(error).__name__,
                "code": explanation and explanation.code,
                "lost": len(lost),
                "old_is_closed": connection.closed,
                "touched": type(touched).__name__,
                "stale": type(stale).__name__,
                "others": type(expected).__name__,
                "here": local_sum,
                "resumed_at": resumed_at,
                "weights": weights,
                "printed": printed,
                "expected": undisturbed.weights(),
            }
        )
    )
    fresh.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(scratch)
