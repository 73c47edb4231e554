"""A value with a part on each device, which a cell for JAX leaves behind."""

from __future__ import annotations

from typing import Any

from tpunb.errors import TpunbError


class PerReplica:
    """A value of every replica, as `tf.distribute` calls it: one array on each device.

    In a `%%tpu_run` cell, each replica reads its own part. Elsewhere, `values` has the parts.

    Args:
        array: A `jax.Array` over the devices of a mesh with one axis. The parts follow each other
            along its first axis, or it is whole on each device.
        shape: The shape of one part.
        is_whole: Whether the array is whole on each device.

    Attributes:
        array: The argument `array`.
        shape: The shape of one part.
        is_whole: The argument `is_whole`.
    """

    def __init__(self, array: Any, shape: tuple[int, ...], *, is_whole: bool) -> None:
        self.array, self.shape, self.is_whole = array, shape, is_whole

    @property
    def values(self) -> tuple[Any, ...]:
        """The part of each replica, a `jax.Array` on the replica's device."""
        shards = {shard.device: shard.data for shard in self.array.addressable_shards}
        parts = [shards[device] for device in self.array.sharding.mesh.devices.flat]
        is_scalar = not self.is_whole and not self.shape
        return tuple(part[0] if is_scalar else part for part in parts)

    @property
    def dtype(self) -> Any:
        """The type of the parts' elements."""
        return self.array.dtype

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Refuse to be an array: NumPy would make one of this object.

        Raises:
            TpunbError: Always.
        """
        raise TpunbError(
            "A PerReplica has a value on each replica, so it is not an array outside of a cell.",
            fix="Take a replica's (`value.values[0]`), or combine them in the cell: "
            'ctx.all_reduce("mean", value).',
        )

    def __repr__(self) -> str:
        rows = [f"  {number}: {part!r}" for number, part in enumerate(self.values)]
        return "\n".join(["PerReplica:{", *rows, "}"])
