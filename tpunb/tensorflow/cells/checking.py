"""Checks whether a step of a cell would compile for a TPU, and run well, without running it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from tpunb.cells.reading.cell_errors import first_line, line_in
from tpunb.cells.reading.source import CellSource, above
from tpunb.errors.code_problems import Problem
from tpunb.tensorflow.cells.cell_step import CellStep
from tpunb.tensorflow.cells.open_batches import Types, open_batch
from tpunb.tensorflow.cells.steps import Steps
from tpunb.tensorflow.checks.rule_check import CheckReport, report
from tpunb.tensorflow.compiler.check import with_verdict
from tpunb.tensorflow.virtual.graph.traced_function import TracedFunction
from tpunb.tensorflow.virtual.strict.examination import examine


def check_step(steps: Steps) -> CheckReport:
    """Check a step of a run with its first batch, which the first step still gets.

    Raises:
        CheckError: The strategy is not a virtual TPU's.
        Exception: Any error that the cell raises when it is traced.
    """
    steps.bind_first_batch()
    return _checked(steps.step, open_batch(steps.batches, steps.names))


def _checked(step: CellStep, types: Types) -> CheckReport:
    """Check a step, or the part of its cell above an error."""
    cell = step.cell
    try:
        functions = step.functions_to_check(types)
        examinations = [examine(function) for function in functions]
    except Exception as error:
        # Above the line that cannot be traced, there may be code that a TPU refuses.
        lines: Sequence[int] = getattr(error, "tpunb_lines", ())
        part = above(cell, lines[-1]) if lines and isinstance(cell, CellSource) else None
        if part is None:
            raise
        refused = _checked(dataclasses.replace(step, cell=part), types)
        if refused.ok:
            raise
        reason = getattr(error, "message", None) or first_line(error)
        fix = getattr(error, "fix", "") or "Fix this line first."
        problem = Problem("trace", reason, fix, lines[-1])
        return dataclasses.replace(refused, errors=(*refused.errors, problem))
    choose = functools.partial(line_in, cell)
    by_rules = report(examinations, line_of=choose)
    several = step.cache.strategy.num_replicas_in_sync > 1
    by_rules = dataclasses.replace(by_rules, has_gradients=several and _differentiates(functions))
    return with_verdict(by_rules, examinations, step.cache.strategy, choose)


def _differentiates(functions: Sequence[TracedFunction]) -> bool:
    """Return whether a tape computes gradients, by the names that it gives to its nodes."""
    nodes = (node for function in functions for node in function.definition.node_def)
    return any("gradient_tape/" in node.name for node in nodes)
