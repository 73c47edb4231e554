"""The parts of JAX arrays on each device; JAX is looked up among the loaded modules."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tpunb.virtual.jax.per_replica import PerReplica


def _jax() -> Any:
    """Return JAX if it is imported, else `None`."""
    module = sys.modules.get("jax")
    return module if hasattr(module, "tree_util") else None


def _array(value: Any) -> Any:
    """Return the JAX array of a value or of a Keras variable; None for other values."""
    jax = _jax()
    if jax is None:
        return None
    if type(value).__module__.partition(".")[0] == "keras" and hasattr(value, "assign"):
        value = value.value
    return (
        value if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) else None
    )


def parts_of(value: Any) -> tuple[np.ndarray[Any, Any], ...] | None:
    """Return the part on each of this process's devices, in the order of their numbers.

    Returns:
        An array of each device; None if the value is not a JAX array, or has no numbers.
    """
    if isinstance(value, PerReplica):
        return tuple(part for each in value.values for part in parts_of(each) or ())
    array = _array(value)
    if array is None:
        return None
    jax = _jax()
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    shards = sorted(array.addressable_shards, key=lambda shard: shard.device.id)
    return tuple(np.asarray(shard.data) for shard in shards)


def devices_of(value: Any) -> tuple[str, ...]:
    """Return the devices of the parts that `parts_of` returns, such as `("CPU:0", "CPU:1")`."""
    shards = _array(value).addressable_shards
    devices = sorted((shard.device for shard in shards), key=lambda device: device.id)
    return tuple(f"{device.platform.upper()}:{device.id}" for device in devices)


def type_name(value: Any) -> str:
    """Return a value's class; for an array that is cut over devices also its shape and axes."""
    array = _array(value)
    if array is None:
        return type(value).__name__
    spec = getattr(array.sharding, "spec", ())
    axes = ", ".join(map(repr, spec))
    return f"jax.Array {list(array.shape)} cut by ({axes})" if any(spec) else "jax.Array"


def type_and_shape(value: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return the dtype and shape of an array, also if deleted or donated; else None."""
    array = _array(value)
    return None if array is None else (str(array.dtype), tuple(array.shape))


def items_of(value: Any) -> list[tuple[str, Any]] | None:
    """Return the children of a node of a tree that JAX knows, with their keys; None for a leaf."""
    jax = _jax()
    if jax is None or value is None or jax.tree_util.all_leaves([value]):
        return None
    children, _ = jax.tree_util.tree_flatten_with_path(
        value, is_leaf=lambda node: node is not value
    )
    return [(jax.tree_util.keystr(path), child) for path, child in children] or None
