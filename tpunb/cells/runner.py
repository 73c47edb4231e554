"""Runs the bodies of cells, and functions, on every replica."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tpunb.virtual.check import CheckReport

from ..training.stop_button import explaining_interrupts
from ..virtual.stoppable import StoppableCalls
from .outputs import LAST
from .printing import Lines
from .recent_cells import RecentCells
from .replica_function import FUNCTION, function_source, globals_of
from .settings import CompileSettings, RunSettings, checked_outputs
from .source import CellSource
from .steps import Steps, interrupted
from .trace_cache import Programs

if TYPE_CHECKING:
    from tpunb.compiler.program import TpuProgram, TpuPrograms


@dataclasses.dataclass(frozen=True)
class Timings:
    """The times of a run.

    Attributes:
        trace: Seconds until TensorFlow had traced the cell; None if it had before.
        step: Seconds for the rest; after a trace this includes compiling.
    """

    trace: float | None
    step: float


@dataclasses.dataclass(frozen=True)
class CellResult:
    """The results of a run of a cell.

    Attributes:
        value: The last expression's value: per-replica values where it is made
            of tensors, else the Python value; None if there is none.
        assigned: The names that go back to the notebook, with their values.
        traced: Whether TensorFlow traced the cell in this run.
        trace_reason: Why it did.
        timings: How long it has taken.
        quiet: Whether the last expression ends with a semicolon.
        withheld: Names that were assigned but stay in the cell: what is
            assigned only in loops or branches over tensors, tapes, iterators,
            and functions that need any of these.
    """

    value: Any
    assigned: Mapping[str, Any]
    traced: bool
    trace_reason: str | None
    timings: Timings
    quiet: bool = False
    withheld: tuple[str, ...] = ()


class CellRunner:
    """Runs cells with one strategy.

    Args:
        strategy: A `tf.distribute.Strategy`.
        last_resort: Ends what TensorFlow does where cancelling it does not.
        lines: What processes that its replicas are in have written since it was last called,
            if these were started here.

    Attributes:
        strategy: The strategy.
        calls: Those of the cells' functions, which interrupts end.
        programs: What the cells were traced to.
    """

    def __init__(
        self,
        strategy: Any,
        last_resort: Callable[[], object] | None = None,
        lines: Lines | None = None,
    ) -> None:
        self.strategy = strategy
        self.calls = StoppableCalls(last_resort)
        self.programs = Programs(strategy, self.calls, lines)
        self._sources = RecentCells()

    @property
    def traces(self) -> int:
        """The number of times that a cell has been traced."""
        return self.programs.traces

    def run(
        self,
        source: str,
        namespace: dict[str, Any],
        settings: RunSettings | None = None,
        **options: Any,
    ) -> CellResult:
        """Runs a cell's body on every replica, once.

        Args:
            source: The body: what is below the magic's line, which is line 1.
            namespace: Where the cell's names come from; it is not written to.
            settings: What to combine, and whether to measure.
            **options: Settings by name, which replace those in `settings`.

        Raises:
            SyntaxError: The cell is not Python.
            CellError: The cell cannot run on the replicas.
            Stopped: An interrupt has ended it.
            Exception: What the cell raises, with `tpunb_lines`: the cell's
                lines that it came from.
        """
        started = time.perf_counter()
        cell = self.parsed(source)
        settings = dataclasses.replace(settings or RunSettings(), **options)
        outputs = checked_outputs(cell, settings)
        self.calls.begin()
        with explaining_interrupts(lambda: interrupted(self.calls)):
            program, captured, reason = self.programs.find(cell, outputs, namespace, bound={})
            tensors, record, traced = self.programs.execute(program, captured)
        ended = time.perf_counter()
        trace = program.traced_at - started if traced else None
        values = record.values(tensors)
        value = values.pop(LAST, None)
        return CellResult(
            value=value,
            assigned=values,
            traced=traced,
            trace_reason=reason if traced else None,
            quiet=cell.quiet,
            withheld=tuple(name for name in record.withheld if name != LAST),
            timings=Timings(trace, ended - started - (trace or 0.0)),
        )

    def check(self, source: str, namespace: dict[str, Any], **options: Any) -> CheckReport:
        """Checks whether a cell would compile for a TPU, and run well; runs nothing.

        Takes `data` and `names` as `steps` does, and raises what it raises; `CheckError` where the
        strategy is not a virtual TPU's.
        """
        steps = _steps_to_examine(options.get("data"))
        return self.steps(source, namespace, steps=steps, **options).check()

    def steps(
        self,
        source: str,
        namespace: dict[str, Any],
        settings: RunSettings | None = None,
        **options: Any,
    ) -> Steps:
        """A run of many steps of a cell; its `go` makes them.

        Args:
            source: The body, as for `run`.
            namespace: Where the cell's names come from.
            settings: How many steps, of which data, and so on.
            **options: Settings by name, which replace those in `settings`.

        Raises:
            SyntaxError: The cell is not Python.
            CellError: The settings contradict each other, the cell or the data.
        """
        settings = dataclasses.replace(settings or RunSettings(), **options)
        return Steps(self.programs, self.parsed(source), namespace, settings, bound={})

    def compile(
        self,
        source: str,
        namespace: dict[str, Any],
        how: CompileSettings | None = None,
        **options: Any,
    ) -> TpuProgram | TpuPrograms:
        """Compiles a cell with the TPU's own compiler; runs nothing.

        Args:
            source: The body, as for `run`.
            namespace: Where the cell's names come from.
            how: For which TPU types, and so on; by default for the strategy's.
            **options: `data` and `names`, as for `steps`.

        Returns:
            The program; for several types a table of programs.

        Raises:
            CompilerUnavailableError: The compiler is not installed, or not for this machine.
            CompileError: The TPU type is not known.
            CheckError: The strategy is not a virtual TPU's.
            Exception: What the cell raises when it is traced, as from `run`.
        """
        from .compiling import compile_step

        steps = _steps_to_examine(options.get("data"))
        step = self.steps(source, namespace, steps=steps, **options)
        return compile_step(step, how or CompileSettings())

    def steps_of_function(self, function: Callable[..., Any], settings: RunSettings) -> Steps:
        """A run of many steps, each of which calls a function; its `go` makes them."""
        source = function_source(function, settings)
        settings = dataclasses.replace(settings, names=source.parameters)
        namespace, bound = globals_of(function), {FUNCTION: function}
        return Steps(self.programs, source, namespace, settings, bound)

    def close(self) -> None:
        """Forgets every cell and every trace."""
        self.calls.close()
        self._sources.clear()
        self.programs.clear()

    def parsed(self, source: str) -> CellSource:
        """A cell's body, parsed: the very same object as before where it is still in use."""
        return self._sources.parsed(source)


def _steps_to_examine(data: Any) -> int | None:
    """The number of steps of a run that is only traced: None for all, so that arrays are fed whole.

    Data that never ends has no number, and only its first batch is read.
    """
    if data is None:
        return 1
    cardinality = getattr(data, "cardinality", None)  # a method of some, a property of others
    count = cardinality() if callable(cardinality) else cardinality
    return 1 if count is not None and int(count) == tf.data.INFINITE_CARDINALITY else None
