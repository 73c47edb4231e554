"""From the logs of Keras to a history: which step, which number, and when it is fetched."""

from __future__ import annotations

import sys
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite, isnan
from typing import Any

import numpy as np

from tpunb.keras.batch_values import BatchValues
from tpunb.keras.learning_rates import RATE_NAMES, LearningRates
from tpunb.training.history import History

_INTERVAL = 0.1
_WAIT_SECONDS = 5.0
_ADVICE = "a smaller learning rate or clipped gradients may help"

Logs = Mapping[str, Any]


class LogRecorder:
    """Writes one training into a history, ten times a second.

    Keras 3 may report batches on other threads and out of order; all else happens on
    the thread that trains. tf_keras passes values that are still on the devices:
    those of a tenth of a second are fetched together.

    Args:
        history: Where to.
        model: The model that is trained.
        params: What Keras knows of the training.
        per: `batch`, `epoch` or `auto`.
        rate: Whether to record a learning rate that does not change.

    Attributes:
        arrived: The last batch of each execution with its logs, as they come.
        epoch: The current epoch, counted from 0.
        done: How many steps are done, those of earlier epochs included.
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
        self._base = 0  # how many steps there were before this epoch
        self._begun: deque[int] = deque()
        self._waiting: list[tuple[int, Logs]] = []
        self._due = 0.0
        self._validates = False  # or the epoch is over: the metrics are not the batches' then
        self._nonfinite = False
        self._values = BatchValues(model)
        self._rates = LearningRates(history, model, self._steps, self._epochs, always=rate)

    def begin_epoch(self, epoch: int, before: int | None) -> None:
        """Finds the first step of an epoch.

        Args:
            epoch: Its number, from 0.
            before: The step at which the epoch before it has ended in an earlier run,
                if that is known.
        """
        self.epoch = epoch
        if not self.done:
            self._base = epoch * self._steps if self._steps else before or 0
            self.done = self._base
        self._values.begin_epoch(self._base)
        self._validates = False
        self._rates.begin_epoch()

    def begin_batch(self, batch: int) -> None:
        """Collects what has arrived, and records that an execution begins.

        Args:
            batch: The first batch of the execution, counted from 0 in each epoch.
        """
        self._begun.append(batch)
        now = time.monotonic()
        due = now >= self._due
        if due:
            self._due = now + _INTERVAL
            self.collect()
        if due or self._values.of_one_replica or not self._values.marked:
            self._look(self._base + batch)
        step = self._base + batch + 1
        if step >= self._rates.next_step:
            self._rates.sample(step)

    def _look(self, step: int | None, *, ends: bool = False) -> None:
        """Looks at the metrics' weights, once something has been measured."""
        if self._per != "epoch" and step != self._base and not self._validates:
            self._values.mark(step, ends=ends)

    def begin_validation(self) -> None:
        """Collects what has arrived, before validation resets the metrics."""
        self._look(self._base + self._steps if self._steps else None, ends=True)
        self._validates = True
        self.collect()

    def end_epoch(self, logs: Logs) -> int:
        """Adds what is logged once in an epoch, and returns the epoch's last step."""
        self._look(None)
        self._validates = True
        self.collect(all_rows=True)
        # An execution that has found the data at its end has begun and never ended.
        self._begun.clear()
        if self._steps is None and self._epochs and self.done > self._base:
            length = self.done - self._base
            self.history.total_steps = self.done + (self._epochs - self.epoch - 1) * length
        self._append(self.done, self._of_epoch(_numbers(_flat(logs))))
        self._base = self.done
        return self.done

    @property
    def epoch_is_done(self) -> bool:
        """True if the current epoch lacks at most its validation; False if unknown."""
        return self._steps is not None and self.done == (self.epoch + 1) * self._steps

    def wait(self) -> None:
        """Waits, for some seconds at most, for executions that other threads have yet to report."""
        self._look(None)
        until = time.monotonic() + _WAIT_SECONDS
        while len(self.arrived) + len(self._waiting) < len(self._begun):
            if time.monotonic() > until:
                return
            time.sleep(0.005)

    def collect(self, *, all_rows: bool = False) -> None:
        """Appends to the history what has arrived.

        Args:
            all_rows: Whether nothing more is to come in this epoch.
        """
        rows = self._next_rows()
        if self._per == "epoch":
            return
        self._values.add([(step, _numbers(logs.items())) for step, logs in _fetched(rows)])
        for step, numbers in self._values.take(all_rows=all_rows):
            self._append(step, numbers)

    def _of_epoch(self, numbers: dict[str, float]) -> dict[str, float]:
        """An epoch's numbers that no batch has: a mean over the epoch is not a batch's value."""
        per_batch = self._values.drawn if self._per != "epoch" else frozenset()
        kept = set(numbers) - per_batch
        if self._per == "batch":
            kept &= self._values.logged
        return {name: numbers[name] for name in numbers if name in kept}

    def _next_rows(self) -> list[tuple[int, Logs]]:
        """The last step and the logs of executions, as far as they follow without a gap."""
        waiting = self._waiting
        while self.arrived:
            waiting.append(self.arrived.popleft())
        waiting.sort(key=_batch)
        size = getattr(self._model, "steps_per_execution", 1)
        more = size - 1 if isinstance(size, int) else 0
        most = sys.maxsize if self._steps is None else self._steps - 1
        rows = []
        for (last, logs), first in zip(waiting, list(self._begun), strict=False):
            begun = self._begun
            if len(begun) > 1 and last >= begun[1]:
                break  # one before it has not arrived yet
            begun.popleft()
            # Some releases of Keras 3 report the first batch of an execution at its end.
            step = self._base + min(first + more if first == last else last, most) + 1
            rows.append((step, logs))
        del waiting[: len(rows)]
        self.done = rows[-1][0] if rows else self.done
        return rows

    def _append(self, step: int, numbers: dict[str, float]) -> None:
        self.history.append(step, numbers)
        if not (self._nonfinite or all(map(isfinite, numbers.values()))):
            self._warn_of_nonfinite(step, numbers)

    def _warn_of_nonfinite(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            if not isfinite(value):
                self._nonfinite = True
                kind = "NaN" if isnan(value) else "infinite"
                # What was seen is the likely cause; what was so at the start comes first.
                known = [self.history.notes.get(one) for one in ("lost-variables", "empty-share")]
                advice = next(filter(None, known), _ADVICE)
                warnings.warn(
                    f"{name!r} is {kind} at step {step} of {self.history.name}, for the first "
                    f"time: {advice}",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return


def _batch(item: tuple[int, Logs]) -> int:
    return item[0]


def _flat(logs: Logs) -> Iterator[tuple[str, Any]]:
    """Logs without the nesting of metrics that have several values."""
    for name, value in logs.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value


def _fetched(rows: Sequence[tuple[int, Logs]]) -> Sequence[tuple[int, Logs]]:
    """The same rows with numbers of Python for tensors, a metric at a time."""
    tf = sys.modules.get("tensorflow")
    if not rows or tf is None or not any(map(tf.is_tensor, rows[0][1].values())):
        return rows
    numbers: list[dict[str, Any]] = [dict(_flat(logs)) for _, logs in rows]
    for name in numbers[0]:
        try:
            column = tf.stack([each[name] for each in numbers]).numpy()
        except (KeyError, TypeError, ValueError, tf.errors.InvalidArgumentError):
            continue  # not one number in each row: then each for itself
        if column.ndim == 1:
            for each, number in zip(numbers, column.tolist(), strict=True):
                each[name] = number
    return [(step, each) for (step, _), each in zip(rows, numbers, strict=True)]


def _numbers(items: Iterable[tuple[str, Any]]) -> dict[str, float]:
    """The logs that are a single number, without the rate."""
    found = {
        name: value if type(value) is float else _number(value)
        for name, value in items
        if name not in RATE_NAMES
    }
    return {name: number for name, number in found.items() if number is not None}


def _number(value: Any) -> float | None:
    """A number of Python from anything that is one number, else None."""
    try:
        array = np.asarray(value.numpy() if callable(getattr(value, "numpy", None)) else value)
        return float(array.reshape(-1)[0]) if array.size == 1 else None
    except (TypeError, ValueError):
        return None
