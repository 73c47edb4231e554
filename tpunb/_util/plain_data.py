"""Plain data as bytes: numbers, texts, bytes, arrays of NumPy, and lists, sets and dicts of these.

What is read back has no types but these, so that data from a process that is not trusted cannot
bring code or methods of its own.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

_KIND = "kind"
_PLAIN = (bool, int, float, str, type(None))


def packed(value: Any) -> str:
    """Return a text that `unpacked` reads. An object of another type becomes the name of its type.

    Arrays of TensorFlow and of JAX become arrays of NumPy, and tuples become lists.
    """
    return json.dumps(_encoded(value))


def unpacked(text: str | bytes) -> Any:
    """Return the value in a text that `packed` has written.

    Raises:
        ValueError: The text is of another kind.
    """
    return json.loads(text, object_hook=_decoded)


def _encoded(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Mapping):
        items = [[_encoded(key), _encoded(each)] for key, each in value.items()]
        return {_KIND: "dict", "of": items}
    if isinstance(value, AbstractSet):
        return {_KIND: "set", "of": [_encoded(each) for each in value]}
    if isinstance(value, list | tuple):
        return [_encoded(each) for each in value]
    if isinstance(value, bytes):
        return {_KIND: "bytes", "of": base64.b64encode(value).decode()}
    try:
        array = np.asarray(value)
        if array.dtype.kind == "V":  # bfloat16 and other types that only ml_dtypes knows
            array = array.astype("float32")
        file = io.BytesIO()
        np.save(file, array, allow_pickle=False)
    except Exception:  # whatever an object of any type raises
        return {_KIND: "other", "of": type(value).__name__}
    return {_KIND: "array", "of": base64.b64encode(file.getvalue()).decode()}


class Other(str):
    """The name of the type of an object that is not plain data."""

    __slots__ = ()


def _decoded(value: dict[str, Any]) -> Any:
    match value.get(_KIND):
        case "dict":
            return {_hashable(key): each for key, each in value["of"]}
        case "set":
            return {_hashable(each) for each in value["of"]}
        case "bytes":
            return base64.b64decode(value["of"])
        case "array":
            file = io.BytesIO(base64.b64decode(value["of"]))
            array = np.load(file, allow_pickle=False)
            return array if array.shape else array[()]
        case "other":
            return Other(value["of"])
    raise ValueError("it is not packed data")


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
