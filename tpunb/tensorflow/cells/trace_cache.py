"""Traced cells of one strategy: found, run and remembered."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from tpunb._util.logs import logger
from tpunb.cells.reading.guards import is_plain
from tpunb.cells.reading.source import StepSource
from tpunb.cells.settings import OutputOptions
from tpunb.tensorflow.cells.capture import Captured, CaptureKind, capture
from tpunb.tensorflow.cells.outputs import CellOutputs
from tpunb.tensorflow.cells.printing import Printer
from tpunb.tensorflow.cells.trace_reasons import (
    EVICTED,
    FIRST_RUN,
    REPLACED,
    why_new_arguments,
    why_new_trace,
)
from tpunb.tensorflow.cells.traced_cell import TracedCell
from tpunb.tensorflow.virtual.runtime.stoppable import StoppableCalls

_log = logger("cells")

_MOST_TRACED = 32
"""The largest number of traced cells that are kept; each takes one to five MiB."""

_MOST_GONE = 1024
"""The largest number of cells whose missing trace has a remembered reason."""

_T = TypeVar("_T")


class TraceCache:
    """The traced cells of one strategy: found, run and remembered.

    Args:
        strategy: A `tf.distribute.Strategy`.
        calls: Runs the cells' functions, so that interrupts end them.
        printer: Collects what the replicas print.

    Attributes:
        strategy: The strategy.
        calls: The argument `calls`.
        printer: The argument `printer`.
        traces: The number of times that a cell has been traced.
    """

    def __init__(self, strategy: Any, calls: StoppableCalls, printer: Printer) -> None:
        self.strategy, self.calls, self.printer = strategy, calls, printer
        self.traces = 0
        self._traced: list[TracedCell] = []  # the cell that ran last is at the end
        self._uncollected = 0
        self._gone: dict[int, str] = {}  # by hash of a cell's text: why its trace is gone

    def find(
        self,
        cell: StepSource,
        options: OutputOptions,
        namespace: dict[str, Any],
        bound: Mapping[str, Any],
        checked: TracedCell | None = None,
    ) -> tuple[TracedCell, Captured, str | None]:
        """Return the traced cell that fits, and its captured values.

        Args:
            cell: The cell.
            options: How results are combined.
            namespace: The notebook's names.
            bound: Values that hide the notebook's.
            checked: A traced cell whose dependencies are known to be unchanged.

        Returns:
            The traced cell, the values, and the reason why its next run traces; None if it does
            not trace.
        """
        last = next((traced for traced in reversed(self._traced) if traced.cell is cell), None)
        if last and last.shortcut and last.options == options and last.namespace is namespace:
            same = last.shortcut.capture(namespace, bound)
            if same is not None and (last is checked or not last.dependencies.change()):
                return last, same, None
        captured = capture(cell, namespace, bound, self.strategy)
        traced = self._fitting(cell, options, namespace, captured, checked)
        if traced is None:
            reason = self._gone.get(hash(cell.text), FIRST_RUN)
            if last is not None:
                reason = why_new_trace(last, captured, options)
            self._forget_replaced(cell, captured)
            traced = TracedCell(cell, namespace, captured, options, self.printer)
        elif traced.has_trace_for(captured):
            return traced, captured, None
        else:
            reason = why_new_arguments(traced, captured)
        _log.debug("%s has to be traced: %s", cell.filename, reason)
        return traced, captured, reason

    def _fitting(
        self,
        cell: StepSource,
        options: OutputOptions,
        namespace: dict[str, Any],
        captured: Captured,
        checked: TracedCell | None,
    ) -> TracedCell | None:
        """Return the traced cell that ran last with these options and dependencies."""
        for traced in reversed(self._traced):
            if (
                traced.cell is cell
                and traced.namespace is namespace
                and traced.options == options
                and traced.names == captured.key
                and (traced is checked or not traced.dependencies.change())
            ):
                return traced
        return None

    def run(self, traced: TracedCell, captured: Captured) -> CellOutputs:
        """Run a traced cell once, and remember it."""
        before = len(traced.records)
        try:
            return self.guarded(traced, captured, lambda: traced.run(captured))
        finally:
            self.traces += len(traced.records) - before
            self._remember(traced, captured)

    def guarded(self, traced: TracedCell, captured: Captured, call: Callable[[], _T]) -> _T:
        """Call a function of a traced cell, and explain its errors by the cell's lines."""
        try:
            with self.calls:
                return call()
        except Exception as error:
            traced.raise_explained(error, captured)
        finally:
            self.printer.show()

    def clear(self) -> None:
        """Forget every traced cell."""
        self._traced.clear()
        self._gone.clear()

    def _remember(self, traced: TracedCell, captured: Captured) -> None:
        if not traced.records:  # its trace has failed
            return
        shortcut = traced.shortcut
        if (
            shortcut is not None
            and captured.signature is shortcut.signature
            and self._traced[-1:] == [traced]
        ):
            return  # it has run again, as it did the last time
        changed = shortcut is None or shortcut.signature != captured.signature
        if changed and traced.has_trace_for(captured):  # otherwise its new trace has failed
            traced.shortcut = captured.shortcut(traced.cell)
        if traced in self._traced:
            self._traced.remove(traced)
        self._traced.append(traced)
        while len(self._traced) > _MOST_TRACED:
            self._forget(self._traced[0], EVICTED)

    def _forget_replaced(self, cell: StepSource, captured: Captured) -> None:
        """Forget a cell's traces that hold an object which the notebook has replaced.

        They would keep the variables of a former model in the memory of the cores.
        """
        for traced in [traced for traced in self._traced if traced.cell is cell]:
            if _was_replaced(traced, captured.key):
                self._forget(traced, REPLACED)

    def _forget(self, traced: TracedCell, reason: str) -> None:
        """Forget a traced cell, and remember the reason."""
        self._traced.remove(traced)
        text = hash(traced.cell.text)
        self._gone.pop(text, None)
        self._gone[text] = reason
        if len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]
        self._uncollected += 1
        if self._uncollected >= _MOST_TRACED:
            # TensorFlow's graphs are in cycles of references. Python's collector looks at all
            # objects only when their number has grown by a quarter, after hundreds of cells.
            self._uncollected = 0
            gc.collect()


def _was_replaced(traced: TracedCell, now: Mapping[str, Hashable]) -> bool:
    """Return whether a traced cell holds an object that the notebook has replaced by another."""
    change = traced.dependencies.change()
    if change is not None and not is_plain(change.before):
        return True
    return any(
        isinstance(key, tuple) and key[0] is CaptureKind.OBJECT and now.get(name) != key
        for name, key in traced.names.items()
    )
