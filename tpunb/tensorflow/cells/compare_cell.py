"""The step of a cell on all replicas, compared with the same step on one replica."""

from __future__ import annotations

import functools
from typing import Any

from tpunb.cells.reading.cell_errors import line_in
from tpunb.compiler.ask.verdict import reporting
from tpunb.tensorflow.cells.cell_step import CellStep
from tpunb.tensorflow.cells.open_batches import silent
from tpunb.tensorflow.checks.compare import compared_with_one
from tpunb.tensorflow.checks.replica_comparison import ReplicaComparison
from tpunb.tensorflow.checks.rule_check import CheckReport
from tpunb.tensorflow.checks.trial_batches import GlobalBatch

_NO_DATA = (
    "The cell takes no batch: name its data with -d, or give it a per-replica value, as from "
    "next(iterator)."
)
_REFUSED = "A TPU refuses the cell, so it was not run."


def with_comparison(report: CheckReport, step: CellStep) -> CheckReport:
    """Return a report completed by a comparison of the cell's gradients with one replica's.

    Args:
        report: The report of a check of the step.
        step: The step, whose batch is bound.

    Raises:
        Exception: Any error that the cell raises.
    """
    replicas = int(step.cache.strategy.num_replicas_in_sync)
    if not report.ok:
        return report.compared(ReplicaComparison(replicas, None, _REFUSED))
    return report.compared(_compared(step), functools.partial(line_in, step.cell))


def _compared(step: CellStep) -> ReplicaComparison:
    cache = step.cache
    traced, captured = step.ready_cell()
    replicas = int(cache.strategy.num_replicas_in_sync)
    if not GlobalBatch(captured.arguments, replicas).is_distributed:
        return ReplicaComparison(replicas, None, _NO_DATA)

    def compared() -> Any:
        # The check has shown what the cell prints.
        with reporting(None) as say, silent():
            return compared_with_one(traced.replica, captured.arguments, cache.strategy, say)

    return cache.guarded(traced, captured, compared)  # type: ignore[no-any-return]
