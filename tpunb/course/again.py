"""Runs of a lesson's cells with other values for some of the notebook's names.

A check that runs an answer's cell again with other numbers sees whether the cell computes its
result. The notebook's names and the caches of its connection stay as they are.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.cells.cell_step import CellStep
from tpunb.cells.runner import CellRunner
from tpunb.cells.settings import RunSettings
from tpunb.cells.steps import Steps
from tpunb.course.cells import TpuCell, maker_of
from tpunb.notebook.ran_cells import RanCell
from tpunb.virtual.tensorflow.graph.function_def import COLLECTIVES, called_functions

_REPLICA_ID = re.compile(r"(?<![\w.])(?:ctx\.)?replica_id(?:_in_sync_group)?\b")
_OTHER_ID = "other_replica_id"


class Again:
    """Runs of cells with other values.

    Args:
        cells: The cells that have run, the latest at the end.
        namespace: The notebook's names.
        strategy: The strategy of the replicas.
        given: By name, the other values; a list has a value for each replica. `replica_id` gives
            the replicas other numbers.
    """

    def __init__(
        self,
        cells: Sequence[RanCell],
        namespace: Mapping[str, Any],
        strategy: Any,
        given: Mapping[str, Any],
    ) -> None:
        self._cells, self._strategy = cells, strategy
        self._given = {
            _OTHER_ID if name == "replica_id" else name: self._on_replicas(value, namespace, name)
            for name, value in given.items()
        }
        self._names = {**namespace, **self._given}
        self._made: set[str] = set(self._given)

    def run(self, cell: TpuCell) -> dict[str, Any]:
        """Run a cell, and return the names that it assigns."""
        with _silent(), self._ready(cell) as steps:
            steps.complete()
            return dict(steps.assigned)

    def collectives(self, cell: TpuCell) -> set[str]:
        """Return the operations of TensorFlow by which a cell's replicas exchange values.

        The cells that make the values that it reads count too.
        """
        return {op for each in self._cells_behind(cell, {}) for op in self._collectives_in(each)}

    def _cells_behind(self, cell: TpuCell, found: dict[str, TpuCell]) -> list[TpuCell]:
        """Return a cell and the `%%tpu_run` cells whose results reach it."""
        found[cell.body] = cell
        for name in sorted(cell.reads):
            maker = maker_of(self._cells, name)
            if maker is not None and maker.body not in found:
                self._cells_behind(maker, found)
        return list(found.values())

    def _collectives_in(self, cell: TpuCell) -> set[str]:
        with _silent(), self._ready(cell) as steps:
            steps.bind_first_batch()
            step: CellStep = steps.step
            functions = step.functions_to_check({})
        ops = (op for each in functions for op in _ops(each.definition, each.library))
        return {op for op in ops if op in COLLECTIVES}

    @contextlib.contextmanager
    def _ready(self, cell: TpuCell) -> Iterator[Steps]:
        """Make the values that a cell reads, and return its run."""
        for name in sorted(cell.reads - self._made):
            self._make(name)
        runner = CellRunner(self._strategy)
        try:
            yield runner.steps(self._body(cell), self._names, self._settings(cell))
        finally:
            runner.close()

    def _make(self, name: str) -> None:
        """Compute a name again if it depends on the other values."""
        self._made.add(name)
        maker = maker_of(self._cells, name)
        if maker is not None and self._depends(maker, set()):
            self._names[name] = self.run(maker).get(name, self._names[name])

    def _depends(self, cell: TpuCell, seen: set[str]) -> bool:
        """Return whether a cell reads one of the other values, also through other cells."""
        if self._body(cell) != cell.body or not self._given.keys().isdisjoint(cell.reads):
            return True
        new = cell.reads - seen
        seen |= new
        makers = (maker_of(self._cells, name) for name in sorted(new))
        return any(maker is not None and self._depends(maker, seen) for maker in makers)

    def _body(self, cell: TpuCell) -> str:
        has_ids = _OTHER_ID in self._given
        return _REPLICA_ID.sub(_OTHER_ID, cell.body) if has_ids else cell.body

    def _settings(self, cell: TpuCell) -> RunSettings:
        """Return the settings of one step: with the first batch, and without curves."""
        data = [_attribute_of(self._names, name) for name in cell.data]
        if not data:
            return RunSettings()
        return RunSettings(
            data=data[0] if len(data) == 1 else tuple(data), names=cell.names, steps=1
        )

    def _on_replicas(self, value: Any, namespace: Mapping[str, Any], name: str) -> Any:
        if not isinstance(value, list):
            return value
        before = self._strategy.experimental_local_results(namespace.get(name))[0]
        kind = getattr(before, "dtype", None) or tf.as_dtype(np.asarray(value).dtype)
        kind = tf.int32 if name == "replica_id" else kind

        def of_replica(context: Any) -> Any:
            return tf.constant(value[context.replica_id_in_sync_group], kind)

        return self._strategy.experimental_distribute_values_from_function(of_replica)


def _attribute_of(names: Mapping[str, Any], path: str) -> Any:
    first, *rest = path.split(".")
    value = names[first]
    for part in rest:
        value = getattr(value, part)
    return value


def _ops(function: Any, library: Any) -> Iterator[str]:
    """Yield the operations of a function, and of the functions that it calls."""
    for node in function.node_def:
        yield node.op
        for name in called_functions(node):
            yield from _ops(library(name), library)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Hide what a cell prints, and its warnings: the student has seen both."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
