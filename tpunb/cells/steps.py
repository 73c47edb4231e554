"""Runs of a cell or a function, of one step or of many."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any, Protocol

from tpunb._util.interrupts import Overdue, StopButton, Stopped, explaining_interrupts
from tpunb._util.units import grouped
from tpunb.cells.batches import Batch, Batches
from tpunb.cells.cell_errors import mark_step
from tpunb.cells.cell_step import CellStep
from tpunb.cells.checkpoints import Checkpoints, RunState
from tpunb.cells.open_batches import open_batch
from tpunb.cells.optimizers import make_ready
from tpunb.cells.outputs import LAST, OutputRecord
from tpunb.cells.settings import RunSettings, checked_outputs, refuse_counts, total_steps
from tpunb.cells.source import CellSource
from tpunb.cells.step_loop import Loop, PlottedValues, StepsPerLoop, bound_to
from tpunb.cells.traced_cell import TracedCell
from tpunb.errors import CellError
from tpunb.training.history import History
from tpunb.training.run_result import RunResult, Timings
from tpunb.virtual.stoppable import StoppableCalls


class Watcher(Protocol):
    """An observer of a run's progress."""

    def tracing(self, what: str) -> None:
        """Report that TensorFlow starts to trace."""

    def set_steps(self, steps: int, examples: int | None) -> None:
        """Report the steps made so far, and the examples of each."""

    def resumed(self, steps: int, text: str) -> None:
        """Report that the run continues from a checkpoint after so many steps."""


_READING = 2e-3
"""Seconds that reading a single batch may take without counting as a wait."""

_GRACE = 0.8
"""Seconds from an interrupt to the end of a call that does not end by itself."""


