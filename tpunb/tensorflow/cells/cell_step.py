"""One step of a cell, with the names that it reads, and its traces that never run.

A check, a compiler and the beginning of a loop of steps trace a cell without running it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpunb.cells.reading.cell_errors import mark
from tpunb.cells.reading.source import StepSource
from tpunb.cells.settings import OutputOptions
from tpunb.tensorflow.cells.capture import Captured, capture
from tpunb.tensorflow.cells.cell_variables import owners_of
from tpunb.tensorflow.cells.open_batches import Types, opened, silent
from tpunb.tensorflow.cells.optimizers import make_ready
from tpunb.tensorflow.cells.trace_cache import TraceCache
from tpunb.tensorflow.cells.traced_cell import TracedCell
from tpunb.tensorflow.checks.rule_check import refuse_other_strategies, with_fixed
from tpunb.tensorflow.virtual.graph.traced_function import TracedFunction
from tpunb.tensorflow.virtual.strict.examination import enforce_open_sizes, observing
from tpunb.tensorflow.virtual.strict.open_sizes import RULE
from tpunb.tensorflow.virtual.strict.traced_anew import traced_anew


@dataclasses.dataclass(frozen=True, eq=False)
class CellStep:
    """A step of a cell or a function, on the replicas of one strategy.

    Its traces add nothing to the traced cells. They raise `CheckError` if the strategy is not a
    virtual TPU's, and any error that the cell raises when it is traced.

    Attributes:
        cache: The traced cells of the strategy.
        cell: The cell or the function.
        namespace: The namespace of the cell's names; it does not change.
        bound: Values that hide the notebook's: the batch, and the values that steps pass on.
    """

    cache: TraceCache
    cell: StepSource
    namespace: dict[str, Any]
    bound: dict[str, Any]

    def find(
        self, options: OutputOptions, checked: TracedCell | None
    ) -> tuple[TracedCell, Captured, str | None]:
        """Return the traced cell that fits, its values, and why it traces: `TraceCache.find`."""
        return self.cache.find(self.cell, options, self.namespace, self.bound, checked)

    def captured(self) -> Captured:
        """Return the values that the cell captures, with built optimizers.

        A trace that never runs would leave an optimizer half built that it makes the variables of.
        """
        captured = capture(self.cell, self.namespace, self.bound, self.cache.strategy)
        make_ready(self.cell, captured, self.namespace)
        return captured

    def owners(self) -> dict[str, Any]:
        """Return the objects with variables that the cell uses, by their names."""
        names = (*self.cell.names.reads, *self.cell.later)
        values = {name: self.bound.get(name, self.namespace.get(name)) for name in names}
        known = {name: value for name, value in values.items() if value is not None}
        return owners_of(known, self.namespace)

    def ready_cell(self) -> tuple[TracedCell, Captured]:
        """Return the cell, ready to be traced, and its captured values."""
        refuse_other_strategies(self.cache.strategy)
        captured = self.captured()
        printer = self.cache.printer
        return TracedCell(self.cell, self.namespace, captured, OutputOptions(), printer), captured

    def functions_to_check(self, types: Types) -> list[TracedFunction]:
        """Return the cell's replica functions, for batches of any size if `types` gives them.

        Args:
            types: The types of a batch whose sizes are not fixed; empty if they are fixed.
        """
        with observing() as fixed:
            self._trace()
        if not types:
            return fixed
        with observing() as functions, silent():
            self._trace(lambda captured: opened(captured, types))
        return with_fixed(functions, fixed)

    def functions_to_compile(
        self, arguments: Callable[[Captured], list[Any]] | None = None
    ) -> tuple[Captured, list[TracedFunction]]:
        """Return the captured values, and the cell's replica functions as XLA gets them.

        Args:
            arguments: Returns the values to trace with instead of the captured arguments.
        """
        with observing(written=False) as functions, traced_anew():
            captured = self._trace(arguments)
        return captured, functions

    def refuse_open_sizes(self, types: Types) -> None:
        """Refuse a cell that a TPU does not compile for batches whose sizes are not fixed.

        Raises:
            tf.errors.InvalidArgumentError: A TPU refuses the cell.
        """
        rules = getattr(self.cache.strategy.extended, "strictness", None)
        if rules is None or not rules.holds(RULE):
            return
        with silent():  # the cell is traced again when it runs
            functions = self.functions_to_check(types)
        try:
            for function in functions:
                enforce_open_sizes(function, rules)
        except tf.errors.InvalidArgumentError as error:
            mark(error, self.cell, functions[0].graph)
            raise

    def _trace(self, arguments: Callable[[Captured], list[Any]] | None = None) -> Captured:
        """Trace the cell and remember nothing; observers of traces see its replica functions."""
        traced, captured = self.ready_cell()
        if arguments is not None:
            captured = dataclasses.replace(captured, arguments=arguments(captured))
        try:
            traced.trace(captured)
        except Exception as error:
            traced.raise_explained(error)
        return captured
