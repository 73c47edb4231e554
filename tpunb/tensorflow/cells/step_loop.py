"""Loops of many steps inside one `tf.function`, so that the host's cost arises once for all."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpunb.cells.batch import bound_to
from tpunb.cells.reading.nests import leaves, parts_of
from tpunb.errors import CellError
from tpunb.tensorflow.cells.capture import Captured
from tpunb.tensorflow.cells.traced_cell import TracedCell, called_weakly, traced_by_itself


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
        self._plotted = [self._record.plotted_slot(name) for name in traced.options.plot]
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


def _refuse_other_shape(before: Any, after: Any) -> None:
    for was, now in itertools.zip_longest(parts_of(before), parts_of(after)):
        if was is None or now is None or was.dtype != now.dtype or was.shape != now.shape:
            raise CellError(
                f"A name passed from step to step changes from {_kind(was)} to {_kind(now)}.",
                fix="Keep the dtype and shape of what a step reads and assigns.",
            )


def _kind(tensor: Any) -> str:
    return f"{tensor.dtype.name}{list(tensor.shape)}" if tensor is not None else "nothing"
