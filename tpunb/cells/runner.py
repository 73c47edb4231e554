"""Runs of the bodies of cells, and of functions, on every replica."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tpunb.cells.outputs import LAST
from tpunb.cells.printing import Lines
from tpunb.cells.recent_cells import RecentCells
from tpunb.cells.replica_function import FUNCTION, function_source, globals_of
from tpunb.cells.settings import CompileSettings, RunSettings, checked_outputs
from tpunb.cells.source import CellSource
from tpunb.cells.steps import Steps, interrupted
from tpunb.cells.trace_cache import Programs
from tpunb.training.stop_button import explaining_interrupts
from tpunb.virtual.rule_check import CheckReport
from tpunb.virtual.stoppable import StoppableCalls

if TYPE_CHECKING:
    from tpunb.compiler.program import TpuProgram, TpuPrograms


@dataclasses.dataclass(frozen=True)
class Timings:
    """The times of a run.

    Attributes:
        trace: Seconds until TensorFlow had traced the cell; None if it was traced before.
        step: Seconds for the rest; after a trace this includes compiling.
    """

    trace: float | None
    step: float


@dataclasses.dataclass(frozen=True)
class CellResult:
    """The results of a run of a cell.

    Attributes:
        value: The last expression's value: per-replica values if it consists
            of tensors, else the Python value; None without a value.
        assigned: The names that go back to the notebook, with their values.
        traced: Whether TensorFlow traced the cell in this run.
        trace_reason: Why TensorFlow traced the cell.
        timings: The times of the run.
        quiet: Whether the last expression ends with a semicolon.
        withheld: Names that were assigned but stay in the cell: names that are
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
    """A runner of cells with one strategy.

    Args:
        strategy: A `tf.distribute.Strategy`.
        last_resort: Ends TensorFlow's work if cancelling does not end it.
        lines: Returns the lines that the replicas' processes have written since the last call,
            if this process started them.

    Attributes:
        strategy: The strategy.
        calls: The calls of the cells' functions, which interrupts end.
        programs: The traced programs of the cells.
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
        """Run a cell's body on every replica, once.

        Args:
            source: The body, below the magic's line. The magic's line is line 1.
            namespace: The namespace of the cell's names; it does not change.
            settings: The names to combine, and whether to measure.
            **options: Settings by name, which replace those in `settings`.

        Raises:
            SyntaxError: The cell is not Python.
            CellError: The cell cannot run on the replicas.
            Stopped: An interrupt has ended the run.
            Exception: Any error that the cell raises, with `tpunb_lines`: the cell's
                lines that the error came from.
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
        """Check whether a cell would compile for a TPU, and run well, without running it.

        Takes `data` and `names` as `steps` does, and raises the same errors. Also raises
        `CheckError` if the strategy is not a virtual TPU's. With `compare=True`, the report also
        compares the gradients with those on one replica; see `tpunb.compare`.
        """
        from tpunb.cells.compare_cell import with_comparison

        compare = options.pop("compare", False)
        step = self.steps(
            source, namespace, steps=_steps_to_examine(options.get("data")), **options
        )
        report = step.check()
        self.calls.begin()
        return with_comparison(report, step) if compare else report

    def steps(
        self,
        source: str,
        namespace: dict[str, Any],
        settings: RunSettings | None = None,
        **options: Any,
    ) -> Steps:
        """Return a run of many steps of a cell; the run's `go` makes the steps.

        Args:
            source: The body, as for `run`.
            namespace: The namespace of the cell's names.
            settings: The number of steps, the data, and so on.
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
        """Compile a cell with the TPU's own compiler, without running it.

        Args:
            source: The body, as for `run`.
            namespace: The namespace of the cell's names.
            how: The TPU types, and so on; by default the strategy's type.
            **options: `data` and `names`, as for `steps`.

        Returns:
            The program; for several types a table of programs.

        Raises:
            CompilerUnavailableError: The compiler is not installed, or not for this machine.
            CompileError: The TPU type is not known.
            CheckError: The strategy is not a virtual TPU's.
            Exception: Any error that the cell raises when it is traced, as from `run`.
        """
        from tpunb.cells.compiling import compile_step

        steps = _steps_to_examine(options.get("data"))
        step = self.steps(source, namespace, steps=steps, **options)
        return compile_step(step, how or CompileSettings())

    def steps_of_function(self, function: Callable[..., Any], settings: RunSettings) -> Steps:
        """Return a run of many steps that call a function; the run's `go` makes the steps."""
        source = function_source(function, settings)
        settings = dataclasses.replace(settings, names=source.parameters)
        namespace, bound = globals_of(function), {FUNCTION: function}
        return Steps(self.programs, source, namespace, settings, bound)

    def close(self) -> None:
        """Forget every cell and every trace."""
        self.calls.close()
        self._sources.clear()
        self.programs.clear()

    def parsed(self, source: str) -> CellSource:
        """Return a parsed cell's body: the same object as before if it is still in use."""
        return self._sources.parsed(source)


def _steps_to_examine(data: Any) -> int | None:
    """Return the number of steps of a run that is only traced.

    None means all steps, so that arrays are read completely. Data that never ends has no
    number of steps, and only its first batch is read.
    """
    if data is None:
        return 1
    cardinality = getattr(data, "cardinality", None)  # a method, or a property
    count = cardinality() if callable(cardinality) else cardinality
    return 1 if count is not None and int(count) == tf.data.INFINITE_CARDINALITY else None
