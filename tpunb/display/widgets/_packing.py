"""Columns of numbers as one buffer, which a front end reads without parsing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["pack"]

_ALIGNMENT = 8
_TYPES = {
    "u1": "Uint8Array",
    "u2": "Uint16Array",
    "u4": "Uint32Array",
    "i1": "Int8Array",
    "i2": "Int16Array",
    "i4": "Int32Array",
    "f4": "Float32Array",
    "f8": "Float64Array",
}


def pack(columns: Mapping[str, npt.NDArray[Any]]) -> tuple[dict[str, Any], bytes]:
    """Packs arrays for `unpack` in `common.js`.

    Args:
        columns: Arrays by name, of at most 8 bytes an element. 64-bit integers and
            booleans have no typed array that adds up like numbers: they are sent
            as float64 and uint8.

    Returns:
        Where each column is, as JSON: name to `[type, offset, length]`; and the
        buffer, in which each column is aligned.
    """
    layout: dict[str, Any] = {}
    parts: list[bytes] = []
    offset = 0
    for name, column in columns.items():
        array = np.ascontiguousarray(_sendable(column))
        data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        layout[name] = [_TYPES[array.dtype.str[1:]], offset, int(array.size)]
        padding = -len(data) % _ALIGNMENT
        parts.append(data + bytes(padding))
        offset += len(data) + padding
    return layout, b"".join(parts)


def _sendable(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if column.dtype == bool:
        return column.astype(np.uint8)
    if column.dtype.kind in "iu" and column.dtype.itemsize == 8:
        return column.astype(np.float64)
    return column
