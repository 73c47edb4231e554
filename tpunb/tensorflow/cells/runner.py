"""Runs, checks and compilations of cells and functions with one strategy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tpunb.cells.base_runner import BaseRunner
from tpunb.cells.settings import CompileSettings, RunSettings
from tpunb.tensorflow.cells.cell_step import CellStep
from tpunb.tensorflow.cells.checking import check_step
from tpunb.tensorflow.cells.compare_cell import with_comparison
from tpunb.tensorflow.cells.printing import Printer
from tpunb.tensorflow.cells.replica_function import FUNCTION, function_source, globals_of
from tpunb.tensorflow.cells.steps import Steps
from tpunb.tensorflow.cells.trace_cache import TraceCache
from tpunb.tensorflow.checks.rule_check import CheckReport
from tpunb.tensorflow.virtual.runtime.stoppable import StoppableCalls

if TYPE_CHECKING:
    from tpunb.compiler.program import TpuProgram, TpuPrograms


class CellRunner(BaseRunner):
    """A runner of cells and functions with one strategy.

    Each method takes a cell's body as text, whose line 1 stands for the magic's line, or a
    function whose call is the body. Settings are given as `RunSettings`, or by name.

    Args:
        strategy: A `tf.distribute.Strategy`.

    Attributes:
        calls: The calls of the cells' functions, which interrupts end.
        cache: The traced cells.
        timings: The times of the last run of many steps; None before the first run.
    """

    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self.calls = StoppableCalls()
        self.cache = TraceCache(strategy, self.calls, Printer(strategy))

    @property
    def traces(self) -> int:
        """The number of times that a cell has been traced."""
        return self.cache.traces

    def steps(
        self,
        cell: str | Callable[..., Any],
        namespace: dict[str, Any] | None = None,
        settings: RunSettings | None = None,
        **options: Any,
    ) -> Steps:
        """Return a run of a cell or a function, before its first step. See `BaseRunner.steps`."""
        settings = dataclasses.replace(settings or RunSettings(), **options)
        if isinstance(cell, str):
            names = {} if namespace is None else namespace
            return Steps(CellStep(self.cache, self.parsed(cell), names, {}), settings)
        function = function_source(cell, settings)
        settings = dataclasses.replace(settings, names=function.parameters)
        step = CellStep(self.cache, function, globals_of(cell), {FUNCTION: cell})
        return Steps(step, settings)

    def check(
        self,
        cell: str | Callable[..., Any],
        namespace: dict[str, Any] | None = None,
        *,
        compare: bool = False,
        **options: Any,
    ) -> CheckReport:
        """Check whether a cell would compile for a TPU, and run well, without running it.

        Takes what `steps` takes, and raises the same errors. With `compare`, the report also
        compares the gradients with those on one replica; see `tpunb.compare`.

        Raises:
            CheckError: The strategy is not a virtual TPU's.
            Exception: Any error that the cell raises when it is traced.
        """
        run = self._run_to_examine(cell, namespace, options)
        report = check_step(run)
        if not compare:
            return report.not_compared()
        self.calls.begin()
        return with_comparison(report, run.step)

    def compile(
        self,
        cell: str | Callable[..., Any],
        namespace: dict[str, Any] | None = None,
        how: CompileSettings | None = None,
        **options: Any,
    ) -> TpuProgram | TpuPrograms:
        """Compile a cell with the TPU's own compiler, without running it.

        Args:
            cell: The cell's body, or the function.
            namespace: The namespace of the cell's names.
            how: The TPU types, and so on; by default the strategy's type.
            **options: Settings by name, as for `steps`.

        Returns:
            The program; for several types a table of programs.

        Raises:
            CompilerUnavailableError: The compiler is not installed, or not for this machine.
            CompileError: The TPU type is not known.
            CheckError: The strategy is not a virtual TPU's.
            Exception: Any error that the cell raises when it is traced, as from `run`.
        """
        from tpunb.compiler.ask.recorded_verdicts import recorded_in
        from tpunb.tensorflow.cells.compiling import compile_step

        run = self._run_to_examine(cell, namespace, options)
        how = how or CompileSettings()
        with recorded_in(how.recorded):
            return compile_step(run, how)

    def _run_to_examine(
        self,
        cell: str | Callable[..., Any],
        namespace: dict[str, Any] | None,
        options: dict[str, Any],
    ) -> Steps:
        """Return a run that is only traced: of all steps, so that arrays are read completely.

        Data that never ends has no number of steps, and only its first batch is read.
        """
        cardinality = getattr(options.get("data"), "cardinality", None)  # a method, or a property
        count = cardinality() if callable(cardinality) else cardinality
        endless = count is not None and int(count) == tf.data.INFINITE_CARDINALITY
        return self.steps(cell, namespace, steps=1 if endless else None, **options)

    def close(self) -> None:
        """Forget every cell and every trace."""
        self.calls.close()
        self._sources.clear()
        self.cache.clear()
