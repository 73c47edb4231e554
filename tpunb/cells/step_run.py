"""A run of a step, once or many times: what TensorFlow's runs and JAX's have in common."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from tpunb._util.interrupts import Overdue, StopButton, Stopped, explaining_interrupts
from tpunb._util.units import grouped
from tpunb.cells.batch import Batch, bound_to
from tpunb.cells.kept_checkpoints import KeptCheckpoints
from tpunb.cells.plotted_values import PlottedValues
from tpunb.cells.reading.cell_errors import mark_step
from tpunb.cells.reading.source import LAST, CellSource, StepSource
from tpunb.cells.run_state import RunState
from tpunb.cells.settings import RunSettings, checked_outputs, total_steps
from tpunb.cells.step_batches import BatchSource
from tpunb.cells.steps_per_loop import StepsPerLoop
from tpunb.errors import CellError
from tpunb.training.history import History, remember_history
from tpunb.training.run_result import RunResult, Timings


class Watcher(Protocol):
    """An observer of a run's progress."""

    def tracing(self, what: str) -> None:
        """Report that TensorFlow starts to trace."""

    def set_steps(self, steps: int, examples: int | None) -> None:
        """Report the steps made so far, and the examples of each."""

    def resumed(self, steps: int, text: str) -> None:
        """Report that the run continues from a checkpoint after so many steps."""


_GRACE = 0.8
"""Seconds from an interrupt to the end of a call that does not end by itself."""


class Calls(Protocol):
    """The caller of the functions of a connection's cells."""

    @property
    def phase(self) -> str:
        """The present work, in words."""

    @property
    def has_run(self) -> bool:
        """Whether the function of the last call has begun to run."""

    def begin(self) -> None:
        """Prepare for a call that an interrupt can end."""


