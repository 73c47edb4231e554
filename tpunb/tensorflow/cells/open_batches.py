"""Batches of a cell whose size is not fixed, which a TPU gets as bounded sizes.

A single step gets a batch that has been read, with its sizes. In a loop of steps, which a TPU runs
in one call, the sizes are the sizes in the dataset's type.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb.cells.batch import bound_to
from tpunb.cells.reading.nests import leaves
from tpunb.tensorflow.cells.batches import Batches
from tpunb.tensorflow.cells.capture import Captured

Types = Mapping[str, Sequence[Any]]
"""The types of a batch whose sizes are not fixed, by the cell's names; empty if they are fixed."""


def silent() -> contextlib.AbstractContextManager[Any]:
    """Return a context for a second trace of a cell, whose output the first trace has shown."""
    return contextlib.redirect_stdout(io.StringIO())


def open_batch(batches: Batches | None, names: Sequence[str]) -> Types:
    """Return the types of a batch by the cell's names; nothing if its sizes are fixed.

    Args:
        batches: Where the batches come from.
        names: The cell's names for a batch, or its parts.
    """
    if batches is None or not batches.distributed:
        return {}
    spec = batches.iterator.element_spec
    if all(part.shape.is_fully_defined() for part in tf.nest.flatten(spec, expand_composites=True)):
        return {}
    return {name: list(leaves(part)) for name, part in bound_to(names, spec).items()}


def opened(captured: Captured, types: Types) -> list[Any]:
    """Return a cell's arguments, with types of open sizes for the arguments of the batch."""
    left = {name: iter(parts) for name, parts in types.items()}

    def of_type(owner: str, argument: Any) -> Any:
        part = next(left[owner], None) if owner in left else None
        specs = tf.nest.flatten(part, expand_composites=True)
        return specs[0] if specs and isinstance(specs[0], tf.TensorSpec) else argument

    return [
        of_type(owner, argument)
        for owner, argument in zip(captured.owners, captured.arguments, strict=True)
    ]
