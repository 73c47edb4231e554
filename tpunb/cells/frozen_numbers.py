"""Random numbers that Python draws while a cell is traced: one for all replicas and runs."""

from __future__ import annotations

import ast
import random
import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from tpunb.errors import TpuWarning

from .source import StepSource

__all__ = ["warn_of_frozen_numbers"]

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


def warn_of_frozen_numbers(cell: StepSource, namespace: Mapping[str, Any]) -> None:
    """Warns of calls that draw a random number by Python or NumPy, once for each line.

    Args:
        cell: The cell that is being traced.
        namespace: The notebook's.
    """
    registry: dict[Any, Any] = {}  # of this trace: the next one draws other numbers
    for node in (inner for statement in cell.body for inner in ast.walk(statement)):
        if isinstance(node, ast.Call) and _draws(_value(node.func, namespace)):
            warnings.warn_explicit(
                f"`{ast.unparse(node.func)}` draws while the cell is traced: all replicas and all "
                "runs get the same numbers. Use `tf.random.normal` or `tf.random.uniform`.",
                TpuWarning,
                cell.filename,
                node.lineno,
                registry=registry,
            )


def _draws(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    return isinstance(owner, _GENERATORS) and getattr(function, "__name__", "") != "seed"


def _value(node: ast.expr, namespace: Mapping[str, Any]) -> Any:
    """What a dotted name stands for; None for all else. Only modules and generators are read."""
    if isinstance(node, ast.Name):
        return namespace.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    owner = _value(node.value, namespace)
    is_plain = isinstance(owner, (ModuleType, *_GENERATORS))
    return getattr(owner, node.attr, None) if is_plain else None
