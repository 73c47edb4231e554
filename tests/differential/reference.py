"""Run a program in plain eager TensorFlow, with a thread for each replica."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf
from differential.generator import Program
from differential.names import bounded, common, compiled, start_of


class OutOfStepError(Exception):
    """Replicas meet at different collectives.

    The gradient of a collective is a collective too. If only some replicas need its value, eager
    TensorFlow computes the gradient on these alone, and a graph on all. The two cannot be compared.
    """


class Together:
    """Replicas that exchange values.

    They run one at a time: eager TensorFlow has crashed when many threads used it at once.
    """

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self._barrier = threading.Barrier(replicas, timeout=60)
        self._values: list[Any] = [None] * replicas
        self._mine = threading.local()
        self._running = threading.Lock()

    @property
    def rank(self) -> int:
        """The replica ID of this thread."""
        return int(self._mine.rank)

    def exchange(self, value: Any, collective: Any = None) -> list[Any]:
        """Gather the values of all replicas on every replica.

        Args:
            value: The value of this replica.
            collective: The collective that exchanges the value; by default the replica's next one.
        """
        self._values[self.rank] = (collective or self._next(), value)
        self._meet()
        collectives, values = zip(*self._values, strict=True)
        self._meet()
        if len(set(collectives)) > 1:
            raise OutOfStepError(f"Some are at {collectives}.")
        return list(values)

    def _next(self) -> int:
        """The number of this replica's next collective."""
        self._mine.count = getattr(self._mine, "count", 0) + 1
        return int(self._mine.count)

    def _meet(self) -> None:
        self._running.release()
        try:
            self._barrier.wait()
        finally:
            self._running.acquire()

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Call a function on every replica."""

        def run_replica(rank: int) -> Any:
            self._mine.rank, self._mine.count = rank, 0
            with self._running:
                try:
                    return function(rank)
                except BaseException:
                    self._barrier.abort()
                    raise

        with ThreadPoolExecutor(self.replicas) as threads:
            futures = [threads.submit(run_replica, rank) for rank in range(self.replicas)]
        errors = [future.exception() for future in futures]
        original = [e for e in errors if e and not isinstance(e, threading.BrokenBarrierError)]
        for error in original or [e for e in errors if e]:
            raise error
        return [future.result() for future in futures]

    def all_reduce(self, how: str, value: Any, collective: Any = None) -> Any:
        """The sum or the mean over the replicas, with its gradient."""
        collective = collective or self._next()

        @tf.custom_gradient
        def reduced(x: Any) -> Any:
            total = tf.add_n(self.exchange(tf.convert_to_tensor(x), collective))
            total = total / self.replicas if how == "mean" else total
            return total, lambda dy: self.all_reduce(how, dy, ("gradient", collective))

        return reduced(value)

    def all_gather(self, value: Any) -> Any:
        """The concatenated values of all replicas, with its gradient."""
        collective = self._next()

        @tf.custom_gradient
        def gathered(x: Any) -> Any:
            size, rank = x.shape[0], self.rank
            return tf.concat(self.exchange(x, collective), 0), lambda dy: self.all_reduce(
                "sum", dy, ("gradient", collective)
            )[rank * size : (rank + 1) * size]

        return gathered(value)


class Copies:
    """A variable with a copy for each replica."""

    def __init__(self, together: Together, start: Any, aggregation: str, when: str) -> None:
        self._together = together
        # In replica code, a variable that syncs on read is local to the replica, and no tape
        # watches it.
        on_read = when == "ON_READ"
        self._aggregation = "NONE" if on_read else aggregation
        self.copies = [tf.Variable(start, trainable=not on_read) for _ in range(together.replicas)]

    @property
    def mine(self) -> Any:
        """The copy of this thread's replica."""
        return self.copies[self._together.rank]

    def read_value(self) -> Any:
        """The value of this replica's copy."""
        return self.mine.read_value()

    def _aggregated(self, value: Any) -> Any:
        if self._aggregation == "NONE":
            return value
        if self._aggregation == "ONLY_FIRST_REPLICA":
            return self._together.exchange(value)[0]
        return self._together.all_reduce(self._aggregation.lower(), value)

    def assign(self, value: Any) -> None:
        """Assign a value, aggregated over the replicas."""
        self.mine.assign(self._aggregated(value))

    def assign_add(self, value: Any) -> None:
        """Add a value, aggregated over the replicas."""
        self.mine.assign_add(self._aggregated(value))

    def assign_sub(self, value: Any) -> None:
        """Subtract a value, aggregated over the replicas."""
        self.mine.assign_sub(self._aggregated(value))


def run(program: Program, *, rounded: Any = None) -> list[list[Any]]:
    """Run a program.

    Args:
        program: The program.
        rounded: A NumPy random generator. If given, every computed number gets a tiny random error,
            like the rounding errors of another order of additions or another vector width.

    Returns:
        For each call, the results of each replica; last, the copies of each variable.
    """
    together = Together(program.replicas)
    variables = [
        Copies(together, start_of(k), aggregation, when)
        for k, (when, aggregation) in enumerate(program.variables)
    ]
    names = {
        **common(program),
        **{f"v{k}": variable for k, variable in enumerate(variables)},
        "bounded": bounded if rounded is None else lambda x: _off(bounded(x), rounded),
        "replica_id": lambda: tf.constant(together.rank),
        "all_reduce": together.all_reduce,
        "all_gather": together.all_gather,
        # A traced function's arguments are new tensors. A tape in the function must not take them
        # for the tensors that the function closes over.
        "nested": lambda function: lambda *given: function(*map(tf.identity, given)),
        "gradient": lambda tape, y, x: tape.gradient(
            y, x.mine if isinstance(x, Copies) else x, unconnected_gradients="zero"
        ),
    }
    functions = compiled(program, names)
    results = []
    for number, call in enumerate(program.calls):
        inputs = names["inputs"](number)
        results.append(
            together.run(
                lambda rank, call=call, inputs=inputs: list(functions[call](*inputs[rank]))
            )
        )
    results.append([[copy.read_value() for copy in variable.copies] for variable in variables])
    return results


def _off(value: Any, noise: Any) -> Any:
    return value * (1 + 1e-14 * noise.normal(size=value.shape))