class StepRun(abc.ABC):
    """A run of a cell or a function: a single step by `once`, or many by `go`.

    The stop button ends a run of many steps, and `go` continues it.

    Args:
        cell: The cell or the function.
        settings: The number of steps, the data, and so on.
        calls: Calls the step's function, so that interrupts can end it.
        bound: The values that hide the notebook's. A run binds its batches, and the values that
            steps pass on.
        batches: The batches; None for steps without data.
        numbers: Fetches a plotted value's number on each replica.
        loopable: Whether one call can make several steps.

    Attributes:
        cell: The cell or the function.
        settings: The number of steps, the data, and so on.
        calls: Calls the step's function.
        batches: The batches; None for steps without data.
        names: The cell's names for a batch, or its parts.
        total: The total number of steps; None until the data ends.
        options: The names that are reduced, gathered and plotted.
        history: Takes the plotted values.
        watcher: Receives the progress; None if nothing shows it.
        done: The number of steps made so far.
        stopped: Whether the stop button has ended the run.
        is_half_done: Whether the stop button has ended the run within a step.
        ended: Whether the data has ended.
        trace_reason: Why the step was traced in this run; None if it was traced before.
        timings: The run's times.
        cuts: By name, how a sharded array is cut that the step gets part by part, in words.
        checkpoints: Saves the run and continues it after a restart; None to save nothing.

    Raises:
        CellError: The settings contradict each other, the cell or the data.
    """

    def __init__(
        self,
        cell: StepSource,
        settings: RunSettings,
        calls: Calls,
        bound: dict[str, Any],
        batches: BatchSource | None,
        numbers: Callable[[Any], list[float]],
        *,
        loopable: bool,
    ) -> None:
        self.cell, self.settings, self.batches = cell, settings, batches
        self.names = tuple(settings.names) if batches is not None else ()
        self.total = total_steps(settings, batches)
        self.options = checked_outputs(cell, settings)
        self.history = History(total_steps=self.total)
        self.watcher: Watcher | None = None
        self.done = 0
        self.stopped = self.is_half_done = self.ended = False
        self.trace_reason: str | None = None
        self.timings = Timings()
        self.cuts: dict[str, str] = {}
        self.checkpoints: KeptCheckpoints | None = None
        self.calls = calls
        self._bound = bound
        self._read = {*cell.names.reads, *cell.later}
        self._pace = StepsPerLoop(settings.steps_per_loop, loopable=loopable)
        reduce = dict(self.options.reduce)
        self._plots = PlottedValues(self.history, self.options.plot, reduce, numbers)
        self._values: dict[str, Any] = {}
        self._is_stale = False  # whether the names have the values of a step before the last
        self._waited = self._watched = 0.0  # seconds: waits for batches, all measured time
        self._withheld: Sequence[str] = ()
        self._button = StopButton(grace=_GRACE)

    @property
    @abc.abstractmethod
    def replicas(self) -> int:
        """The number of replicas."""

    @property
    @abc.abstractmethod
    def left_behind(self) -> str:
        """The sentence about what still runs after an interrupt, after a space; or empty."""

    @abc.abstractmethod
    def _prepare(self) -> None:
        """Prepare for the steps of `go`, after a checkpoint was restored."""

    @abc.abstractmethod
    def _single(self) -> bool:
        """Run one step by itself; return False if the data has ended."""

    @abc.abstractmethod
    def _interrupted(self) -> str:
        """Describe the state after an interrupt of a single step."""

    def _warn(self) -> None:  # noqa: B027
        """Warn of what the steps left behind; called after each run without an error."""

    def _latest(self) -> dict[str, Any]:
        """Return the values of the cell's names, and of its last expression."""
        return self._values

    def _looped(self, count: int) -> bool:
        """Run steps in one call; return False if that is not possible yet."""
        del count
        return False

    @property
    def left(self) -> float:
        """The number of steps that remain."""
        return float("inf") if self.total is None else self.total - self.done

    @property
    def can_continue(self) -> bool:
        """True if the run was stopped and can continue from its position."""
        # If a function that reads data is cancelled, the data may be at its end afterwards.
        return self.stopped and not (self.is_half_done and self.batches is not None)

    @property
    def value(self) -> Any:
        """The last expression's value in the last step; None if there is none."""
        return self._latest().get(LAST)

    @property
    def assigned(self) -> dict[str, Any]:
        """The values of the cell's names after the last step."""
        return {name: value for name, value in self._latest().items() if name != LAST}

    @property
    def withheld(self) -> tuple[str, ...]:
        """Names that stay in the cell."""
        return tuple(name for name in self._withheld if name != LAST)

    @property
    def result(self) -> RunResult:
        """The result so far."""
        return RunResult(
            value=self.value,
            assigned=self.assigned,
            withheld=self.withheld,
            history=self.history,
            steps=self.done,
            stopped=self.stopped,
            trace_reason=self.trace_reason,
            timings=self.timings,
        )

    def bind_first_batch(self) -> Batch | None:
        """Bind the cell's names to the first batch, if any, which the first step still gets."""
        batch = self.batches.peek() if self.batches is not None else None
        if batch is not None:
            self._bound.update(bound_to(self.names, batch.value))
        return batch

    def _bind_next_batch(self) -> bool:
        """Bind the cell's names to the next batch, if there is data; False if it has ended."""
        if self.batches is None:
            return True
        with self._button.work():
            batch = self.batches.next()
        if batch is None:
            self.ended = True
            return False
        self._bound.update(bound_to(self.names, batch.value))
        return True

    def once(self) -> None:
        """Run a single step, which the first interrupt ends.

        Raises:
            Stopped: An interrupt has ended the step.
            Exception: Any error that the cell raises, with `tpunb_lines`: the cell's lines that
                the error came from.
        """
        started = time.perf_counter()
        self.calls.begin()
        with explaining_interrupts(self._interrupted):
            self._single()
        self.timings.steps, self.timings.seconds = 1, time.perf_counter() - started
        self._warn()

    def go(self) -> None:
        """Run the steps that are left.

        The first interrupt ends the run between two calls and keeps everything. Then `stopped` is
        true and `go` can be called again. A call that does not end in time is cancelled, and then
        `is_half_done` is true as well.

        Raises:
            CellError: The data or a name do not fit; the results so far are kept.
            Exception: Any error that the cell or the data raises, marked with its lines and step.
        """
        started = time.perf_counter()
        self.stopped = self.is_half_done = False
        self._resume()
        try:
            with self._button as button:
                self._prepare()
                while self.left > 0 and not self.ended:
                    if button.pressed:
                        self.stopped = True
                        break
                    there = self.batches.left if self.batches is not None else None
                    room = self.left if there is None else min(self.left, max(there, 1))
                    if self.checkpoints is not None:
                        room = min(room, self.checkpoints.room(self.done))
                    self._call(self._pace.choose(room))
                    # After a loop, the names have the values of a step before it.
                    wanted = self._is_stale and self.left > 0 and not self.ended
                    if button.pressed and wanted and not button.is_overdue:
                        self._call(1)
                    self._save_if_due()
                self._save()
        except Overdue:
            self.stopped, self.is_half_done = True, self.calls.has_run
        except Exception as error:
            names = self.names if isinstance(self.cell, CellSource) else ()
            mark_step(error, self.done, self.batches.described(names) if self.batches else "")
            raise
        finally:
            self._plots.flush()
            self.history.finish(stopped=self.left > 0 and not self.ended)
            if self.settings.plot and self.done:
                remember_history(self.history)
            times = self.timings
            times.steady_step, times.steps_per_loop = self._pace.step, self._pace.steps_per_loop
            if self._watched > 0:
                times.input_wait = min(1.0, self._waited / self._watched)
            times.steps, times.seconds = self.done, times.seconds + time.perf_counter() - started
        if not self.is_half_done:
            self._warn()

    def complete(self) -> None:
        """Run once, or all steps, without a display; for the errors see `once` and `go`."""
        if not self.settings.is_stepped:
            self.once()
            return
        self.go()
        if self.is_half_done or not self.stopped:
            raise_if_ended_early(self)

    def _resume(self) -> None:
        """Continue from the last checkpoint, if the folder has any."""
        if self.checkpoints is None or self.done:
            return
        try:
            with self._button as button:
                resumed = self.checkpoints.resume(self.batches, self.names, self.total, button)
        except Overdue:
            raise Stopped(
                "while the batches before the checkpoint were read again: no step was made, and no "
                "variable has changed."
            ) from None
        if resumed is None:
            return
        state, text = resumed
        self.done, self.ended, self._values = state.done, state.ended, dict(state.values)
        self._pass_on()
        if self.watcher is not None:
            self.watcher.resumed(self.done, text)

    def _save_if_due(self) -> None:
        if self.checkpoints is None or self._is_stale:
            return
        if self.checkpoints.is_due(self.done):
            self._save()

    def _save(self) -> None:
        """Save a checkpoint, if there was a step since the last checkpoint."""
        if self.checkpoints is None:
            return
        self._plots.flush()
        is_known = self.batches is not None and not self._is_stale and not self.ended
        batch = [self._bound[name] for name in self.names] if is_known else None
        self.checkpoints.save(RunState(self.done, self.ended, self._latest(), batch))

    def _pass_on(self) -> None:
        """Pass the values of the cell's names on to the next step."""
        for name in self._read:
            if name in self._values and name not in self.names:
                self._bound[name] = self._values[name]

    def _call(self, count: int) -> None:
        """Run one step, or a loop of steps."""
        self.calls.begin()
        if count > 1 and self._looped(count):
            self._is_stale = True
        elif self._single():
            self._is_stale = False
        if self.watcher is not None:
            self.watcher.set_steps(self.done, self.batches.examples if self.batches else None)
        self._plots.flush_in_time()

    def _took(self, count: int, seconds: float, trace: float | None) -> None:
        self._pace.took(count, seconds, trace=trace)
        times = self.timings
        if trace is not None:
            times.trace = (times.trace or 0.0) + trace
        if times.first_step is None:
            times.first_step = seconds


