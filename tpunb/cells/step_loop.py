"""Loops of many steps inside one `tf.function`, so that the host's cost arises once for all."""

from __future__ import annotations

import itertools
import math
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpunb.cells.capture import Captured
from tpunb.cells.cell_errors import replicas_text
from tpunb.cells.nests import leaves, parts_of
from tpunb.cells.outputs import LAST, CellOutputs, OutputRecord, Slot
from tpunb.cells.traced_cell import TracedCell, called_weakly, traced_by_itself
from tpunb.errors import CellError, did_you_mean
from tpunb.training.history import History
from tpunb.training.metrics import mean_of


@dataclass(frozen=True)
class LoopResult:
    """The results of a loop of steps.

    Attributes:
        carried: The values of the names that go from step to step.
        plots: The plotted values, `[steps, names, replicas]`.
        waited: Seconds that the steps have waited for their batches; None if not measured.
    """

    carried: dict[str, Any]
    plots: npt.NDArray[np.float32]
    waited: float | None


class Loop:
    """The loop form of a traced cell, for one layout of its arguments.

    Args:
        traced: The cell whose replica function runs; it must have run once.
        captured: The cell's arguments, batch included.
        fed: Names whose values are the batch's.
        carried: Names that the cell reads and assigns.
        timed: Whether to measure how long steps wait for batches.

    Attributes:
        done: The number of steps since the last call began, even if the call failed.
    """

    def __init__(
        self,
        traced: TracedCell,
        captured: Captured,
        fed: Sequence[str],
        carried: Sequence[str],
        *,
        timed: bool,
    ) -> None:
        self._traced = weakref.proxy(traced)  # the traced cell holds the loop
        self._strategy = traced.strategy
        self._fed, self._carried, self._timed = tuple(fed), tuple(carried), timed
        self._owners = tuple(captured.owners)
        self._record = traced.records[tuple(captured.signature)]
        self._plotted = [plotted_slot(self._record, name) for name in traced.options.plot]
        with tf.device("CPU:0"):
            self._count = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._before = 0
        self._arrived: list[Any] = []
        self._function = traced_by_itself(self._loop(), traced.name)

    @property
    def done(self) -> int:
        """The number of steps since the last call began."""
        return int(self._count.numpy())

    def run(self, iterator: Any, count: int, captured: Captured) -> LoopResult:
        """Run steps; the batch's values among the captured arguments are ignored."""
        self._count.assign(0)
        owned = list(zip(self._owners, captured.arguments, strict=True))
        state = [value for owner, value in owned if owner in self._carried]
        others = (*self._carried, *self._fed)
        rest = [value for owner, value in owned if owner not in others]
        state, plots, waited = self._function(iterator, tf.constant(count), state, rest)
        tensors: dict[str, list[Any]] = {}
        owners = [owner for owner in self._owners if owner in self._carried]
        for owner, tensor in zip(owners, state, strict=True):
            tensors.setdefault(owner, []).append(tensor)
        carried = {name: self._record.filled(name, parts) for name, parts in tensors.items()}
        shape = (count, len(self._plotted), self._strategy.num_replicas_in_sync)
        plotted = np.asarray(plots).reshape(shape) if self._plotted else np.zeros(shape, np.float32)
        return LoopResult(carried, plotted, float(waited) if self._timed else None)

    def _loop(self) -> Callable[..., Any]:
        """Return the function that is traced: the code that a user would write by hand."""
        strategy, replica, plotted = self._strategy, self._traced.replica, bool(self._plotted)
        read, after = called_weakly(self._read), called_weakly(self._after)
        arguments = called_weakly(self._arguments)
        width = len(self._plotted) * strategy.num_replicas_in_sync

        def loop(iterator: Any, count: Any, state: Any, rest: Any) -> Any:
            plots = tf.TensorArray(tf.float32, size=count, element_shape=[width])
            ready, waited = tf.constant(0), tf.constant(0.0, tf.float64)
            for step in tf.range(count):
                batch, waited = read(iterator, ready, waited)
                outputs = strategy.run(replica, args=arguments(batch, state, rest))
                state, plots, ready = after(step, outputs, state, plots)
            return state, plots.stack() if plotted else tf.constant(0.0), waited

        return loop

    def _read(self, iterator: Any, ready: Any, waited: Any) -> tuple[Any, Any]:
        """Return the next batch, read after the previous step, and the time waited so far."""
        batch, self._arrived = None, []
        if iterator is not None:
            # An unreadable batch must not stop the step before it half-way.
            with tf.control_dependencies([ready]):
                began = tf.timestamp() if self._timed else ready
            with tf.control_dependencies([began]):
                batch = next(iterator)
            self._arrived = tf.nest.flatten(batch, expand_composites=True)
            if self._timed:
                with tf.control_dependencies(self._arrived):
                    waited = waited + (tf.timestamp() - began)
        self._before = len(tf.compat.v1.get_default_graph().get_operations())
        return batch, waited

    def _after(self, step: Any, outputs: Any, state: Any, plots: Any) -> tuple[Any, Any, Any]:
        """Return the values that a step passes to the next, after all its writes."""
        operations = tf.compat.v1.get_default_graph().get_operations()[self._before :]
        written = [
            op for op in operations if op.op_def.is_stateful and op.type.startswith("Assign")
        ]
        self._record = self._traced.traced_record()
        outputs = list(outputs or ())
        if self._plotted:
            numbers = [part for slot in self._plotted for part in parts_of(outputs[slot])]
            plots = plots.write(step, tf.stack([tf.cast(number, tf.float32) for number in numbers]))
        with tf.control_dependencies([*self._arrived, *written]):
            self._count.assign_add(1)
            # In the order of the arguments.
            slots = {name: iter(self._record.slots(name)) for name in self._carried}
            passed = [outputs[next(slots[o])] for o in self._owners if o in self._carried]
            for known, value in zip(state, passed, strict=True):
                _refuse_other_shape(known, value)
            return passed, plots, tf.identity(step)

    def _arguments(self, batch: Any, state: Any, rest: Any) -> tuple[Any, ...]:
        """Return the replica function's arguments, in their order."""
        carried, others = iter(state), iter(rest)
        parts = {n: leaves(v) for n, v in bound_to(self._fed, batch).items()} if self._fed else {}
        return tuple(
            next(parts.get(owner, carried if owner in self._carried else others))
            for owner in self._owners
        )


