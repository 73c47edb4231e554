"""Warnings about variables whose copies differ after a cell has run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from tpunb.cells.reading.source import StepSource
from tpunb.errors import TpuWarning
from tpunb.tensorflow.cells.cell_variables import owners_of, plain_variable
from tpunb.tensorflow.virtual.copies.variable_copies import copies_of
from tpunb.tensorflow.virtual.replicate.divergence import Divergence


def warn_of_differing_copies(cell: StepSource, namespace: Mapping[str, Any], strategy: Any) -> None:
    """Warn once of each variable whose copies a cell has given different values.

    Args:
        cell: The cell, which has just run.
        namespace: The notebook's names.
        strategy: The strategy of the cell; only a virtual TPU records updates.
    """
    divergence = getattr(strategy.extended, "divergence", None)
    if not isinstance(divergence, Divergence):
        return
    for key, update in list(divergence.updates.items()):
        line = next((line.line for line in update.lines if line.file == cell.filename), None)
        copies = divergence.copies(key)
        if copies is None:
            del divergence.updates[key]
        elif line is not None and copies.differ():
            del divergence.updates[key]
            _warn(_name_of(key, cell, namespace) or update.name, cell, line)


def _name_of(key: str, cell: StepSource, namespace: Mapping[str, Any]) -> str | None:
    """Return the notebook's name of a variable; None for a variable of a model."""
    read = {name: namespace[name] for name in cell.names.reads if name in namespace}
    for name, owner in owners_of(read, namespace).items():
        copies = copies_of(getattr(plain_variable(owner), "_primary", None))
        if copies is not None and copies.key == key:
            return name
    return None


def _warn(name: str, cell: StepSource, line: int) -> None:
    warnings.warn_explicit(
        f"The copies of `{name}` now differ: each replica has set its own. Combine the values of "
        "the replicas first, as in `ctx.all_reduce('mean', x)`. If each replica needs its own "
        "value, make the variable with `synchronization=tf.VariableSynchronization.ON_READ`.",
        TpuWarning,
        cell.filename,
        cell.first_line(line),
        registry={},
    )
