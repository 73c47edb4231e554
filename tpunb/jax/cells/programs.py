"""The compiled programs of cells for JAX: traced, found again, and called."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax

from tpunb.cells.reading.cell_errors import mark
from tpunb.cells.reading.source import CellSource
from tpunb.cells.settings import OutputOptions
from tpunb.jax.cells.arguments import Arguments
from tpunb.jax.cells.context import AXIS
from tpunb.jax.cells.outputs import Results
from tpunb.jax.cells.shared_names import SharedNames
from tpunb.jax.cells.traced_cell import TracedCell

_MOST = 32
"""The largest number of compiled programs that are kept."""

_FIRST = "first run"
_CHANGED = "the cell, or a value that it reads, has changed"


class Programs:
    """The programs of the cells of one connection.

    A cell is traced each time that it runs, because what it reads may have changed. If its program
    is the same as before, the compiled program runs again.

    Args:
        devices: The devices.

    Attributes:
        mesh: The mesh of the devices. Its axis is `"replica"`.
        traces: The number of programs that were compiled.
        phase: The present work, in words.
        has_run: Whether the function of the last call has begun to run.
    """

    def __init__(self, devices: Sequence[Any]) -> None:
        auto = (jax.sharding.AxisType.Auto,)
        self.mesh = jax.make_mesh((len(devices),), (AXIS,), axis_types=auto, devices=devices)
        self.traces = 0
        self.phase = "running"
        self.has_run = False
        self._programs: dict[Any, TracedCell] = {}  # the last to run is last

    def begin(self) -> None:
        """Prepare for a call."""
        self.has_run = False

    def clear(self) -> None:
        """Forget every program."""
        self._programs.clear()

    def traced(
        self,
        cell: CellSource,
        namespace: dict[str, Any],
        arguments: Arguments,
        options: OutputOptions,
        shared: SharedNames,
        state: Sequence[str],
        needed: Collection[str] | None = None,
    ) -> tuple[TracedCell, str | None]:
        """Trace a cell; return it, and why it has to be compiled, or None if it need not be.

        Args:
            cell: The cell.
            namespace: The notebook's names.
            arguments: The values that the cell reads.
            options: How results are combined.
            shared: The names that the cell shares with functions of the notebook.
            state: The names that a step passes on to the next. Their arrays are donated.
            needed: The names to return; None for all.
        """
        self.phase = "tracing"
        traced = TracedCell(cell, namespace, arguments, self.mesh, options, shared, state, needed)
        with self._own_mesh(), traced.in_context():
            call = traced.trace(arguments)
        self.phase = "running"
        trees = jax.tree.structure((call.args_info, call.out_info))
        key = (cell.text, trees, tuple(state), traced.key)
        known = self._programs.pop(key, None)
        if known is not None:
            traced.take_program_of(known)
            self._programs[key] = known
            return traced, None
        traced.warn_of_findings(call.jaxpr)
        reason = _CHANGED if any(text == cell.text for text, *_ in self._programs) else _FIRST
        self._programs[key] = traced
        if len(self._programs) > _MOST:
            del self._programs[next(iter(self._programs))]
        self.traces += 1
        return traced, reason

    def call(self, traced: TracedCell, arguments: Arguments, cell: CellSource) -> Results:
        """Call a cell's function, and mark its errors with the cell's lines."""
        self.has_run = True
        try:
            with self._own_mesh(), traced.in_context():
                returned = traced.function(*arguments.values)
        except Exception as error:
            mark(error, cell)
            raise
        return traced.outputs.results_of(returned)

    @contextlib.contextmanager
    def _own_mesh(self) -> Iterator[None]:
        """Set the cells' mesh, if the notebook has set another by `jax.set_mesh`."""
        if jax.sharding.get_abstract_mesh().empty:
            yield
            return
        with jax.set_mesh(self.mesh):
            yield
