"""The parts of JAX arrays on each device; JAX is looked up among the loaded modules."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from tpunb._util.units import byte_count
from tpunb.virtual import current_type
from tpunb.virtual.per_replica import PerReplica


def _jax() -> Any:
    """Return JAX if it is imported, else `None`."""
    module = sys.modules.get("jax")
    return module if hasattr(module, "tree_util") else None


def array_of(value: Any) -> Any:
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
    array = array_of(value)
    if array is None:
        return None
    jax = _jax()
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    shards = sorted(array.addressable_shards, key=lambda shard: shard.device.id)
    return tuple(np.asarray(shard.data) for shard in shards)


def parts_in_mesh_order(value: Any) -> tuple[np.ndarray[Any, Any], ...] | None:
    """Return the part on each device, in the order of the array's mesh if it has one.

    Collectives count devices in this order. It is not always the order of the devices' numbers:
    `jax.make_mesh` follows the links of a TPU.
    """
    array = array_of(value)
    devices = getattr(getattr(getattr(array, "sharding", None), "mesh", None), "devices", None)
    if devices is None:
        return parts_of(value)
    shards = {shard.device: shard.data for shard in array.addressable_shards}
    return tuple(np.asarray(shards[device]) for device in devices.flat if device in shards)


def device_name(device: Any) -> str:
    """Return a device's name for a reader: `"TPU 3"`."""
    return f"{device.platform.upper()} {device.id}"


def type_name(value: Any) -> str:
    """Return a value's class; for an array that is cut over devices also its shape and axes."""
    array = array_of(value)
    if array is None:
        return type(value).__name__
    spec = spec_of(array.sharding)
    axes = ", ".join(map(repr, spec))
    return f"jax.Array {list(array.shape)} cut by ({axes})" if any(spec) else "jax.Array"


def spec_of(sharding: Any) -> list[Any]:
    """Return the entries of a sharding's spec; empty for a sharding without a spec.

    JAX refuses to iterate over a spec with partial sums. JAX 0.7 has no `partitions`.
    """
    spec = getattr(sharding, "spec", ())
    return list(getattr(spec, "partitions", spec))


def type_and_shape(value: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return the dtype and shape of an array, also if deleted or donated; else None."""
    array = array_of(value)
    return None if array is None else (str(array.dtype), tuple(array.shape))


def items_of(value: Any) -> list[tuple[str, Any]] | None:
    """Return the children of a node of a tree that JAX knows, with their keys; None for a leaf."""
    jax, value = _jax(), _state_of(value)
    if jax is None or value is None or jax.tree_util.all_leaves([value]):
        return None
    children, _ = jax.tree_util.tree_flatten_with_path(
        value, is_leaf=lambda node: node is not value
    )
    return [(jax.tree_util.keystr(path), child) for path, child in children] or None


def leaves_with_paths(value: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a tree with JAX's arrays, with their paths; empty for other values."""
    jax = _jax()
    if jax is None:
        return []
    state = _state_of(value)
    try:
        # Paths take ten times as long as leaves, and a tree may be a long list of numbers.
        if not any(map(_is_of_jax, jax.tree_util.tree_leaves(state))):
            return []
        leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    except (TypeError, ValueError):  # JAX sorts a dict's keys, and these cannot be sorted
        items = value.items() if isinstance(value, Mapping) else ()
        return [
            (f"[{key!r}]{path}", leaf)
            for key, item in items
            for path, leaf in leaves_with_paths(item)
        ]
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves]


def _is_of_jax(leaf: Any) -> bool:
    return type(leaf).__module__.partition(".")[0] in ("jax", "jaxlib", "keras")


def _state_of(value: Any) -> Any:
    """Return the state of a Flax NNX module, which is a tree in every release; else the value."""
    nnx: Any = sys.modules.get("flax.nnx")
    return nnx.state(value) if isinstance(value, getattr(nnx, "Module", ())) else value


MOST_COPIED = 16 * 2**20
"""The most bytes that a display copies from devices to read the values of arrays."""


def why_unread(value: Any) -> str:
    """Return why a display does not read the values of arrays; empty if it does.

    The elements of CPU devices and of a virtual TPU are in the host's memory already.
    """
    arrays = [array_of(leaf) for _, leaf in leaves_with_paths(value)]
    size = sum(_bytes_on_devices(array) for array in arrays if array is not None)
    if size <= MOST_COPIED or current_type.get() is not None:
        return ""
    return (
        f"The values are not read, because that would copy {byte_count(size)} from the devices. "
        "Show a slice or a leaf to see its values."
    )


def _bytes_on_devices(array: Any) -> int:
    """Return the bytes of an array in the memory of this process's devices; 0 on CPU devices."""
    devices = [each for each in array.sharding.addressable_devices if each.platform != "cpu"]
    part = array.sharding.shard_shape(array.shape)
    return int(len(devices) * math.prod(part) * array.dtype.itemsize)
