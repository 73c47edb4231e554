"""The functions and classes that a cell defines, as the notebook's own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from tpunb._util.code_names import mentions
from tpunb.cells.reading.source import PROVIDED, StepSource


def defined_by(
    cell: StepSource, namespace: dict[str, Any], plain: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a cell's functions and classes, whose globals are the notebook's.

    Definitions that read a name which stays in the cell are left out.

    Args:
        cell: The cell.
        namespace: The notebook's names; they do not change.
        plain: The cell's values without tensors.
    """
    definitions, assigned = cell.definitions, set(cell.names.assigned)
    # A function must not read these names if it is to work in the notebook.
    unbound = (assigned | set(PROVIDED)) - plain.keys() - definitions.keys()
    before = -1
    while before != len(unbound):
        before = len(unbound)
        unbound |= {n for n, code in definitions.items() if unbound & {*mentions(code).globals}}
    wanted = {name: code for name, code in definitions.items() if name not in unbound}
    return _executed(wanted, namespace, plain)


def _executed(
    definitions: Mapping[str, Any], namespace: dict[str, Any], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Execute definitions among the notebook's names, and leave these names as they were.

    The heads of definitions and the bodies of classes may read the cell's other `values`.
    Definitions that need a name that does not exist are left out.
    """
    missing = object()
    touched = (*definitions, *values, "__builtins__")
    before = {name: namespace.get(name, missing) for name in touched}
    defined: dict[str, Any] = {}
    try:
        namespace.update(values)
        for name, code in definitions.items():
            with contextlib.suppress(NameError):
                exec(code, namespace)
                defined[name] = namespace[name]
    finally:
        for name, value in before.items():
            if value is missing:
                namespace.pop(name, None)
            else:
                namespace[name] = value
    return defined
