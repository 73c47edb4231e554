"""The reasons why a cell has to be traced, in words."""

from __future__ import annotations

import reprlib
from collections.abc import Hashable
from types import CodeType
from typing import Any

import tensorflow as tf

from tpunb.cells.reading.guards import MISSING, is_plain
from tpunb.cells.reading.nests import is_nest
from tpunb.cells.settings import OutputOptions
from tpunb.tensorflow.cells.capture import Captured, CaptureKind
from tpunb.tensorflow.cells.traced_cell import TracedCell

FIRST_RUN = "first run"
EVICTED = "its last trace was evicted: too many other cells have run since"
REPLACED = "the notebook has replaced an object that its last trace held"


def why_new_trace(last: TracedCell, captured: Captured, options: OutputOptions) -> str:
    """Return the first difference from the traced cell that ran last."""
    for name in (*captured.key, *last.names):
        now, before = captured.key.get(name), last.names.get(name)
        if now != before:
            value = captured.closed.get(name)
            return _sentence(
                f"`{name}`", _of_key(before, last.closed.get(name)), _of_key(now, value), value
            )
    if options != last.options:
        return "its results are combined in another way"
    change = last.dependencies.change()
    if change is None:
        return EVICTED
    if change.now is change.before:
        return f"{change.subject} has changed in place"
    if isinstance(change.now, CodeType):
        return f"{change.subject} has been edited"
    return _sentence(change.subject, _shown(change.before), _shown(change.now), change.now)


def why_new_arguments(traced: TracedCell, captured: Captured) -> str:
    """Return the first difference from the arguments of the last run."""
    pairs = zip(captured.owners, captured.signature, traced.signature, strict=True)
    for name, now, before in pairs:
        if now != before:
            return f"`{name}` is now {_shape(now)}, was {_shape(before)}"
    return EVICTED


def _sentence(subject: str, before: str, now: str, value: Any) -> str:
    """Return a change as a sentence; its texts may be equal although the values differ."""
    if not before:
        return f"{subject} is new"
    if not now:
        return f"{subject} is gone"
    if now != before:
        return f"{subject} is now {now}, was {before}"
    if is_plain(value) or is_nest(value):
        return f"{subject} has changed"
    return f"{subject} is another {_noun(value)} now"


def _of_key(key: Hashable, value: Any) -> str:
    """Describe a captured value by its key, and a closed-over value by itself; empty for none."""
    if key is None:
        return ""
    if isinstance(key, CaptureKind):
        return key.value
    if isinstance(key, tuple) and key[:1] == (CaptureKind.NEST,) and not isinstance(key[1], int):
        return "a nest with tensors"
    return _shown(value)


def _shown(value: Any) -> str:
    if value is MISSING:
        return ""
    return reprlib.repr(value) if is_plain(value) or is_nest(value) else f"a {_noun(value)}"


def _noun(value: Any) -> str:
    return "function" if callable(value) and hasattr(value, "__code__") else type(value).__name__


def _shape(signature: Hashable) -> str:
    """Return a dtype and shape as `float32[8, 3]`."""
    if not isinstance(signature, tuple):
        return str(signature)
    if len(signature) != 2 or not isinstance(signature[0], tf.DType):
        shapes = list(dict.fromkeys(map(_shape, signature)))
        return f"{', '.join(shapes)} per replica"
    dtype, shape = signature
    sizes = ["..."] if shape.rank is None else ["?" if n is None else str(n) for n in shape]
    return f"{dtype.name}[{', '.join(sizes)}]"
