"""What this machine's memory holds of a virtual TPU's arrays: too large a call is refused.

Otherwise the system would end the process.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any

from tpunb._util.units import byte_count
from tpunb.jax.virtual.private_names import private
from tpunb.machine import resources

LOOKED_AT = 2**28
"""The bytes from which a call is compared with this machine's free memory."""


class HostMemory:
    """This machine's memory, for the calls of one client.

    Args:
        client: The client of the virtual devices.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._running: list[weakref.ref[Any]] = []

    def running(self, arrays: Iterable[Any]) -> None:
        """Note the large results of a call, which JAX makes while the program goes on."""
        self._running += map(weakref.ref, arrays)

    def require(self, size: int, name: str) -> None:
        """Check that this machine has the memory for a call.

        Raises:
            MemoryError: It does not.
        """
        __tracebackhide__ = True
        if (free := self.too_little(size)) is not None:
            count = self._client.device_count()
            raise MemoryError(
                f"{name} takes {byte_count(size)} of this machine's memory on {count} virtual "
                f"devices together, and {byte_count(free)} are free. This says nothing about a "
                "TPU. In a dry run, the TPU's compiler judges every program, and large ones are "
                "not computed: %tpu_connect --simulate TYPE --dry. Or take a smaller type, such as "
                "v5e-1, or smaller arrays."
            )

    def too_little(self, size: int) -> int | None:
        """Return the free bytes if a call needs more; None if it does not, or if nobody knows."""
        if size < LOOKED_AT:
            return None
        running = [array for each in self._running if (array := each()) is not None]
        running = [array for array in running if not (array.is_deleted() or array.is_ready())]
        free = resources.measure().available
        if free is not None and size > free - sum(map(bytes_of, running)):
            for array in running:  # what is not executed yet has not taken its memory
                array.block_until_ready()
            running, free = [], resources.measure().available
        self._running = list(map(weakref.ref, running))
        return free if free is not None and size > free else None


def physical(aval: Any, sharding: Any) -> tuple[Any, Any]:
    """Return what an array of JAX's own types, such as random keys, consists of."""
    jax_dtypes = private("jax._src.dtypes")
    if not jax_dtypes.issubdtype(aval.dtype, jax_dtypes.extended):
        return aval, sharding
    core, shardings = private("jax._src.core"), private("jax._src.sharding_impls")
    return core.physical_aval(aval), shardings.physical_sharding(aval, sharding)


def bytes_of(array: Any) -> int:
    """Return the bytes of an array on all its devices."""
    return size_of(array.aval, array.sharding)


def size_of(aval: Any, sharding: Any) -> int:
    """Return the bytes of an array on all its devices; 0 for a token."""
    if not hasattr(aval, "dtype"):
        return 0
    aval, sharding = physical(aval, sharding)
    count = len(sharding.device_set)
    return int(count * math.prod(sharding.shard_shape(aval.shape)) * aval.dtype.itemsize)
