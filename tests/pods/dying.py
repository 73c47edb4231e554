"""A worker dies in the middle of a step; training goes on with fresh workers.

Prints what was seen as a line of JSON.
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
            for _ in tf.range(rounds):  # long enough to be hit in its middle
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
        """Makes steps, with a checkpoint after each."""
        while int(self.done.numpy()) < until:
            self.compiled(tf.constant(1))
            self.checkpoint.write(self.path)

    def weights(self) -> list[float]:
        """The weights in a row."""
        return [float(w) for array in self.model.get_weights() for w in np.ravel(array)]


def error_of(action: Any) -> BaseException | None:
    """What an action raises."""
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


def prints(connection: tpunb.Connection) -> list[list[str]]:
    """What a cell's replicas print, at its first and at its second run."""
    found = []
    for _ in range(2):
        with contextlib.redirect_stdout(io.StringIO()) as text:
            connection.run_cell(PRINTING, {})
        found.append(text.getvalue().splitlines())
    return found


def main(folder: str) -> None:
    """Trains undisturbed, then with a worker that dies."""
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
    here = float(tf.reduce_sum(tf.ones([3])))
    expected = error_of(whole.weights)

    fresh = tpunb.connect(simulate=2, local_workers=2)
    stale = error_of(lambda: disturbed.model.get_weights())
    again = Training(fresh, f"{folder}/disturbed")
    again.checkpoint.read(again.path).assert_consumed()
    resumed_at = int(again.done.numpy())
    again.go_on(STEPS)
    weights = again.weights()
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
                "here": here,
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
