"""The compiled programs of cells for JAX: traced, found again, and called."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax

from tpunb.cells.cell_errors import mark
from tpunb.cells.jax.arguments import Arguments
from tpunb.cells.jax.context import AXIS
from tpunb.cells.jax.outputs import Results
from tpunb.cells.jax.traced_cell import TracedCell
from tpunb.cells.settings import OutputOptions
from tpunb.cells.source import CellSource

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
        self._programs: list[_Program] = []

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
        state: Sequence[str],
        needed: Collection[str] | None = None,
    ) -> tuple[TracedCell, str | None]:
        """Trace a cell; return it, and why it has to be compiled, or None if it need not be.

        Args:
            cell: The cell.
            namespace: The notebook's names.
            arguments: The values that the cell reads.
            options: How results are combined.
            state: The names that a step passes on to the next. Their arrays are donated.
            needed: The names to return; None for all.
        """
        self.phase = "tracing"
        traced = TracedCell(cell, namespace, arguments, self.mesh, options, state, needed)
        with self._own_mesh():
            call = traced.trace(arguments)
        self.phase = "running"
        trees = jax.tree.structure((call.args_info, call.out_info))
        constants = tuple(call.jaxpr.consts)
        fresh = _Program(cell.text, str(call.jaxpr), trees, constants, tuple(state), traced)
        known = next((each for each in self._programs if each.is_same(fresh)), None)
        if known is not None:
            traced.function = known.traced.function
            self._programs.remove(known)
            self._programs.append(known)
            return traced, None
        traced.warn_of_findings(call.jaxpr)
        reason = _CHANGED if any(each.cell == cell.text for each in self._programs) else _FIRST
        self._programs = [*self._programs[1 - _MOST :], fresh]
        self.traces += 1
        return traced, reason

    def call(self, traced: TracedCell, arguments: Arguments, cell: CellSource) -> Results:
        """Call a cell's function, and mark its errors with the cell's lines."""
        self.has_run = True
        try:
            with self._own_mesh():
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


@dataclasses.dataclass(frozen=True, eq=False)
class _Program:
    """A cell's program.

    Attributes:
        cell: The cell's text.
        text: The program's text.
        trees: The trees of its arguments and results.
        constants: The arrays that it holds.
        state: The names whose arrays a call overwrites.
        traced: The cell that was traced.
    """

    cell: str
    text: str
    trees: Any
    constants: tuple[Any, ...]
    state: tuple[str, ...]
    traced: TracedCell

    def is_same(self, other: _Program) -> bool:
        """Return whether another program is the same, so that compiling it gains nothing."""
        return (
            (self.cell, self.text, self.trees) == (other.cell, other.text, other.trees)
            and self.state == other.state
            and len(self.constants) == len(other.constants)
            and all(a is b for a, b in zip(self.constants, other.constants, strict=True))
        )
