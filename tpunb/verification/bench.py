"""What claims are tried on: a connection, and the few things that all of them do with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from tpunb.connection.connection import Connection
from tpunb.verification.observation import NotRunError

__all__ = ["Bench"]

_Made = TypeVar("_Made")

_BATCH = 64
_EXACT = 1e-5
_ROUNDED = 2e-2
_APPROXIMATED = 1e-3


class Bench:
    """A connected TPU that claims are tried on.

    Args:
        connect: Connects to it; again for claims about connecting.

    Attributes:
        connection: The connection that is open.
        former: The one before it, which is closed; None before `reconnect`.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self.connection = connect()
        self.former: Connection | None = None
        self._made: dict[Callable[[Bench], Any], Any] = {}

    @property
    def strategy(self) -> Any:
        """The connection's `TPUStrategy`."""
        return self.connection.strategy

    @property
    def replicas(self) -> int:
        """How many replicas there are."""
        return int(self.strategy.num_replicas_in_sync)

    @property
    def ranks(self) -> np.ndarray:
        """A number for each replica: 1.0 for the first, 2.0 for the second, and so on."""
        return np.arange(1.0, self.replicas + 1.0, dtype=np.float32)

    @property
    def global_batch(self) -> int:
        """A batch size that all replicas share evenly."""
        return self.replicas * max(1, math.ceil(_BATCH / self.replicas))

    @property
    def is_virtual(self) -> bool:
        """Whether it is a virtual TPU."""
        return self.connection.kind == "virtual"

    def tolerance(self, *, products: bool = False) -> float:
        """How far a number may be from that of a CPU, as a part of the largest magnitude.

        Args:
            products: Whether matrix products are part of it, whose float32 factors a TPU's
                matrix unit rounds to bfloat16 (8 bits), unless told otherwise.
        """
        if self.is_virtual:
            return _EXACT
        return _ROUNDED if products else _APPROXIMATED

    def need_replicas(self, least: int = 2) -> None:
        """Ends a claim that fewer replicas cannot show.

        Raises:
            NotRunError: There are fewer.
        """
        if self.replicas < least:
            raise NotRunError(f"it takes {least} replicas, and here is {self.replicas}")

    def each(self, values: Sequence[Any] | np.ndarray) -> Any:
        """A value for each replica."""
        import tensorflow as tf

        return self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.convert_to_tensor(values[context.replica_id_in_sync_group])
        )

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Runs a replica function once, and gives each replica's result as NumPy."""
        import tensorflow as tf

        @tf.function  # type: ignore[untyped-decorator]
        def step(*arguments: Any) -> Any:
            return self.strategy.run(function, args=arguments)

        return self.local(step(*arguments))

    def on_ranks(self, function: Callable[[Any], Any]) -> list[Any]:
        """Runs a function of one number on every replica: 1.0 on the first, 2.0 on the next."""
        return self.run(function, self.each(self.ranks))

    def local(self, result: Any) -> list[Any]:
        """Each replica's part of a result, as NumPy arrays."""
        import tensorflow as tf

        flat = [self.strategy.experimental_local_results(part) for part in tf.nest.flatten(result)]
        return [
            tf.nest.pack_sequence_as(result, [_numpy(part[replica]) for part in flat])
            for replica in range(self.replicas)
        ]

    def variable(self, value: Any, **options: Any) -> Any:
        """A variable in the strategy's scope, as `tf.Variable` takes it."""
        import tensorflow as tf

        with self.strategy.scope():
            return tf.Variable(value, **options)

    def once(self, make: Callable[[Bench], _Made]) -> _Made:
        """What several claims look at, made for the first of them."""
        if make not in self._made:
            self._made[make] = make(self)
        return cast("_Made", self._made[make])

    def reconnect(self) -> None:
        """Closes the connection and connects again."""
        self.connection.close()
        before = self.connection
        self.connection = self._connect()
        self.former = before


def _numpy(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value
