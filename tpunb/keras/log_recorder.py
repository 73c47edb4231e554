"""From the logs of Keras to a history: the step, the number, and the time to fetch it."""

from __future__ import annotations

import contextlib
import operator
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite, isnan
from typing import Any

import numpy as np

from tpunb.keras.batch_values import BatchValues
from tpunb.machine.keras_internals import is_of_jax, jax_value_of, learning_rate_of
from tpunb.training.history import History

_INTERVAL = 0.1
_WAIT_SECONDS = 5.0
_ADVICE = "a smaller learning rate or clipped gradients may help"

RATE = "learning_rate"
RATE_NAMES = (RATE, "lr")
"""The names under which Keras's callbacks log the learning rate. tpunb's is exact to the step."""

_SELDOM = 100
_AT_LEAST = 10

Logs = Mapping[str, Any]


class LogRecorder:
    """A recorder that writes one training into a history, ten times a second.

    Keras 3 may report batches on other threads and out of order. Everything else happens on
    the training thread. tf_keras passes values that are still on the devices; the values of
    a tenth of a second are fetched together.

    Args:
        history: The history to write into.
        model: The model that is trained.
        params: Keras's parameters of the training.
        per: `batch`, `epoch` or `auto`.
        rate: Whether to record a learning rate that does not change.

    Attributes:
        arrived: The last batch of each execution with its logs, in order of arrival.
        epoch: The current epoch, from 0.
        done: The number of completed steps, including earlier epochs.
    """

    def __init__(
        self, history: History, model: Any, params: Mapping[str, Any], per: str, *, rate: bool
    ) -> None:
        self.history = history
        self.arrived: deque[tuple[int, Logs]] = deque()
        self.epoch = self.done = 0
        self._model = model
        self._steps: int | None = params.get("steps")
        self._epochs: int | None = params.get("epochs")
        self._per = per
        self._base = 0  # the number of steps before this epoch
        self._begun: deque[int] = deque()
        self._waiting: list[tuple[int, Logs]] = []
        self._due = 0.0
        self._validates = False  # then, and after an epoch, the metrics are not the batches'
        self._nonfinite = False
        self._values = BatchValues(model)
        self._rates = LearningRates(history, model, self._steps, self._epochs, always=rate)

    def begin_epoch(self, epoch: int, before: int | None) -> None:
        """Determine the first step of an epoch.

        Args:
            epoch: The epoch's number, from 0.
            before: The step at which the epoch before it ended in an earlier run, if known.
        """
        self.epoch = epoch
        if not self.done:
            self._base = epoch * self._steps if self._steps else before or 0
            self.done = self._base
        self._values.begin_epoch(self._base)
        self._validates = False
        self._rates.begin_epoch()

    def begin_batch(self, batch: int) -> None:
        """Collect the logs that have arrived, and record that an execution begins.

        Args:
            batch: The first batch of the execution, counted from 0 in each epoch.
        """
        self._begun.append(batch)
        now = time.monotonic()
        due = now >= self._due
        if due:
            self._due = now + _INTERVAL
            self.collect()
        if due or self._values.needs_mark:
            self._look(self._base + batch)
        step = self._base + batch + 1
        if step >= self._rates.next_step:
            self._rates.sample(step)

    def _look(self, step: int | None, *, ends: bool = False) -> None:
        """Read the metrics' weights, if anything has been measured yet."""
        if self._per != "epoch" and step != self._base and not self._validates:
            self._values.mark(step, ends=ends)

    def begin_validation(self) -> None:
        """Collect the logs that have arrived, before validation resets the metrics."""
        self._look(self._base + self._steps if self._steps else None, ends=True)
        self._validates = True
        self.collect()

    def end_epoch(self, logs: Logs) -> int:
        """Add the values that are logged once per epoch, and return the epoch's last step."""
        self._look(None)
        self._validates = True
        self.collect(all_rows=True)
        # An execution that found no more data has begun and never ends.
        self._begun.clear()
        if self._steps is None and self._epochs and self.done > self._base:
            length = self.done - self._base
            self.history.total_steps = self.done + (self._epochs - self.epoch - 1) * length
        numbers = _numbers(_flat(logs))
        # A mean over the epoch is not the value of a batch.
        per_batch = self._values.drawn if self._per != "epoch" else frozenset()
        kept = numbers.keys() - per_batch
        if self._per == "batch":
            kept &= self._values.logged
        self._append(self.done, {name: numbers[name] for name in numbers if name in kept})
        self._base = self.done
        return self.done

    @property
    def epoch_is_done(self) -> bool:
        """True if the current epoch lacks at most its validation; False if unknown."""
        return self._steps is not None and self.done == (self.epoch + 1) * self._steps

    def wait(self) -> None:
        """Wait a few seconds at most for executions that other threads have not yet reported."""
        self._look(None)
        until = time.monotonic() + _WAIT_SECONDS
        while len(self.arrived) + len(self._waiting) < len(self._begun):
            if time.monotonic() > until:
                return
            time.sleep(0.005)

    def collect(self, *, all_rows: bool = False) -> None:
        """Append the logs that have arrived to the history.

        Args:
            all_rows: Whether no more logs follow in this epoch.
        """
        rows = self._next_rows()
        if self._per == "epoch":
            return
        self._values.add([(step, _numbers(logs.items())) for step, logs in _fetched(rows)])
        for step, numbers in self._values.take(all_rows=all_rows):
            self._append(step, numbers)

    def _next_rows(self) -> list[tuple[int, Logs]]:
        """Return the last steps and the logs of executions, up to the first gap."""
        waiting = self._waiting
        while self.arrived:
            waiting.append(self.arrived.popleft())
        waiting.sort(key=operator.itemgetter(0))
        size = getattr(self._model, "steps_per_execution", 1)
        more = size - 1 if isinstance(size, int) else 0
        most = sys.maxsize if self._steps is None else self._steps - 1
        rows = []
        for (last, logs), first in zip(waiting, list(self._begun), strict=False):
            begun = self._begun
            if len(begun) > 1 and last >= begun[1]:
                break  # the logs of an earlier execution have not arrived yet
            begun.popleft()
            # Keras 3.10 reports the first batch of an execution at its end, and 3.13 the last batch
            # (keras-team/keras#20861).
            step = self._base + min(first + more if first == last else last, most) + 1
            rows.append((step, logs))
        del waiting[: len(rows)]
        self.done = rows[-1][0] if rows else self.done
        return rows

    def _append(self, step: int, numbers: dict[str, float]) -> None:
        self.history.append(step, numbers)
        name = next((name for name, value in numbers.items() if not isfinite(value)), None)
        if name is not None and not self._nonfinite:
            self._nonfinite = True
            kind = "NaN" if isnan(numbers[name]) else "infinite"
            # A likely cause that was observed. A cause present from the start comes first.
            known = [self.history.notes.get(note) for note in ("lost-variables", "empty-share")]
            advice = next(filter(None, known), _ADVICE)
            warnings.warn(
                f"{name!r} is {kind} at step {step} of {self.history.name}, for the first "
                f"time: {advice}",
                RuntimeWarning,
                stacklevel=2,
            )


