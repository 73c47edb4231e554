"""Warnings about models and variables that a cell takes from a connection that is closed."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping
from typing import Any

from tpunb._util.attributes import attribute
from tpunb.cells.reading.source import StepSource
from tpunb.errors import TpuWarning
from tpunb.tensorflow.cells.cell_variables import owners_of, variables_of
from tpunb.tensorflow.checks.fit_notes import any_is_closed, is_closed

_warned: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""The objects that a warning has named, by their `id`. Variables have no hash."""


def warn_of_closed_connections(
    cell: StepSource, values: Mapping[str, Any], namespace: Mapping[str, Any], strategy: Any
) -> None:
    """Warn once of objects whose variables belong to a connection that is closed.

    Args:
        cell: The cell, which is about to be traced.
        values: The values of the names that the cell reads.
        namespace: The notebook's names.
        strategy: The strategy of the present connection.
    """
    if not any_is_closed():
        return
    names = []
    for name, owner in owners_of(values, namespace).items():
        if _warned.get(id(owner)) is owner or not _is_of_closed(owner, strategy):
            continue
        _warned[id(owner)] = owner
        names.append(f"`{name}`")
    if not names:
        return
    belong, their, them = (
        ("belongs", "its", "it") if len(names) == 1 else ("belong", "their", "them")
    )
    warnings.warn_explicit(
        f"{', '.join(names)} {belong} to a connection that is closed. A real TPU loses {their} "
        f"variables when you connect again. Make {them} again inside of `with strategy.scope():`.",
        TpuWarning,
        cell.filename,
        1,
        registry={},
    )


def _is_of_closed(owner: Any, strategy: Any) -> bool:
    """Return whether variables of an object belong to the strategy of a closed connection."""
    strategies = [attribute(v, "distribute_strategy", None) for v in variables_of(owner)]
    return any(other is not strategy and is_closed(other) for other in strategies)