class Steps:
    """A run of a cell or a function: a single step by `once`, or many by `go`.

    The stop button ends a run of many steps, and `go` continues it.

    Args:
        step: The cell or the function, and the names that it reads. A run binds its batches and
            the values that steps pass on.
        settings: The number of steps, the data, and so on.

    Attributes:
        step: The argument `step`.
        cell: The cell or the function.
        cache: The traced cells of the strategy.
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
        checkpoints: Saves the run and continues it after a restart; None to save nothing.

    Raises:
        CellError: The settings contradict each other, the cell or the data.
    """

    def __init__(self, step: CellStep, settings: RunSettings) -> None:
        refuse_counts(settings.steps, settings.steps_per_loop)
        self.step, self.settings = step, settings
        cache, cell = step.cache, step.cell
        self.cache, self.cell = cache, cell
        self.batches: Batches | None = None
        if settings.data is not None:
            repeat = settings.steps is not None
            self.batches = Batches(cache.strategy, settings.data, cache.calls, repeat=repeat)
        self.names = tuple(settings.names) if self.batches is not None else ()
        self.total = total_steps(settings, self.batches)
        self.options = checked_outputs(cell, settings)
        self.history = History(total_steps=self.total)
        self.watcher: Watcher | None = None
        self.done = 0
        self.stopped = self.is_half_done = self.ended = False
        self.trace_reason: str | None = None
        self.timings = Timings()
        loopable = self.batches is None or (
            self.batches.distributed and self.batches.left is not None
        )
        # A step reads the combined value of the step before, and a loop would pass on each
        # replica's own.
        combined = {name for name, _ in (*self.options.reduce, *self.options.gather)}
        loopable &= combined.isdisjoint({*cell.names.reads, *cell.later} - {*self.names})
        self._pace = StepsPerLoop(settings.steps_per_loop, loopable=loopable)
        self._plots = PlottedValues(self.history, self.options.plot, dict(self.options.reduce))
        self._values: dict[str, Any] = {}
        self._is_stale = False  # whether the names have the values of a step before the last
        self._waited = self._watched = 0.0  # seconds: waits for batches, all measured time
        self._record: OutputRecord | None = None
        self._button = StopButton(grace=_GRACE)
        self.checkpoints: Checkpoints | None = None
        if settings.checkpoint is not None:
            self.checkpoints = Checkpoints(settings.checkpoint, step, self.history, self._owners)
        self._checked: TracedCell | None = None  # dependencies are checked once for each `go`

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
        return self._values.get(LAST)

    @property
    def assigned(self) -> dict[str, Any]:
        """The values of the cell's names after the last step."""
        return {name: value for name, value in self._values.items() if name != LAST}

    @property
    def withheld(self) -> tuple[str, ...]:
        """Names that stay in the cell."""
        return tuple(n for n in self._record.withheld if n != LAST) if self._record else ()

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
            self.step.bound.update(bound_to(self.names, batch.value))
        return batch

    def once(self) -> None:
        """Run a single step, which the first interrupt ends.

        Raises:
            Stopped: An interrupt has ended the step.
            Exception: Any error that the cell raises, with `tpunb_lines`: the cell's lines that
                the error came from.
        """
        started = time.perf_counter()
        calls = self.cache.calls
        calls.begin()
        with explaining_interrupts(lambda: _interrupted(calls)):
            self._single()
        self.timings.steps, self.timings.seconds = 1, time.perf_counter() - started

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
        self._checked = None
        self._resume()
        try:
            with self._button as button:
                self._enforce_open_sizes()
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
            self.stopped, self.is_half_done = True, self.cache.calls.has_run
        except Exception as error:
            names = self.names if isinstance(self.cell, CellSource) else ()
            mark_step(error, self.done, self.batches.described(names) if self.batches else "")
            raise
        finally:
            self._plots.flush()
            times = self.timings
            times.steady_step, times.steps_per_loop = self._pace.step, self._pace.steps_per_loop
            if self._watched > 0:
                times.input_wait = min(1.0, self._waited / self._watched)
            times.steps, times.seconds = self.done, times.seconds + time.perf_counter() - started

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

    def _owners(self) -> Mapping[str, Any]:
        """Return the objects with variables that the cell uses, with built optimizers."""
        if not self.done:
            with self._button.work():
                has_batch = self.bind_first_batch() is not None
            if has_batch or self.batches is None:
                self.step.captured()  # builds the optimizers
        return self.step.owners()

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
        batch = [self.step.bound[name] for name in self.names] if is_known else None
        self.checkpoints.save(RunState(self.done, self.ended, self._values, batch))

    def _pass_on(self) -> None:
        """Pass the values of the cell's names on to the next step."""
        for name in (*self.cell.names.reads, *self.cell.later):
            if name in self._values and name not in self.names:
                self.step.bound[name] = self._values[name]

    def _enforce_open_sizes(self) -> None:
        """Refuse a cell at the beginning if a loop of its steps would be refused later."""
        if self.done or not self._pace.may_loop(self.left):
            return
        types = open_batch(self.batches, self.names)
        if not types:
            return
        self.cache.calls.begin()
        with self._button.work():
            if self.bind_first_batch() is not None:
                self.step.refuse_open_sizes(types)

    def _call(self, count: int) -> None:
        """Run one step, or a loop of steps."""
        self.cache.calls.begin()
        if count > 1 and self._looped(count):
            self._is_stale = True
        elif self._single():
            self._is_stale = False
        if self.watcher is not None:
            self.watcher.set_steps(self.done, self.batches.examples if self.batches else None)
        self._plots.flush_in_time()

    def _single(self) -> bool:
        """Run one step by itself; return False if the data has ended."""
        began = time.perf_counter()
        if self.batches is not None:
            with self._button.work():
                batch = self.batches.next()
            if batch is None:
                self.ended = True
                return False
            self.step.bound.update(bound_to(self.names, batch.value))
        waited = time.perf_counter() - began
        traced, captured, reason = self.step.find(self.options, self._checked)
        if reason is not None:
            self.trace_reason = self.trace_reason or reason
            if self.watcher is not None:
                self.watcher.tracing("step")
            make_ready(self.cell, captured, self.step.namespace)
        try:
            with self._button.work():
                outputs = self.cache.run(traced, captured)
        except KeyboardInterrupt:
            if self.batches is not None and not self.cache.calls.has_run:
                self.batches.give_back()
            raise
        self._checked = traced
        self._plots.add(self.done + 1, outputs)
        ended = time.perf_counter()
        self._record, self._values = outputs.record, outputs.values()
        self._pass_on()
        self.done += 1
        trace = None if reason is None else traced.traced_at - began
        self._took(1, ended - began, trace)
        if reason is None and self.batches is not None:
            # Reading a batch alone takes some time even if the batch is ready.
            self._waited += max(0.0, waited - _READING)
            self._watched += ended - began
        return True

    def _looped(self, count: int) -> bool:
        """Run steps in one call; return False if the loop's form is not known yet."""
        traced, captured, _ = self.step.find(self.options, self._checked)
        record = traced.records.get(tuple(captured.signature))
        if record is None:
            return False
        # A step takes these values from the step before.
        owners = {name for name in captured.owners if name not in self.names}
        carried = tuple(sorted(owners & record.nests.keys()))
        # Include the names, because other parts of a batch may have the same shapes.
        layout = (tuple(captured.signature), self.names, carried, self.settings.timed)
        loop = traced.loops.get(layout)
        known = loop is not None
        if loop is None:
            loop = Loop(traced, captured, self.names, carried, timed=self.settings.timed)
            traced.loops[layout] = loop
        if not known and self.watcher is not None:
            self.watcher.tracing("loop")
        began = time.perf_counter()
        watched = contextlib.nullcontext() if known else traced.dependencies.tracing()
        try:
            with watched, self._button.work():
                iterator = self.batches.iterator if self.batches else None
                result = self.cache.guarded(
                    traced, captured, lambda: loop.run(iterator, count, captured)
                )
        except (Exception, KeyboardInterrupt):
            self.done += loop.done
            if self.batches is not None:
                self.batches.took(loop.done)
            raise
        seconds = time.perf_counter() - began
        self._plots.extend(self.done, result.plots)
        self.step.bound.update(result.carried)
        self.done += count
        if self.batches is not None:
            self.batches.took(count)
        self._took(count, seconds, None if known else seconds)
        if result.waited is not None and known:
            self._waited += result.waited
            self._watched += seconds
        return True

    def _took(self, count: int, seconds: float, trace: float | None) -> None:
        self._pace.took(count, seconds, trace=trace)
        times = self.timings
        if trace is not None:
            times.trace = (times.trace or 0.0) + trace
        if times.first_step is None:
            times.first_step = seconds


_LEFT = (
    " TensorFlow cannot cancel its current operation, which ends by itself and may still write "
    "variables: the next call waits for it."
)


def raise_if_ended_early(run: Steps, *, late: bool = False) -> None:
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
        left = _LEFT if run.cache.calls.left_behind else ""
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
            fix="Repeat it (`.repeat()`), or leave out the number of steps.",
        )
    if late:
        raise Stopped(f"when all of the {grouped(run.done)} steps were made; nothing is lost.")


def _interrupted(calls: StoppableCalls) -> str:
    """Describe the state after an interrupt of a single step."""
    if calls.was_cut:
        left = _LEFT if calls.left_behind else ""
        return (
            "inside the cell. Variables have the values that were assigned until then, and names "
            f"their former values.{left}"
        )
    if calls.left_behind:
        return "before the cell has run: it was waiting for the call that was stopped before."
    if calls.has_run:
        return "when the cell had run, before its names were assigned."
    return "before the cell has run; nothing has changed."
