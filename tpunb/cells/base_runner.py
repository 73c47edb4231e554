"""The common part of the runners of cells for TensorFlow and for JAX."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

from tpunb.cells.reading.source import CellSource
from tpunb.cells.recent_cells import RecentCells
from tpunb.cells.settings import RunSettings
from tpunb.cells.step_run import StepRun
from tpunb.training.run_result import RunResult, Timings


class BaseRunner(abc.ABC):
    """A runner of cells on the replicas of one connection.

    Attributes:
        timings: The times of the last run of many steps; None before the first run.
    """

    def __init__(self) -> None:
        self.timings: Timings | None = None
        self._sources = RecentCells()

    @abc.abstractmethod
    def steps(
        self,
        cell: str | Callable[..., Any],
        namespace: dict[str, Any] | None = None,
        settings: RunSettings | None = None,
        **options: Any,
    ) -> StepRun:
        """Return a run of a cell or a function, before its first step.

        Args:
            cell: The cell's body, or the function.
            namespace: The namespace of the cell's names; it does not change.
            settings: The number of steps, the data, and so on.
            **options: Settings by name, which replace those in `settings`.

        Raises:
            SyntaxError: The cell is not Python.
            CellError: The settings contradict each other, the cell or the data.
        """

    def run(
        self,
        cell: str | Callable[..., Any],
        namespace: dict[str, Any] | None = None,
        settings: RunSettings | None = None,
        **options: Any,
    ) -> RunResult:
        """Run a cell or a function on every replica: once, or step after step.

        An interrupt of a run of many steps ends it between two steps, and the result reports it.

        Args:
            cell: The cell's body, or the function.
            namespace: The namespace of the cell's names; it does not change.
            settings: The number of steps, the data, and so on.
            **options: Settings by name, which replace those in `settings`.

        Raises:
            SyntaxError: The cell is not Python.
            CellError: The cell cannot run on the replicas.
            Stopped: An interrupt has ended the run inside a step.
            Exception: Any error that the cell raises, with `tpunb_lines`: the cell's
                lines that the error came from. Completed steps are kept.
        """
        run = self.steps(cell, namespace, settings, **options)
        if run.settings.is_stepped:
            self.timings = run.timings
        run.complete()
        return run.result

    def parsed(self, source: str) -> CellSource:
        """Return a parsed cell's body: the same object as before if it is still in use."""
        return self._sources.parsed(source)