def raise_if_ended_early(run: StepRun, *, late: bool = False) -> None:
    """Raise an error if a run was stopped, or if its data ended too soon.

    Args:
        run: The run.
        late: Whether the stop button was pressed after all steps were done.

    Raises:
        Stopped: The stop button has ended the run or the work after it.
        CellError: The data has ended too soon.
    """
    total = "" if run.total is None else f" of {grouped(run.total)}"
    done = f"{grouped(run.done)}{total} steps"
    if run.stopped and not run.is_half_done:
        raise Stopped(
            f"after {done}. Variables, curves and the place in the data are kept: run the cell "
            "again to continue, or with --restart to start over."
        )
    if run.stopped:
        left = run.left_behind
        again = "continue, or with --restart to start over" if run.can_continue else "start over"
        if not run.can_continue and run.checkpoints is not None and run.checkpoints.last:
            again = f"continue at step {grouped(run.checkpoints.last)}, the last checkpoint"
        raise Stopped(
            f"inside step {grouped(run.done + 1)}, after {done}. Variables have the values that "
            f"were assigned until then.{left} Run the cell again to {again}."
        )
    if run.ended and run.total is not None and run.done < run.total:
        raise CellError(
            f"The data ended after {run.done} of {run.total} steps; what they have done is kept.",
            fix=f"{_way_to_repeat(run.settings.data)}, or leave out the number of steps.",
        )
    if late:
        raise Stopped(f"when all of the {grouped(run.done)} steps were made; nothing is lost.")


def _way_to_repeat(data: Any) -> str:
    """Return how to get more batches from data that has ended."""
    if callable(getattr(data, "repeat", None)):  # a dataset
        return "Repeat it (`.repeat()`)"
    if isinstance(data, Iterator):
        return "Give it more batches"
    return "Repeat it (`data = itertools.cycle(data)`)"
