"""Why a cell was traced again, in words."""

from __future__ import annotations

import reprlib
from collections.abc import Hashable, Sequence
from typing import Any

import tensorflow as tf

from .capture import Captured, Kind
from .nests import is_nest
from .program import Options, Program

__all__ = ["FIRST_RUN", "FORGOTTEN", "why_new_arguments", "why_new_program"]

FIRST_RUN = "first run"
FORGOTTEN = "its last trace was forgotten: too many other cells have run since"


def why_new_program(last: Program, captured: Captured, options: Options) -> str:
    """What differs from the program that ran last."""
    for name in (*captured.key, *last.names):
        now, before = captured.key.get(name), last.names.get(name)
        if now != before:
            return _change(name, captured, last, now, before)
    if options != last.options:
        return "its results are combined in another way"
    return FORGOTTEN


def why_new_arguments(program: Program, captured: Captured) -> str:
    """What differs from the arguments of the last run."""
    pairs = zip(captured.owners, captured.signature, program.signature, strict=True)
    for name, now, before in pairs:
        if now != before:
            return f"`{name}` is now {_shape(now)}, was {_shape(before)}"
    return FORGOTTEN


def _change(name: str, captured: Captured, last: Program, now: Hashable, before: Hashable) -> str:
    label = _label(name)
    if before is None:
        return f"{label} is new"
    if now is None:
        return f"{label} is gone"
    if _is_object(now) and _is_object(before):
        return f"{label} is another {_noun(captured.closed.get(name))} now"
    is_now = _describe(captured.closed.get(name), now)
    was = _describe(last.closed.get(name), before)
    if is_now == was:
        return f"{label} has changed"
    return f"{label} is now {is_now}, was {was}"


def _label(name: str) -> str:
    inner, _, function = name.partition(" in ")
    return f"`{inner}`, which `{function}` reads," if function else f"`{inner}`"


def _is_object(key: Hashable) -> bool:
    return isinstance(key, tuple) and isinstance(key[0], Kind) and isinstance(key[1], int)


def _noun(value: Any) -> str:
    return "function" if callable(value) and hasattr(value, "__code__") else type(value).__name__


def _describe(value: Any, key: Hashable) -> str:
    if isinstance(key, Kind):
        return key.value
    if isinstance(key, tuple) and key and key[0] is Kind.NEST:
        return "a nest with tensors"
    if is_nest(value) or (isinstance(key, tuple) and not _is_object(key)):
        return reprlib.repr(value)
    return f"a {_noun(value)}"


def _shape(signature: Hashable) -> str:
    """A dtype and shape as `float32[8, 3]`."""
    if isinstance(signature, tuple) and len(signature) == 2 and isinstance(signature[0], tf.DType):
        dtype, shape = signature
        return f"{dtype.name}{_sizes(shape)}"
    if isinstance(signature, tuple):
        each = list(dict.fromkeys(_shape(part) for part in signature))
        return f"{', '.join(each)} per replica"
    return str(signature)


def _sizes(shape: Any) -> str:
    if shape.rank is None:
        return "[...]"
    sizes: Sequence[int | None] = shape.as_list()
    return f"[{', '.join('?' if size is None else str(size) for size in sizes)}]"
