"""A suite of programs for TensorFlow's strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.verification.suite import Suite


class StrategySuite(Suite):
    """The programs of one group of claims about a `TPUStrategy`."""

    @property
    def strategy(self) -> Any:
        """The connection's `TPUStrategy`."""
        return self.connection.strategy

    def each(self, values: Sequence[Any] | np.ndarray) -> Any:
        """Return a distributed value, with one of the values for each replica."""
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.convert_to_tensor(values[context.replica_id_in_sync_group])
        )

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run a replica function once, and return each replica's result as NumPy."""

        @tf.function  # type: ignore[untyped-decorator]
        def step(*arguments: Any) -> Any:
            return self.strategy.run(function, args=arguments)

        return self.local(step(*arguments))

    def on_ranks(self, function: Callable[[Any], Any]) -> list[Any]:
        """Run a function of one number on every replica: 1.0 on the first, 2.0 on the next."""
        return self.run(function, self.each(self.ranks))

    def local(self, result: Any) -> list[Any]:
        """Return each replica's part of a value as NumPy."""
        parts = self.strategy.experimental_local_results(result)
        return [part.numpy() if hasattr(part, "numpy") else part for part in parts]

    def variable(self, value: Any, **options: Any) -> Any:
        """Return a variable made in the strategy's scope, with the arguments of `tf.Variable`."""
        with self.strategy.scope():
            return tf.Variable(value, **options)
