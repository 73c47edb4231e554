"""Helpers for the tests of variables whose copies diverge."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from support.strategies import all_reduce, local, replica_id, run

# AutoGraph cannot tell two lambdas on one line apart, and logs long warnings about it.
function = functools.partial(tf.function, autograph=False)


def rank() -> Any:
    return tf.cast(replica_id() + 1, tf.float32)


def once(v: Any) -> Any:
    """Return a variable's value, computed once for all copies that are known to be equal."""
    return v + 0.0 * all_reduce(v.read_value())


def ranks(strategy: Any) -> list[float]:
    return [float(replica + 1) for replica in range(strategy.num_replicas_in_sync)]


def values(strategy: Any, result: Any) -> list[float]:
    parts = result if isinstance(result, (tuple, list)) else local(strategy, result)
    return [float(value) for value in parts]


def do(strategy: Any, action: Callable[[], Any]) -> None:
    """Run a replica function for its side effects."""

    def replica() -> Any:
        action()
        return tf.constant(0)

    run(strategy, replica)


def diverge(strategy: Any, v: Any) -> None:
    do(strategy, lambda: v.assign(rank()))


def in_a_loop(strategy: Any, v: Any) -> Callable[[], Any]:
    @tf.function
    def step() -> Any:
        total = strategy.run(lambda: tf.zeros([]))
        for _ in tf.range(3):
            total = strategy.run(lambda x: x + once(v) / 3.0, args=(total,))
        return total

    return step


def held_concrete(strategy: Any, v: Any) -> Callable[[], Any]:
    return function(lambda: strategy.run(lambda: once(v))).get_concrete_function()


@contextlib.contextmanager
def running(strategy: Any, action: Callable[[], Any]) -> Iterator[Any]:
    """Run steps in another thread until the end of the block.

    Args:
        strategy: The strategy that runs each step.
        action: The replica function of a step.

    Yields:
        A function that runs one step.
    """
    is_running, steps = tf.Variable(True), tf.Variable(0)

    def replica() -> Any:
        action()
        return tf.zeros([])

    @tf.function
    def many() -> None:
        while is_running:
            strategy.run(replica)
            steps.assign_add(1)

    step = function(lambda: strategy.run(replica))
    step()
    many.get_concrete_function()
    thread = threading.Thread(target=many)
    thread.start()
    try:
        while not steps.numpy():
            pass
        yield step
    finally:
        is_running.assign(False)
        thread.join()