def _flat(logs: Logs) -> Iterator[tuple[str, Any]]:
    """Yield logs without the nesting of metrics that have several values."""
    for name, value in logs.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value


def _fetched(rows: Sequence[tuple[int, Logs]]) -> Sequence[tuple[int, Logs]]:
    """Return the rows with Python numbers instead of tensors, fetched one metric at a time."""
    tf = sys.modules.get("tensorflow")
    if not rows or tf is None or not any(map(tf.is_tensor, rows[0][1].values())):
        return rows
    numbers: list[dict[str, Any]] = [dict(_flat(logs)) for _, logs in rows]
    for name in numbers[0]:
        try:
            column = tf.stack([logs[name] for logs in numbers]).numpy()
        except (KeyError, TypeError, ValueError, tf.errors.InvalidArgumentError):
            continue  # not one number in each row: each row is converted separately
        if column.ndim == 1:
            for logs, number in zip(numbers, column.tolist(), strict=True):
                logs[name] = number
    return [(step, logs) for (step, _), logs in zip(rows, numbers, strict=True)]


def _numbers(items: Iterable[tuple[str, Any]]) -> dict[str, float]:
    """Return the logs that are a single number, without the learning rate."""
    numbers: dict[str, float] = {}
    for name, value in items:
        if name in RATE_NAMES:
            continue
        if type(value) is float:
            numbers[name] = value
            continue
        with contextlib.suppress(TypeError, ValueError):
            array = np.asarray(value.numpy() if callable(getattr(value, "numpy", None)) else value)
            if array.size == 1:
                numbers[name] = float(array.reshape(-1)[0])
    return numbers


class LearningRates:
    """A recorder of the learning rate at the start of each epoch, and in between.

    A sample costs a transfer from the device and the computation of a schedule. So a short
    training takes ten samples, and a long one takes a sample every hundred steps.

    Args:
        history: The history to write into. Nothing is recorded until the rate changes.
        model: The model whose optimizer has the rate.
        steps: The number of steps in an epoch, if known.
        epochs: The number of epochs, if known.
        always: Whether to record a rate that does not change.

    Attributes:
        next_step: The first step at which to sample again.
    """

    def __init__(
        self, history: History, model: Any, steps: int | None, epochs: int | None, *, always: bool
    ) -> None:
        self._history = history
        self._model = model
        total = (steps or 0) * (epochs or 0)
        self._stride = max(1, min(_SELDOM, total // _AT_LEAST)) if total else _SELDOM
        self.next_step = 0
        self._samples: list[tuple[int, float]] = []
        self._changes = always

    def begin_epoch(self) -> None:
        """Make the next call of `sample` due."""
        self.next_step = 0

    def sample(self, step: int) -> None:
        """Sample the rate of the next step."""
        self.next_step = step + self._stride
        rate = _rate_of(getattr(self._model, "optimizer", None), self._model)
        if rate is None:
            return
        self._samples.append((step, rate))
        self._changes = self._changes or rate != self._samples[0][1]
        if self._changes:
            for sampled_step, sampled_rate in self._samples:
                self._history.append(sampled_step, {RATE: sampled_rate})
            self._samples = self._samples[-1:]


def _rate_of(optimizer: Any, model: Any) -> float | None:
    """Return an optimizer's rate for its next step, or None if it has none."""
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner  # the outer optimizer scales the loss
    try:
        if is_of_jax(model):
            rate = learning_rate_of(optimizer)
            if not callable(rate):
                return float(jax_value_of(rate, model))
            return float(rate(jax_value_of(optimizer.iterations, model)))
        rate = optimizer.learning_rate
        if hasattr(optimizer, "_current_learning_rate"):
            # For a schedule, tf_keras's attribute has only the rate of the last step.
            rate = learning_rate_of(optimizer)
        if callable(rate):
            rate = rate(optimizer.iterations)
        return float(np.asarray(rate.numpy() if hasattr(rate, "numpy") else rate))
    except (AttributeError, TypeError, ValueError):
        return None
