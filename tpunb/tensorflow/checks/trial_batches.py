"""The batches of a trial: each replica's part, and the same examples for a single replica."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpunb.tensorflow.virtual.private_names import distribute_values


@dataclasses.dataclass(frozen=True)
class TrialBatch:
    """The arguments of a step on several replicas and on one.

    Attributes:
        on_replicas: The arguments for the replicas.
        on_one: The same examples for a single replica.
    """

    on_replicas: list[Any]
    on_one: list[Any]


class GlobalBatch:
    """The arguments of a step, whose per-replica values are the parts of a global batch.

    If no argument is a per-replica value, each replica takes the arguments as they are. The parts
    of the batch are then the tensors with as many rows as the first tensor.

    Args:
        arguments: The arguments.
        replicas: The number of replicas.

    Attributes:
        is_distributed: Whether some arguments are per-replica values.
    """

    def __init__(self, arguments: Sequence[Any], replicas: int) -> None:
        self._arguments = list(arguments)
        self._replicas = replicas
        leaves = tf.nest.flatten(self._arguments)
        self.is_distributed = any(map(_is_per_replica, leaves))
        tensors = [leaf for leaf in leaves if tf.is_tensor(leaf)]
        self._first = next((_rows(one) for one in tensors if _rows(one) is not None), None)
        self._columns = [self._parts(leaf) for leaf in leaves if self._is_part(leaf)]

    @property
    def exists(self) -> bool:
        """True if there are examples."""
        return bool(self._columns)

    @property
    def is_even(self) -> bool:
        """True if all replicas get parts of the same shape."""
        return all(part.shape == column[0].shape for column in self._columns for part in column)

    @property
    def examples(self) -> int | None:
        """The number of examples of the replica that has most; None if it is not known."""
        return _rows(self._columns[0][self._largest])

    @property
    def _largest(self) -> int:
        sizes = [_rows(part) or 0 for part in self._columns[0]]
        return sizes.index(max(sizes))

    def as_given(self) -> TrialBatch:
        """Return the batch itself; its parts must be even."""
        return self._of(list)

    def repeated(self) -> TrialBatch:
        """Return a batch in which all replicas have the same examples.

        A sum over them, a mean and their statistics then differ between several replicas and one by
        a factor at most.
        """
        place = self._largest
        return self._of(lambda parts: [parts[place]] * len(parts))

    def _of(self, chosen: Callable[[Sequence[Any]], list[Any]]) -> TrialBatch:
        """Return a batch with the examples that are chosen for the replicas, from their parts."""
        return TrialBatch(
            self._mapped(lambda parts: distribute_values.PerReplica(chosen(parts))),
            self._mapped(lambda parts: _joined(chosen(parts))),
        )

    def _mapped(self, combine: Callable[[Sequence[Any]], Any]) -> list[Any]:
        def mapped(leaf: Any) -> Any:
            return combine(self._parts(leaf)) if self._is_part(leaf) else leaf

        return tf.nest.map_structure(mapped, self._arguments)  # type: ignore[no-any-return]

    def _is_part(self, leaf: Any) -> bool:
        if self.is_distributed:
            return _is_per_replica(leaf)
        return tf.is_tensor(leaf) and self._first is not None and _rows(leaf) == self._first

    def _parts(self, leaf: Any) -> Sequence[Any]:
        return leaf.values if _is_per_replica(leaf) else [leaf] * self._replicas


def _is_per_replica(leaf: Any) -> bool:
    return isinstance(leaf, distribute_values.PerReplica)


def _rows(tensor: Any) -> int | None:
    """Return the size of a tensor's first axis; None if there is none."""
    shape = getattr(tensor, "shape", None)
    return shape[0] if shape is not None and shape.rank else None


def _joined(parts: Sequence[Any]) -> Any:
    """Return all examples of several parts; a value without axes is the first replica's."""
    parts = [tf.identity(part) for part in parts]
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, parts)
    return tf.concat(parts, 0) if parts[0].shape.rank else parts[0]
