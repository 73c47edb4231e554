"""Claims about arrays on devices: their parts, and the memory that they take."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from tpunb.jax.verification.jax_suite import AXIS, JaxSuite
from tpunb.tpu.families import HARDWARE
from tpunb.verification.suite import Outcome, close, equal

_STATISTICS = frozenset(
    {"num_allocs", "bytes_in_use", "peak_bytes_in_use", "largest_alloc_size", "bytes_limit"}
)
_ROWS, _COLUMNS = 1024, 1024  # whole tiles, so that no layout pads them
_BYTES = 4 * _ROWS * _COLUMNS


class Arrays(JaxSuite):
    """Claims about the parts of arrays and the memory of devices."""

    group = "JAX arrays"

    def parts(self) -> Outcome:
        """Check that a sharded array has its rows on the devices in the mesh's order."""
        values = np.arange(2 * self.replicas)
        array = self.cut(values)
        parts = {shard.device.id: shard.data for shard in array.addressable_shards}
        found = [np.asarray(parts[device.id]) for device in self.mesh().devices.flat]
        return close(values.reshape(self.replicas, 2), found)

    def copies(self) -> Outcome:
        """Check that a replicated array is whole on every device."""
        array = self.cut(np.arange(3.0, dtype=np.float32), P())
        found = [np.asarray(shard.data) for shard in array.addressable_shards]
        return close(self.everywhere(np.arange(3.0)), found)

    def statistics(self) -> Outcome:
        """Check that `memory_stats()` has the names that a virtual TPU's has."""
        found = _STATISTICS & set(self.devices[0].memory_stats() or {})
        return equal(sorted(_STATISTICS), sorted(found))

    def limit(self) -> Outcome:
        """Check that `bytes_limit` is the memory that the compiler lets a program use."""
        expected = HARDWARE[self.type.family].usable_bytes
        return equal([expected], sorted({stats["bytes_limit"] for stats in self._statistics()}))

    def an_array(self) -> Outcome:
        """Check that an array of 4 MiB takes 4 MiB on its device, and nothing on the others."""
        before = self._in_use()
        last = self.devices[-1]
        array = jax.device_put(np.ones((_ROWS, _COLUMNS), np.float32), SingleDeviceSharding(last))
        array.block_until_ready()
        expected = [0] * (self.replicas - 1) + [_BYTES]
        return equal(expected, self._more_than(before))

    def a_sharded_array(self) -> Outcome:
        """Check that each device holds its own share of a sharded array."""
        before = self._in_use()
        array = self.cut(np.ones((_ROWS * self.replicas, _COLUMNS), np.float32))
        array.block_until_ready()
        return equal([_BYTES] * self.replicas, self._more_than(before))

    def a_deleted_array(self) -> Outcome:
        """Check that a deleted array gives its memory back."""
        before = self._in_use()
        array = jax.device_put(np.ones((_ROWS, _COLUMNS), np.float32), self.devices[0])
        array.block_until_ready().delete()
        return equal([0] * self.replicas, self._more_than(before))

    def a_donated_array(self) -> Outcome:
        """Check that a donated array is deleted, and its result takes over the memory."""
        change = jax.jit(lambda x: x * 2 + 1, donate_argnums=0)
        ones = np.ones((_ROWS, _COLUMNS), np.float32)
        change(jax.device_put(ones, self.devices[0]))  # the program's code takes memory too
        array = jax.device_put(ones, self.devices[0]).block_until_ready()
        before = self._in_use()
        result = change(array).block_until_ready()
        found = [array.is_deleted(), *self._more_than(before)]
        del result
        return equal([True, *[0] * self.replicas], found)

    def host_memory(self) -> Outcome:
        """Check that an array in `pinned_host` memory comes back unchanged."""
        values = np.arange(1024.0, dtype=np.float32)
        one = jax.sharding.Mesh(np.asarray(self.devices[:1]), (AXIS,))
        kept = jax.device_put(values, NamedSharding(one, P(), memory_kind="pinned_host"))
        back = jax.device_put(kept, NamedSharding(one, P(), memory_kind="device"))
        found = [kept.sharding.memory_kind, float(jnp.sum(back))]
        return equal(["pinned_host", float(values.sum())], found)

    def _statistics(self) -> list[Any]:
        return [device.memory_stats() for device in self.devices]

    def _in_use(self) -> list[int]:
        gc.collect()  # arrays of earlier programs
        return [stats["bytes_in_use"] for stats in self._statistics()]

    def _more_than(self, before: list[int]) -> list[int]:
        """Return the bytes that each device holds more than before."""
        return [now - then for now, then in zip(self._in_use(), before, strict=True)]
