"""Traces of cells that are not run: for a check, for a compiler, and before a loop of steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpunb.cells.capture import Captured, capture
from tpunb.cells.cell_errors import mark
from tpunb.cells.open_batches import opened, silent
from tpunb.cells.optimizers import make_ready
from tpunb.cells.settings import OutputOptions
from tpunb.cells.source import StepSource
from tpunb.cells.trace_cache import TraceCache
from tpunb.cells.traced_cell import TracedCell
from tpunb.virtual.graph.traced_function import TracedFunction
from tpunb.virtual.rule_check import refuse_other_strategies, with_fixed
from tpunb.virtual.strict.examination import enforce_open_sizes, observing
from tpunb.virtual.strict.open_sizes import RULE
from tpunb.virtual.strict.traced_anew import traced_anew

Types = Mapping[str, Sequence[Any]]
"""The types of a batch whose sizes are not fixed, by the cell's names."""


def functions_to_check(
    cache: TraceCache,
    cell: StepSource,
    namespace: dict[str, Any],
    bound: Mapping[str, Any],
    types: Types,
) -> list[TracedFunction]:
    """Return a cell's replica functions, for batches of any size if `types` gives them.

    Args:
        cache: The traced cells of the strategy, to which nothing is added.
        cell: The cell.
        namespace: The notebook's names.
        bound: Values that hide the notebook's.
        types: The types of a batch whose sizes are not fixed; empty if they are fixed.

    Raises:
        CheckError: The strategy is not a virtual TPU's.
        Exception: Any error that the cell raises when it is traced.
    """
    with observing() as fixed:
        _trace(cache, cell, namespace, bound)
    if not types:
        return fixed
    with observing() as functions, silent():
        _trace(cache, cell, namespace, bound, lambda captured: opened(captured, types))
    return with_fixed(functions, fixed)


def functions_to_compile(
    cache: TraceCache,
    cell: StepSource,
    namespace: dict[str, Any],
    bound: Mapping[str, Any],
    arguments: Callable[[Captured], list[Any]] | None = None,
) -> tuple[Captured, list[TracedFunction]]:
    """Return the values that a cell captures, and its replica functions as XLA gets them.

    Args:
        cache: The traced cells of the strategy, to which nothing is added.
        cell: The cell.
        namespace: The notebook's names.
        bound: Values that hide the notebook's.
        arguments: Returns the values to trace with instead of the captured arguments.
    """
    with observing(written=False) as functions, traced_anew():
        captured = _trace(cache, cell, namespace, bound, arguments)
    return captured, functions


def ready_cell(
    cache: TraceCache, cell: StepSource, namespace: dict[str, Any], bound: Mapping[str, Any]
) -> tuple[TracedCell, Captured]:
    """Return a cell that is ready to be traced, and its captured values.

    A trace that never runs would leave an optimizer half built that it makes the variables of.

    Args:
        cache: The traced cells of the strategy, to which nothing is added.
        cell: The cell.
        namespace: The notebook's names.
        bound: Values that hide the notebook's.

    Raises:
        CheckError: The strategy is not a virtual TPU's.
    """
    refuse_other_strategies(cache.strategy)
    captured = capture(cell, namespace, bound, cache.strategy)
    make_ready(cell, captured, namespace, cache.strategy)
    return TracedCell(cell, namespace, captured, OutputOptions(), cache.printer), captured


def refuse_open_sizes(
    cache: TraceCache,
    cell: StepSource,
    namespace: dict[str, Any],
    bound: Mapping[str, Any],
    types: Types,
) -> None:
    """Refuse a cell that a TPU does not compile for batches whose sizes are not fixed.

    Raises:
        tf.errors.InvalidArgumentError: A TPU refuses the cell.
    """
    rules = getattr(cache.strategy.extended, "strictness", None)
    if rules is None or not rules.holds(RULE):
        return
    with silent():  # the cell is traced again when it runs
        functions = functions_to_check(cache, cell, namespace, bound, types)
    try:
        for function in functions:
            enforce_open_sizes(function, rules)
    except tf.errors.InvalidArgumentError as error:
        mark(error, cell, functions[0].graph)
        raise


def _trace(
    cache: TraceCache,
    cell: StepSource,
    namespace: dict[str, Any],
    bound: Mapping[str, Any],
    arguments: Callable[[Captured], list[Any]] | None = None,
) -> Captured:
    """Trace a cell and remember nothing; observers of traces see its replica functions."""
    traced, captured = ready_cell(cache, cell, namespace, bound)
    if arguments is not None:
        captured = dataclasses.replace(captured, arguments=arguments(captured))
    try:
        traced.trace(captured)
    except Exception as error:
        traced.raise_explained(error)
    return captured
