"""Runs of a cell for JAX, of one step or of many."""

from __future__ import annotations

import collections
import time
import warnings
from typing import Any

import jax
import numpy as np

from tpunb._util.interrupts import uninterrupted
from tpunb.cells.plotted_values import plotted_leaf, refuse_shape
from tpunb.cells.reading.source import LAST, CellSource
from tpunb.cells.settings import RunSettings, refuse_counts
from tpunb.cells.step_run import StepRun
from tpunb.cells.steps_per_loop import StepsPerLoop
from tpunb.errors import CellError, TpuWarning
from tpunb.jax.cells.arguments import Arguments, Slot, arguments_of, copied, values_of
from tpunb.jax.cells.batches import Batches
from tpunb.jax.cells.checkpoints import Checkpoints
from tpunb.jax.cells.outputs import Results
from tpunb.jax.cells.programs import Programs
from tpunb.jax.cells.shared_names import SharedNames
from tpunb.jax.cells.traced_cell import TracedCell

_AHEAD = 4
"""The number of steps that have begun while the oldest of them still runs.

A device always has the next step at hand, and an interrupt waits for few steps.
"""

_NUMBERS = int | float | np.number


class Steps(StepRun):
    """A run of a cell on the devices of JAX.

    Args:
        programs: The programs of the connection's cells.
        cell: The cell.
        namespace: The notebook's names; they do not change.
        settings: The number of steps, the data, and so on.
    """

    cell: CellSource

    def __init__(
        self,
        programs: Programs,
        cell: CellSource,
        namespace: dict[str, Any],
        settings: RunSettings,
    ) -> None:
        refuse_counts(settings.steps, settings.steps_per_loop)
        if settings.steps_per_loop is not None:
            raise CellError(
                "-k is for TensorFlow: JAX begins the next steps while a step runs.",
                fix="Leave it out.",
            )
        batches: Batches | None = None
        if settings.data is not None:
            repeat = settings.steps is not None
            batches = Batches(settings.data, programs.mesh, repeat=repeat)
        super().__init__(cell, settings, programs, {}, batches, _numbers, loopable=False)
        self._programs, self._namespace = programs, namespace
        self._shared = SharedNames.of(
            cell, namespace, self.names, is_stepped=self.settings.is_stepped
        )
        self._read |= self._shared.read
        read = self._read - {*self.names}
        self._state = tuple(name for name in self._shared.assigned if name in read)
        is_known = batches is None or batches.left is not None
        self._pace = _LaterSteps(is_useful=is_known and not self._needed >= self._returned)
        self._fixed: Arguments | None = None
        self._passed = Arguments()
        self._traced: TracedCell | None = None
        self._traced_for: dict[bool, TracedCell] = {}
        self._layout: Any = None
        self._integers: list[str] = []  # the state that was Python's integers
        self._results: Results | None = None
        self._begun: collections.deque[Results] = collections.deque()
        if settings.checkpoint is not None:
            self.checkpoints = Checkpoints(
                settings.checkpoint, cell, self.history, programs.mesh, self._present_state
            )

    @property
    def replicas(self) -> int:
        """The number of replicas."""
        return int(self._programs.mesh.size)

    @property
    def left_behind(self) -> str:
        """Nothing: a program that has begun ends by itself, and its results are not used."""
        return ""

    def examined(self) -> tuple[TracedCell, Arguments]:
        """Trace the step for its first batch, without running it."""
        self._fixed = None
        self.bind_first_batch()
        arguments = self._arguments()
        traced, _ = self._programs.traced(
            self.cell, self._namespace, arguments, self.options, self._shared, self._passed_on
        )
        return traced, arguments

    def go(self) -> None:
        """Run the steps that are left; see `StepRun.go`.

        If a device fails, the names keep their values, because the steps' results have none.
        """
        try:
            super().go()
            self._wait()
        except Exception:
            self._forget_lost()
            raise

    def _interrupted(self) -> str:
        return "before the cell's names were assigned; they keep their values."

    def _prepare(self) -> None:
        """Read the notebook's names again, and trace again if they have changed."""
        self._values = self._latest()
        self._results = self._fixed = self._traced = self._layout = None
        self._begun.clear()
        self._pass_on()

    def _single(self) -> bool:
        """Run one step by itself; return False if the data has ended."""
        began = time.perf_counter()
        is_there, reason = self._step(all_names=True)
        if is_there:
            seconds = time.perf_counter() - began
            self._took(1, seconds, None if reason is None else seconds)
        return is_there

    def _looped(self, count: int) -> bool:
        """Run steps that return only what later steps need; the last step of a run returns all."""
        began, before = time.perf_counter(), self.done
        self._values = self._latest()
        trace: float | None = None
        while self.done < before + count and not (self._button.pressed and self.done > before):
            started = time.perf_counter()
            is_there, reason = self._step(all_names=False)
            if reason is not None:
                trace = (trace or 0.0) + time.perf_counter() - started
            is_due = self.checkpoints is not None and self.checkpoints.room(self.done) <= 1
            if not is_there or is_due:
                break
            if self.watcher is not None:
                self.watcher.set_steps(self.done, self.batches.examples if self.batches else None)
            self._plots.flush_in_time()
        self._took(max(2, self.done - before), time.perf_counter() - began, trace)
        return True

    def _step(self, *, all_names: bool) -> tuple[bool, str | None]:
        """Run a step; return whether there was a batch, and why the step was traced."""
        began = time.perf_counter()
        if not self._bind_next_batch():
            return False, None
        waited = time.perf_counter() - began
        with self._button.work():
            reason = self._call_function(all_names=all_names)
        self._limit_begun()
        self.trace_reason = self.trace_reason or reason
        if reason is None and self.batches is not None:
            self._waited += waited
            self._watched += time.perf_counter() - began
        return True, reason

    def _call_function(self, *, all_names: bool) -> str | None:
        """Call the step's function; return why it was traced, or None if it was not.

        A call overwrites the state's arrays. So its results have to be kept before an interrupt is
        raised. The first call of a program may wait for its compiler, and gets copies instead.
        """
        arguments = self._arguments()
        if arguments.layout != self._layout:
            self._traced_for.clear()
            self._layout, self.cuts = arguments.layout, arguments.cuts
        traced, reason = self._traced_for.get(all_names), None
        if traced is not None:
            with uninterrupted():
                self._keep(traced, self._called(traced, arguments))
        else:
            if self.watcher is not None:
                self.watcher.tracing("step")
            traced, reason = self._programs.traced(
                self.cell,
                self._namespace,
                arguments,
                self.options,
                self._shared,
                self._passed_on,
                None if all_names else self._needed,
            )
            results = self._called(traced, arguments.copied(self._passed_on))
            with uninterrupted():
                self._keep(traced, results)
            self._traced_for[all_names] = traced
        if all_names:
            self._withheld = traced.outputs.withheld
        return reason

    def _called(self, traced: TracedCell, arguments: Arguments) -> Results:
        """Return the results of a step; wait if it calls Python, so that an error has its step."""
        results = self._programs.call(traced, arguments, self.cell)
        assert traced.key is not None
        if traced.key.calls_host and self.settings.is_stepped:
            jax.block_until_ready(results.arrays)
        return results

    def _keep(self, traced: TracedCell, results: Results) -> None:
        """Keep the results of a step, which is done now."""
        self._results, self._traced = results, traced
        self.done += 1
        self._plot()

    @property
    def _returned(self) -> set[str]:
        """The names that a complete step returns."""
        return {*self._shared.assigned, *([LAST] if self.cell.has_value else [])}

    @property
    def _needed(self) -> set[str]:
        """The names that later steps and the curves need."""
        plotted = set(self.options.plot)
        last = set() if plotted <= {*self.cell.names.assigned} else {LAST}
        return {*self._state, *plotted, *last}

    @property
    def _passed_on(self) -> tuple[str, ...]:
        """The names that a step passes on to the next; their arrays are overwritten."""
        return self._state if self.settings.is_stepped else ()

    def _arguments(self) -> Arguments:
        """Return the arguments of the next step."""
        mesh = self._programs.mesh
        if self._fixed is None:
            values = values_of(self.cell, self._read, self._namespace, self._bound)
            moving = {*self._state, *self.names}
            fixed = {name: value for name, value in values.items() if name not in moving}
            self._fixed = arguments_of(fixed, mesh)
            self._passed = self._state_of(values)
            self._integers = [name for name in self._state if type(values.get(name)) is int]
        elif not self._take_state():
            self._passed = self._state_of(self._latest())
        fed = {name: self._bound[name] for name in self.names if name in self._read}
        return self._passed.with_others(arguments_of(fed, mesh)).with_others(self._fixed)

    def _present_state(self) -> dict[str, Any]:
        """Return the values of the notebook, or of the run, that the next step reads."""
        names = {**self._namespace, **self._bound}
        return {name: names[name] for name in self._state if name in names}

    def _state_of(self, values: dict[str, Any]) -> Arguments:
        state = {name: values[name] for name in self._state if name in values}
        return arguments_of(state, self._programs.mesh, with_numbers=self.settings.is_stepped)

    def _take_state(self) -> bool:
        """Take the state from the last results; return False if its form has changed."""
        assert self._traced is not None
        assert self._results is not None
        places = self._traced.outputs.state
        if places is None:
            return False
        arrays = [self._results.array(place) for place in places]
        self._passed = self._passed.with_arrays(arrays)
        return True

    def _latest(self) -> dict[str, Any]:
        """Return the values of the cell's names, and of its last expression."""
        if self._results is None or self._traced is None:
            return self._values
        return {**self._values, **self._traced.outputs.filled(self._results)}

    def _wait(self) -> None:
        if self._results is not None:
            jax.block_until_ready(self._results.arrays)

    def _forget_lost(self) -> None:
        try:
            self._wait()
        except Exception:
            self._results, self._values = None, {}

    def _warn(self) -> None:
        """Warn of integers that may have passed the largest number of their type."""
        for name in self._integers if self.settings.is_stepped else ():
            value = self._latest().get(name)
            if not isinstance(value, jax.Array) or value.ndim or value.dtype.kind != "i":
                continue
            if abs(int(value)) >= np.iinfo(value.dtype).max // 2:
                warnings.warn_explicit(
                    f"`{name}` went from step to step as {value.dtype.name}, which continues at "
                    f"the negative end after {np.iinfo(value.dtype).max}. It is {int(value)} now. "
                    f"If it may get so large, give the cell a float: {name} = jnp.float32(…).",
                    TpuWarning,
                    self.cell.filename,
                    1,
                    registry={},
                )

    def _plot(self) -> None:
        """Take the plotted values, which stay on the devices for a while."""
        assert self._traced is not None
        assert self._results is not None
        nests = self._traced.outputs.nests
        values = []
        for name in self.options.plot:
            leaf = plotted_leaf(nests, name, lambda leaf: isinstance(leaf, Slot | _NUMBERS))
            if not isinstance(leaf, Slot):
                values.append(np.asarray(leaf))
                continue
            refuse_shape(name, leaf.shape, "jnp.mean")
            array = self._results.array(leaf)
            values.append(copied(array) if name in self._passed_on else array)
        self._plots.add(self.done, values)

    def _limit_begun(self) -> None:
        """Wait for an older step, so that not too many have begun."""
        assert self._results is not None
        self._begun.append(self._results)
        if len(self._begun) <= _AHEAD:
            return
        oldest = self._begun.popleft().arrays
        left = [array for array in oldest if not array.is_deleted()]
        if left:
            jax.block_until_ready(left)
        elif self.done % _AHEAD == 0:  # each array of an older step was overwritten
            jax.block_until_ready(self._results.arrays)


_FEWEST = 100
"""The fewest steps for which a program that returns less is compiled beside the complete one.

A number and not a time, so that the same programs are compiled, and shown, in every run.
"""


class _LaterSteps(StepsPerLoop):
    """The choice of the steps that return only what later steps need: all but the first and last.

    Args:
        is_useful: Whether the number of steps is known, and a step returns more than that.
    """

    def __init__(self, *, is_useful: bool) -> None:
        super().__init__(None, loopable=False)
        self._is_useful = is_useful

    def choose(self, left: float) -> int:
        """Return how many such steps come next; 1 stands for a complete step."""
        has_begun = self._singles > 0
        return int(left) - 1 if self._is_useful and has_begun and left - 1 >= _FEWEST else 1


def _numbers(array: jax.Array) -> list[float]:
    """Fetch a plotted value's number on each replica."""
    numbers: list[float] = np.asarray(array, np.float64).ravel().tolist()
    return numbers