_TARGET = 0.25
"""Seconds that a loop should take: long for the host, short for a user who presses stop."""

_TRIAL = 0.05  # seconds of the first loops, while few steps are measured
_SLOW = 0.05  # seconds of a step for which the host's part no longer counts
_MEASURED = 2  # single steps, without the traced step
_DIGITS = (1, 1.5, 2, 3, 4, 5, 7)  # rounded down so, a loop takes at least two thirds of its time


_FEWEST_WITH_LOOP = 4


class StepsPerLoop:
    """A choice of the steps in each call, by the measured times of earlier calls.

    Args:
        fixed: The number of steps in a call that the user has chosen; None to choose by measuring.
        loopable: Whether one call can make several steps at all.

    Attributes:
        steps_per_loop: The choice of the last call; 1 before there were loops.
        step: Seconds of the fastest step, host's part included; None before the second step.
    """

    def __init__(self, fixed: int | None, *, loopable: bool) -> None:
        self.steps_per_loop = 1
        self.step: float | None = None
        self._fixed, self._loopable = fixed, loopable
        self._singles = self._measured = 0
        self._trace: float | None = None
        self._loop_step: float | None = None
        self._traced_loop = False

    def may_loop(self, left: float) -> bool:
        """Return whether a run with so many steps left may make several steps in one call."""
        # The first and the last step are made alone.
        return self._loopable and self._fixed != 1 and left >= _FEWEST_WITH_LOOP

    def choose(self, left: float) -> int:
        """Return the number of steps of the next call; a run's last step is always made alone."""
        room = left - 1
        if not self._loopable or room < 2 or self._singles == 0:
            return 1
        wanted = self._fixed or self._by_measuring(room)
        if wanted > 1:
            self.steps_per_loop = wanted
        return int(min(wanted, room))

    def _by_measuring(self, room: float) -> int:
        if self._measured < _MEASURED or self.step is None or self.step >= _SLOW:
            return 1
        if self._loop_step is not None:
            return _rounded_down(_TARGET / self._loop_step)
        # A second trace must save more than it costs: it saves about a third of each step.
        if not self._traced_loop and room * self.step / 3 < (self._trace or 0.0):
            return 1
        return max(2, _rounded_down(_TRIAL / self.step))

    def took(self, count: int, seconds: float, *, trace: float | None) -> None:
        """Note the seconds of a call, and the part of them that tracing took."""
        if count == 1:
            self._singles += 1
            if trace is None:
                self._measured += 1
                self.step = min(self.step or math.inf, seconds)
            else:
                self._trace = (self._trace or 0.0) + trace
            return
        self._traced_loop = True
        if trace is None:
            step_seconds = seconds / count
            self._loop_step = min(self._loop_step or math.inf, step_seconds)
            self.step = min(self.step or math.inf, step_seconds)


def _rounded_down(number: float) -> int:
    """Return the nearest round number below."""
    if number < 2:
        return 1
    power = 10 ** math.floor(math.log10(number))
    return int(power * max(digit for digit in _DIGITS if digit * power <= number))


def bound_to(names: Sequence[str], batch: Any) -> dict[str, Any]:
    """Return the names that a step gives to its batch, or to the batch's parts."""
    if len(names) == 1:
        return {names[0]: batch}
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if not isinstance(parts, list | tuple) or len(parts) != len(names):
        count = len(parts) if isinstance(parts, list | tuple) else 1
        raise CellError(
            f"A batch has {count} part{'' if count == 1 else 's'}, and --as names {len(names)}.",
            fix=f"Give --as {count} name{'' if count == 1 else 's'}, or one for the whole batch.",
        )
    return dict(zip(names, parts, strict=True))


