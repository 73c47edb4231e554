"""The refusal of cells that call JAX, which cannot compute with TensorFlow's tensors."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from tpunb._util.code_names import value_of
from tpunb.cells.reading.source import StepSource
from tpunb.errors import CellError
from tpunb.errors.jax_in_cells import JAX_IN_CELL, WAY_FOR_JAX

_PACKAGES = frozenset({"jax", "jaxlib"})


def refuse_jax_calls(cell: StepSource, namespace: Mapping[str, Any]) -> None:
    """Refuse a cell whose lines call JAX.

    Raises:
        CellError: A line calls JAX.
    """
    imported = _imported(cell)
    for node in cell.nodes:
        if isinstance(node, ast.Call) and _is_of_jax(node.func, imported, namespace):
            raise CellError(
                f"Line {node.lineno} calls `{ast.unparse(node.func)}`. {JAX_IN_CELL}",
                fix=WAY_FOR_JAX,
            )


def is_jax_array(value: Any) -> bool:
    """Return whether a value is an array of JAX, without an import of JAX."""
    return _package(type(value)) in _PACKAGES and hasattr(value, "__array__")


def _imported(cell: StepSource) -> set[str]:
    """Return the names that the cell itself imports from JAX."""
    names = set()
    for node in cell.nodes:
        if isinstance(node, ast.ImportFrom) and _top(node.module) in _PACKAGES:
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            of_jax = [alias for alias in node.names if _top(alias.name) in _PACKAGES]
            names |= {alias.asname or _top(alias.name) for alias in of_jax}
    return names


def _is_of_jax(function: ast.expr, imported: set[str], namespace: Mapping[str, Any]) -> bool:
    root = function
    while isinstance(root, ast.Attribute):
        root = root.value
    if isinstance(root, ast.Name) and root.id in imported:
        return True
    value = value_of(function, namespace)
    # `jax.jit` gives the user's function a type of jaxlib and leaves its module as it is.
    return not _PACKAGES.isdisjoint((_package(value), _package(type(value))))


def _package(value: Any) -> str:
    return _top(getattr(value, "__module__", None))


def _top(module: Any) -> str:
    return str(module).partition(".")[0]
