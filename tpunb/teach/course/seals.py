"""Seals of results: a check recognises a right answer, and its reader cannot read it."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

_DIGITS = 6
"""The significant digits of a number that count."""


def seal(value: Any, salt: str) -> str:
    """Return the seal of a value, to write into a check instead of the value.

    Equal numbers of different types have the same seal, such as `8`, `8.0` and a tensor with 8.

    Args:
        value: A number, a text, or a list, tuple, set or dict of them.
        salt: A text that makes the seals of equal values differ, such as the answer's name.
    """
    text = f"{salt}={plain_text_of(value)}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def plain_text_of(value: Any) -> str:
    """Return a text that equal values share, whatever their types are."""
    if isinstance(value, Mapping):
        pairs = sorted(f"{plain_text_of(k)}: {plain_text_of(v)}" for k, v in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, AbstractSet):
        return f"{{{', '.join(sorted(map(plain_text_of, value)))}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(plain_text_of, value))}]"
    if isinstance(value, (str, bool, np.bool_)):
        return repr(value if isinstance(value, str) else bool(value))
    return f"{as_number(value) + 0.0:.{_DIGITS}g}"  # + 0.0, because -0.0 equals 0.0


def as_number(value: Any) -> float:
    """Return a number of Python, NumPy, TensorFlow or JAX as a float.

    Raises:
        TypeError: It is not a single number.
    """
    if isinstance(value, numbers.Number) and not isinstance(value, complex):
        return float(value)  # type: ignore[arg-type]  # a Fraction or a Decimal, for example
    array = np.asarray(value)
    if array.shape != () or array.dtype.kind not in "iufV":
        raise TypeError(f"{type(value).__name__} is not a single number")
    return float(array)