def plotted_slot(record: OutputRecord, name: str) -> int:
    """Return the position of a plotted number among the outputs.

    The name is a name that the cell assigns, or a key of its last line's dict.
    """
    last = record.nests.get(LAST)
    plotted = record.nests.get(name)
    if plotted is None and isinstance(last, Mapping):
        plotted = last.get(name)
    if plotted is None and record.nests.keys() == {LAST}:
        plotted = last  # the result of a function that returns one number
    if type(plotted) is Slot:
        return plotted.index
    if plotted is None:
        raise CellError(
            f"`{name}` cannot be plotted: the cell does not assign it in every step.",
            fix=did_you_mean(name, record.nests, "Name a number that each step assigns."),
        )
    raise CellError(f"`{name}` cannot be plotted: it is not one number.", fix="Plot its parts.")


def _refuse_other_shape(before: Any, after: Any) -> None:
    for was, now in itertools.zip_longest(parts_of(before), parts_of(after)):
        if was is None or now is None or was.dtype != now.dtype or was.shape != now.shape:
            raise CellError(
                f"A name passed from step to step changes from {_kind(was)} to {_kind(now)}.",
                fix="Keep the dtype and shape of what a step reads and assigns.",
            )


def _kind(tensor: Any) -> str:
    return f"{tensor.dtype.name}{list(tensor.shape)}" if tensor is not None else "nothing"


_FLUSH = 0.1
"""Seconds for which single steps' plotted values stay on the devices."""


class PlottedValues:
    """The plotted values of steps, added to a history, with a warning of non-finite values."""

    def __init__(self, history: History, names: Sequence[str], reduce: Mapping[str, str]) -> None:
        self.history = history
        self._names = tuple(names)
        self._reduce = dict(reduce)
        self._pending: list[tuple[int, list[Any]]] = []
        self._flushed = 0.0
        self._warned: set[str] = set()

    def add(self, step: int, outputs: CellOutputs) -> None:
        """Take a single step's values, which stay on the devices for a while."""
        values = [outputs.tensor(plotted_slot(outputs.record, name)) for name in self._names]
        for name, value in zip(self._names, values, strict=True):
            shape = parts_of(value)[0].shape
            if shape.rank != 0:
                raise CellError(
                    f"`{name}` cannot be plotted: its shape is {list(shape)}, and a curve has one "
                    "number for each step.",
                    fix=f"Reduce it in the cell: `{name} = tf.reduce_mean({name})`.",
                )
        if values:
            self._pending.append((step, values))

    def extend(self, before: int, values: Any) -> None:
        """Take a loop's values, `[steps, names, replicas]`, after `before` other steps."""
        self.flush()
        values = np.asarray(values, np.float64)  # as precise as the mean of a single step's values
        steps: Any = np.arange(before + 1, before + len(values) + 1)
        for number, name in enumerate(self._names):
            numbers = values[:, number, :]
            self._warn_of_nan(name, steps, numbers)
            operation = self._reduce.get(name)
            if operation is None and numbers.shape[1] > 1:
                self.history.extend(name, steps, mean_of(numbers), numbers.min(1), numbers.max(1))
            else:
                combined = numbers.sum(1) if operation == "sum" else mean_of(numbers)
                self.history.extend(name, steps, combined)

    def flush(self) -> None:
        """Fetch the values of single steps."""
        pending, self._pending = self._pending, []
        for step, values in pending:
            numbers: dict[str, Any] = {}
            for name, value in zip(self._names, values, strict=True):
                parts = [float(part) for part in parts_of(value)]
                numbers[name] = parts if len(parts) > 1 else parts[0]
            self.history.append(step, numbers)
            for name, value in numbers.items():
                self._warn_of_nan(name, [step], value)
        self._flushed = time.perf_counter()

    def flush_in_time(self) -> None:
        """Fetch the values of single steps if they have waited for long."""
        if time.perf_counter() - self._flushed > _FLUSH:
            self.flush()

    def _warn_of_nan(self, name: str, steps: Sequence[int], values: Any) -> None:
        """Warn once, with the step at which a plotted value stopped being finite."""
        if name in self._warned:
            return
        odd = ~np.isfinite(np.asarray(values).reshape(len(steps), -1))
        if not odd.any():
            return
        self._warned.add(name)
        row = int(odd.any(1).argmax())
        # If only some replicas differ, name at most four of them.
        some = not odd[row].all()
        where = f" on {replicas_text(np.flatnonzero(odd[row]).tolist())}" if some else ""
        message = f"`{name}` is not finite at step {int(steps[row])}{where}, for the first time"
        # Show the magic instead of a file's line: a path in tpunb does not help the cell's author.
        warnings.warn_explicit(message, RuntimeWarning, "%%tpu_run", 1)
