"""Users' mistakes with workers, and the explanations that they get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

import tpunb

WORKER = "/job:worker/replica:0/task:0/device:CPU:0"

before = tf.data.Dataset.range(4)


@tf.function
def uses_a_dataset_from_before() -> Any:
    """Use a dataset of this process on the worker."""
    return before.reduce(tf.constant(0, tf.int64), lambda a, b: a + b)


def on_the_worker(call: Callable[[], Any]) -> Any:
    """Call a function with the worker as the device."""
    with tf.device(WORKER):
        return call()


def python_on_a_worker(strategy: Any) -> Any:
    """Use Python in an input pipeline."""
    data = tf.data.Dataset.range(4).map(lambda v: tf.py_function(lambda a: a, [v], tf.int64))
    return list(strategy.experimental_distribute_dataset(data.batch(2)))


def code_of(call: Callable[[], Any]) -> str | None:
    """The code of the error that a call raises."""
    try:
        call()
    except Exception as error:
        explanation = tpunb.explain(error)
        return explanation.code if explanation else f"{type(error).__name__}: {error}"
    return None


def mistakes(address: str) -> dict[str, str | None]:
    """Make the mistakes with a worker; return the codes of the errors."""
    with tpunb.connect(workers=[address]) as connection:
        codes = {
            "dataset": code_of(lambda: on_the_worker(uses_a_dataset_from_before)),
            "python": code_of(lambda: python_on_a_worker(connection.strategy)),
        }
        with connection.strategy.scope():
            variable = tf.Variable(1.0)
    return codes | {"closed": code_of(variable.numpy)}
