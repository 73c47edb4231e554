"""Why a cell was traced again, as text."""

from __future__ import annotations

import reprlib
from collections.abc import Hashable, Sequence
from types import CodeType
from typing import Any

import tensorflow as tf

from .capture import Captured, CaptureKind
from .dependency_guards import MISSING, Change, is_plain
from .nests import is_nest
from .program import Program
from .settings import OutputOptions

__all__ = ["EVICTED", "FIRST_RUN", "why_new_arguments", "why_new_program"]

FIRST_RUN = "first run"
EVICTED = "its last trace was evicted: too many other cells have run since"


def why_new_program(last: Program, captured: Captured, options: OutputOptions) -> str:
    """What differs from the program that ran last."""
    for name in (*captured.key, *last.names):
        now, before = captured.key.get(name), last.names.get(name)
        if now != before:
            return _change(name, captured, last, now, before)
    if options != last.options:
        return "its results are combined in another way"
    if change := last.dependencies.change():
        return _why_changed(change)
    return EVICTED


def why_new_arguments(program: Program, captured: Captured) -> str:
    """What differs from the arguments of the last run."""
    pairs = zip(captured.owners, captured.signature, program.signature, strict=True)
    for name, now, before in pairs:
        if now != before:
            return f"`{name}` is now {_shape(now)}, was {_shape(before)}"
    return EVICTED


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


def _why_changed(change: Change) -> str:
    """What a trace depended on, and what has become of it."""
    if isinstance(change.now, CodeType):
        return f"{change.subject} has been edited"
    if change.before is MISSING:
        return f"{change.subject} is new"
    if change.now is MISSING:
        return f"{change.subject} is gone"
    now, before = _shown(change.now), _shown(change.before)
    if now != before:
        return f"{change.subject} is now {now}, was {before}"
    if is_plain(change.now) or is_nest(change.now):
        return f"{change.subject} has changed"
    return f"{change.subject} is another {_noun(change.now)} now"


def _shown(value: Any) -> str:
    if value is MISSING:
        return "nothing"
    if is_plain(value) or is_nest(value):
        return reprlib.repr(value)
    return f"a {_noun(value)}"


def _label(name: str) -> str:
    inner, _, function = name.partition(" in ")
    return f"`{inner}`, which `{function}` reads," if function else f"`{inner}`"


def _is_object(key: Hashable) -> bool:
    return isinstance(key, tuple) and isinstance(key[0], CaptureKind) and isinstance(key[1], int)


def _noun(value: Any) -> str:
    return "function" if callable(value) and hasattr(value, "__code__") else type(value).__name__


def _describe(value: Any, key: Hashable) -> str:
    if isinstance(key, CaptureKind):
        return key.value
    if isinstance(key, tuple) and key and key[0] is CaptureKind.NEST:
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
