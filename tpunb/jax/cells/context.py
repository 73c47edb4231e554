"""The context of a cell for JAX: its replica's number, and collectives over all replicas."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
from jax.extend import source_info_util

import tpunb.version
from tpunb.errors import CellError

# Programs then name the cell's line for a collective, and not a line of this file.
source_info_util.register_exclusion(str(Path(tpunb.version.__file__).parent))

AXIS = "replica"
"""The mesh axis of a cell, as in `jax.lax.psum(x, "replica")`."""

_REDUCTIONS = {
    "sum": jax.lax.psum,
    "mean": jax.lax.pmean,
    "max": jax.lax.pmax,
    "min": jax.lax.pmin,
}


class ReplicaContext:
    """The collectives of a cell, named `ctx` in it.

    Each takes an array or a tree of arrays, and calls the function of `jax.lax` on the cell's axis.

    Args:
        replicas: The number of replicas.
    """

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas."""
        return self._replicas

    @property
    def replica_id_in_sync_group(self) -> Any:
        """The number of this replica, from 0: an int32 scalar."""
        return jax.lax.axis_index(AXIS)

    def all_reduce(self, operation: str, value: Any) -> Any:
        """Combine a value over the replicas.

        Args:
            operation: `"sum"`, `"mean"`, `"max"` or `"min"`.
            value: An array, or a tree of arrays.

        Returns:
            The combined value, which is the same on each replica.

        Raises:
            CellError: The operation is none of these.
        """
        if not isinstance(operation, str) or operation.lower() not in _REDUCTIONS:
            swapped = isinstance(value, str)
            raise CellError(
                f"`all_reduce` cannot combine by {operation!r}.",
                fix='The operation comes first: ctx.all_reduce("sum", value).'
                if swapped
                else 'Use "sum", "mean", "max" or "min".',
            )
        return _REDUCTIONS[operation.lower()](value, AXIS)

    def all_gather(self, value: Any, axis: int = 0) -> Any:
        """Concatenate the values of the replicas along an axis.

        Args:
            value: An array of one or more dimensions, or a tree of such arrays.
            axis: The axis along which to concatenate.
        """
        scalars = [leaf for leaf in jax.tree.leaves(value) if not jax.numpy.ndim(leaf)]
        if scalars:
            raise CellError(
                "`all_gather` concatenates along an axis, and a scalar has none.",
                fix="Give it one: ctx.all_gather(value[None]).",
            )
        return jax.lax.all_gather(value, AXIS, axis=axis, tiled=True)

    def ppermute(self, value: Any, pairs: Iterable[tuple[int, int]]) -> Any:
        """Send values from replica to replica.

        Args:
            value: An array, or a tree of arrays.
            pairs: Pairs of a source and a target. Replicas that are not targets get zeros.
        """
        return jax.lax.ppermute(value, AXIS, perm=list(pairs))

    def all_to_all(self, value: Any, split_axis: int = 0, concat_axis: int = 0) -> Any:
        """Split a value, send part k to replica k, and concatenate what arrives.

        Args:
            value: An array, or a tree of arrays.
            split_axis: The axis that is split; its size is a multiple of the number of replicas.
            concat_axis: The axis along which the arriving parts are concatenated.
        """
        return jax.lax.all_to_all(value, AXIS, split_axis, concat_axis, tiled=True)


def varies(value: Any) -> bool:
    """Return whether a traced value may differ between the replicas, by JAX's types.

    The attribute is `vma` in JAX 0.7, and `manual_axis_type` in JAX 0.10:
    https://docs.jax.dev/en/latest/notebooks/shard_map.html#tracking-how-values-vary-over-manual-mesh-axes-and-check-vma-true
    """
    kind = jax.typeof(value)
    names = kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying
    return AXIS in names
