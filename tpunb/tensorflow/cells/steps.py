"""Runs of a cell or a function, of one step or of many."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from tpunb.cells.plotted_values import refuse_shape
from tpunb.cells.reading.nests import parts_of
from tpunb.cells.settings import RunSettings, refuse_counts
from tpunb.cells.step_run import StepRun
from tpunb.tensorflow.cells.batches import Batches
from tpunb.tensorflow.cells.cell_step import CellStep
from tpunb.tensorflow.cells.checkpoints import Checkpoints
from tpunb.tensorflow.cells.differing_copies import warn_of_differing_copies
from tpunb.tensorflow.cells.open_batches import open_batch
from tpunb.tensorflow.cells.optimizers import make_ready
from tpunb.tensorflow.cells.outputs import CellOutputs
from tpunb.tensorflow.cells.step_loop import Loop
from tpunb.tensorflow.cells.traced_cell import TracedCell

_READING = 2e-3
"""Seconds that reading a single batch may take without counting as a wait."""


class Steps(StepRun):
    """A run of a cell or a function by TensorFlow.

    Args:
        step: The cell or the function, and the names that it reads.
        settings: The number of steps, the data, and so on.

    Attributes:
        step: The argument `step`.
        cache: The traced cells of the strategy.
    """

    batches: Batches | None

    def __init__(self, step: CellStep, settings: RunSettings) -> None:
        refuse_counts(settings.steps, settings.steps_per_loop)
        cache, cell = step.cache, step.cell
        self.step, self.cache = step, cache
        batches: Batches | None = None
        if settings.data is not None:
            repeat = settings.steps is not None
            batches = Batches(cache.strategy, settings.data, cache.calls, repeat=repeat)
        loopable = batches is None or (batches.distributed and batches.left is not None)
        # A step reads the combined value of the step before, and a loop would pass on each
        # replica's own.
        names = {*settings.names} if batches is not None else set()
        combined = {*(settings.reduce or ()), *(settings.gather or ())}
        loopable &= combined.isdisjoint({*cell.names.reads, *cell.later} - names)
        super().__init__(
            cell, settings, cache.calls, step.bound, batches, _numbers, loopable=loopable
        )
        self._checked: TracedCell | None = None  # dependencies are checked once for each `go`
        if settings.checkpoint is not None:
            self.checkpoints = Checkpoints(settings.checkpoint, step, self.history, self._owners)

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return int(self.cache.strategy.num_replicas_in_sync)

    @property
    def left_behind(self) -> str:
        """The sentence about what still runs after an interrupt, after a space; or empty."""
        return _LEFT if self.cache.calls.left_behind else ""

    def _owners(self) -> Mapping[str, Any]:
        """Return the objects with variables that the cell uses, with built optimizers."""
        if not self.done:
            with self._button.work():
                has_batch = self.bind_first_batch() is not None
            if has_batch or self.batches is None:
                self.step.captured()  # builds the optimizers
        return self.step.owners()

    def _prepare(self) -> None:
        """Refuse a cell at the beginning if a loop of its steps would be refused later."""
        self._checked = None
        if self.done or not self._pace.may_loop(self.left):
            return
        types = open_batch(self.batches, self.names)
        if not types:
            return
        self.calls.begin()
        with self._button.work():
            if self.bind_first_batch() is not None:
                self.step.refuse_open_sizes(types)

    def _single(self) -> bool:
        """Run one step by itself; return False if the data has ended."""
        began = time.perf_counter()
        if not self._bind_next_batch():
            return False
        waited = time.perf_counter() - began
        traced, captured, reason = self.step.find(self.options, self._checked)
        traced.refuse_stale_names(is_stepped=self.settings.is_stepped)
        if reason is not None:
            self.trace_reason = self.trace_reason or reason
            if self.watcher is not None:
                self.watcher.tracing("step")
            make_ready(self.cell, captured, self.step.namespace)
        try:
            with self._button.work():
                outputs = self.cache.run(traced, captured)
        except KeyboardInterrupt:
            if self.batches is not None and not self.calls.has_run:
                self.batches.give_back()
            raise
        self._checked = traced
        self._plots.add(self.done + 1, self._plotted(outputs))
        ended = time.perf_counter()
        self._withheld, self._values = outputs.record.withheld, outputs.values()
        self._pass_on()
        self.done += 1
        trace = None if reason is None else traced.traced_at - began
        self._took(1, ended - began, trace)
        if reason is None and self.batches is not None:
            # Reading a batch alone takes some time even if the batch is ready.
            self._waited += max(0.0, waited - _READING)
            self._watched += ended - began
        return True

    def _plotted(self, outputs: CellOutputs) -> list[Any]:
        """Return the plotted values of a single step."""
        names = self.options.plot
        values = [outputs.tensor(outputs.record.plotted_slot(name)) for name in names]
        for name, value in zip(names, values, strict=True):
            refuse_shape(name, parts_of(value)[0].shape, "tf.reduce_mean")
        return values

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

    def _warn(self) -> None:
        warn_of_differing_copies(self.cell, self.step.namespace, self.cache.strategy)

    def _interrupted(self) -> str:
        calls = self.cache.calls
        if calls.was_cut:
            left = self.left_behind
            return (
                "inside the cell. Variables have the values that were assigned until then, and "
                f"names their former values.{left}"
            )
        if calls.left_behind:
            return "before the cell has run: it was waiting for the call that was stopped before."
        if calls.has_run:
            return "when the cell had run, before its names were assigned."
        return "before the cell has run; nothing has changed."


_LEFT = (
    " TensorFlow cannot cancel its current operation, which ends by itself and may still write "
    "variables: the next call waits for it."
)


def _numbers(value: Any) -> list[float]:
    """Fetch a plotted value's number on each replica."""
    return [float(part) for part in parts_of(value)]
