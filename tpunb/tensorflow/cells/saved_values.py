"""Values, batches and curves of a run as bytes, for its checkpoints."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import tensorflow as tf

from tpunb.cells.reading.nests import is_nest, leaves, parts_of

_PLAIN = (bool, int, float, str, type(None))


def encoded(value: Any) -> Any:
    """Return a nest of tensors, values of replicas and plain values as JSON; None if impossible."""
    if not all(isinstance(leaf, _PLAIN) or _is_tensors(leaf) for leaf in leaves(value)):
        return None
    return _encoded(value)


def _is_tensors(leaf: Any) -> bool:
    return all(isinstance(part, tf.Tensor) for part in parts_of(leaf))


def _encoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {"dict": [[key, _encoded(child)] for key, child in value.items()]}
    if is_nest(value):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encoded(child) for child in value]}
    if isinstance(value, _PLAIN):
        return {"plain": value}
    parts = parts_of(value)
    data = [base64.b64encode(tf.io.serialize_tensor(part).numpy()).decode() for part in parts]
    return {"tensor": parts[0].dtype.name, "parts": data, "replicas": parts[0] is not value}


def decoded(saved: Any, strategy: Any) -> Any:
    """Return the value that was encoded, with its parts on the replicas of a strategy."""
    ((kind, content), *_) = saved.items()
    if kind == "dict":
        return {key: decoded(child, strategy) for key, child in content}
    if kind in ("list", "tuple"):
        children = [decoded(child, strategy) for child in content]
        return children if kind == "list" else tuple(children)
    if kind == "plain":
        return content
    dtype = tf.as_dtype(content)
    parts = [tf.io.parse_tensor(base64.b64decode(part), dtype) for part in saved["parts"]]
    if not saved["replicas"]:
        return parts[0]
    return strategy.experimental_distribute_values_from_function(
        lambda context: parts[context.replica_id_in_sync_group]
    )


def fingerprint(batch: Any) -> int:
    """Return a checksum of a batch's values, in the order of the replicas."""
    check = 0
    for leaf in tf.nest.flatten(batch):
        for part in parts_of(leaf):
            for tensor in tf.nest.flatten(part, expand_composites=True):
                check = zlib.crc32(tf.io.serialize_tensor(tensor).numpy(), check)
    return check
