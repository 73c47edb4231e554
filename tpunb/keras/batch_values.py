"""Values of single batches, from the running means of an epoch that Keras logs."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpunb.machine.keras_internals import is_of_jax, jax_value_of

Row = tuple[int, Mapping[str, float]]
"""The last step of an execution, and its logs."""

_SAME = 1e-3  # relative difference within which two 32-bit sums of Keras count as equal
_ROUNDING = 2.0**-24  # a mean is exact to this fraction of itself
# Late in a long epoch the share of one batch drowns in that error, so several batches make a point.
_BLUR = _ROUNDING / 0.002
# The number of executions to mark one by one before their weights count as even.
_PROOF = 8


class _Mark(NamedTuple):
    """The metrics' weights between two executions.

    Attributes:
        step: The last completed step; None for the step of the last row.
        sums: The total and the count of each metric that is a mean, of shape `[metrics, 2]`,
            still on its device; None if they were not read.
        ends: Whether the epoch may have ended there.
    """

    step: int | None
    sums: Any
    ends: bool


class BatchValues:
    """The values of an epoch's batches, computed from the logs of Keras.

    Keras logs the mean since the epoch's start, which starts again with each epoch, so these
    numbers cannot be compared. A mean and its weight give the value that the last batch added.
    The weights are the metrics' own counts. Reading them takes a tenth of a millisecond. So they
    are read after each of the first executions, and then ten times a second as long as all
    batches have the same weight. Once two weights differ, they are read after each execution:
    a total does not tell how batches share it.

    A metric that is not a mean, such as an AUC, has no value for a batch, and is left to the
    epoch's end. Values that a model's own `train_step` logs beside its metrics do not change.

    Args:
        model: The model that is trained.

    Attributes:
        logged: The metrics that are logged within an epoch.
        drawn: The logged metrics that have values for batches.
        of_one_replica: Whether the logs are the first replica's. Then they only show that
            there is a value.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._own_step = not _is_of_keras(getattr(type(model), "train_step", None))
        # On several replicas, Keras 3 logs the values of the first.
        roots = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
        strategy = getattr(model, "distribute_strategy", None)
        self.of_one_replica = "keras" in roots and getattr(strategy, "num_replicas_in_sync", 1) > 1
        self._metrics: list[Any] = []
        self._places: dict[int, int] = {}
        self._read: Callable[[], Any] | None = None
        self._named: dict[str, Any] = {}
        self._as_logged: set[str] = set()
        self._per_step: dict[str, float] = {}
        self._varies = False
        self._marked = 0
        self.drawn: set[str] = set()
        self.logged: set[str] = set()
        self.begin_epoch(0)

    def begin_epoch(self, step: int) -> None:
        """Start new means.

        Args:
            step: The last step before the epoch.
        """
        self._first = self._step = step
        self._rows: deque[Row] = deque()
        self._marks: deque[_Mark] = deque()
        self._reached: dict[str, tuple[float, float]] = {}  # the weight and the mean so far

    @property
    def needs_mark(self) -> bool:
        """True if the last execution must be marked, however short it was."""
        if self.of_one_replica or self._varies or self._marked < _PROOF:
            return True
        return self._step == self._first and not self._marks

    def mark(self, step: int | None, *, ends: bool = False) -> None:
        """Read the metrics on their device. Their values are fetched later.

        Args:
            step: The last completed step; None for the step of the last row.
            ends: Whether the epoch may have ended there, with a smaller batch.
        """
        if self._read is None:
            for metric in getattr(self._model, "metrics", None) or ():
                inner = getattr(metric, "metrics", None)
                self._metrics += inner if isinstance(inner, list) and inner else [metric]
            means = [metric for metric in self._metrics if _is_mean(metric)]
            self._places = {id(metric): place for place, metric in enumerate(means)}
            self._read = _reader(self._model, means)
        self._marked += 1
        self._marks.append(_Mark(step, self._read(), ends or step is None))

    def add(self, rows: Sequence[Row]) -> None:
        """Add the logs of executions, in order."""
        self._rows.extend(rows)

    def take(self, *, all_rows: bool = False) -> list[tuple[int, dict[str, float]]]:
        """Return the values of the batches whose weights are known by now.

        Args:
            all_rows: Whether no more rows follow. Then the weights of the rest are taken to
                be like the earlier weights.
        """
        values: dict[int, dict[str, float]] = {}
        if self._read is not None and not self._places:
            all_rows = True  # no mean to wait for
        while self._marks:
            step, last = self._marks[0].step, self._rows[-1][0] if self._rows else self._step
            if not all_rows and (step is None or last < step):
                break
            self._take_block(self._marks.popleft(), values)
        if all_rows and self._rows:
            self._take_block(_Mark(None, None, ends=True), values)
        return sorted(values.items())

    def _take_block(self, mark: _Mark, values: dict[int, dict[str, float]]) -> None:
        """Move the rows until a mark to `values`."""
        rows = []
        while self._rows and (mark.step is None or self._rows[0][0] <= mark.step):
            rows.append(self._rows.popleft())
        sums = mark.sums
        if sums is not None:
            sums = sums.numpy() if hasattr(sums, "numpy") else np.asarray(sums)
        for name in dict.fromkeys(name for _, logs in rows for name in logs):
            self.logged.add(name)
            block = [(step, logs[name]) for step, logs in rows if name in logs]
            for step, value in self._values_of(name, block, sums, ends=mark.ends):
                values.setdefault(step, {})[name] = value
                self.drawn.add(name)
        self._step = rows[-1][0] if rows else self._step

    def _values_of(
        self, name: str, block: list[tuple[int, float]], sums: Any, *, ends: bool
    ) -> Iterable[tuple[int, float]]:
        metric = self._metric_of(name)
        if metric is None:
            return block if self._own_step else ()
        if (place := self._places.get(id(metric))) is None:
            return ()
        if sums is None:
            # Each replica logs its own mean, and the first replica's is not the mean of all.
            known = not self.of_one_replica
            return self._undone(name, block, math.nan, ends=ends) if known else ()
        total, count = map(float, sums[place])
        mean = total / count if count else 0.0
        step, logged = block[-1]
        # Values that are not finite may be equal, and 32 bits have only this many digits.
        is_same = not (math.isfinite(mean) and math.isfinite(logged)) or math.isclose(
            mean, logged, rel_tol=_SAME, abs_tol=1e-12
        )
        if (not self.of_one_replica or not count) and not is_same:
            self._as_logged.add(name)  # the log differs from the metric of this name
        if name in self._as_logged:
            return block
        if self.of_one_replica:
            block[-1] = step, mean
        # Otherwise use the logs: the time of reading must not show in the numbers.
        return self._undone(name, block, count, ends=ends)

    def _undone(
        self, name: str, block: list[tuple[int, float]], count: float, *, ends: bool
    ) -> Iterator[tuple[int, float]]:
        """Yield the values of a block's batches: each mean without the mean before it.

        Args:
            name: The metric.
            block: Steps, and the means there.
            count: The weight of the last mean; NaN if unknown.
            ends: Whether the block may end with a smaller batch.
        """
        (before, mean_before), done = self._reached.get(name, (0.0, 0.0)), self._step
        steps = [step for step, _ in block]
        weights = self._weights(name, steps, count - before, ends=ends)
        finest = math.ceil((steps[-1] - self._first) * _BLUR)
        reached = before
        for (step, mean), weight in zip(block, weights, strict=True):
            reached += weight
            if weight and (step - done >= finest or step == steps[-1]):
                share = before / (reached - before)
                value = mean + (mean - mean_before) * share if share else mean
                error = 2 * _ROUNDING * max(abs(mean), abs(mean_before)) * (share + 1)
                # A loss that falls to zero does not become negative.
                yield step, 0.0 if value * mean < 0 and abs(value) < error else value
                before, mean_before, done = reached, mean, step
        self._reached[name] = before, mean_before

    def _weights(self, name: str, steps: list[int], gained: float, *, ends: bool) -> list[float]:
        """Return the weight of each row, and zero for rows that the last one represents."""
        spans = [step - last for last, step in zip([self._step, *steps], steps, strict=False)]
        nothing = [0.0] * len(steps)
        together = [*nothing[1:], max(gained, 0.0)]
        if self._varies:
            return nothing if math.isnan(gained) else together
        if math.isnan(gained):
            return [span * self._per_step.get(name, 1.0) for span in spans]
        each = self._per_step.setdefault(name, gained / sum(spans))
        weights = [span * each for span in spans]
        rest = gained - sum(weights[:-1])
        least = 0.0 if ends else weights[-1] * (1 - _SAME)
        if least < rest <= weights[-1] * (1 + _SAME):
            return [*weights[:-1], rest]
        self._varies = True
        return together

    def _metric_of(self, name: str) -> Any:
        """Return the metric that is logged under a name, or None if there is none."""
        if name not in self._named:
            assigned = set(map(id, self._named.values()))
            free = [metric for metric in self._metrics if id(metric) not in assigned]
            # In a model with several outputs, the output's name comes first.
            same = [metric for metric in free if metric.name == name]
            ending = [metric for metric in free if name.endswith(f"_{metric.name}")]
            self._named[name] = next(iter([*same, *ending]), None)
        return self._named[name]


def _is_mean(metric: Any) -> bool:
    """Return whether a metric's result is its total divided by its count."""
    if not (hasattr(metric, "total") and hasattr(metric, "count")):
        return False
    owner = next((kind for kind in type(metric).__mro__ if "result" in vars(kind)), object)
    return owner.__name__ in ("Mean", "Reduce") and _is_of_keras(owner)


def _is_of_keras(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] in ("keras", "tf_keras")


def _reader(model: Any, metrics: Sequence[Any]) -> Callable[[], Any]:
    """Return a function that reads the totals and counts of metrics in one call."""
    if not metrics:
        return lambda: None
    if is_of_jax(model):
        jnp = sys.modules["jax"].numpy

        def read_jax() -> Any:  # in a new array
            pairs = [(metric.total, metric.count) for metric in metrics]
            return jnp.stack([jnp.stack([jax_value_of(v, model) for v in p]) for p in pairs])

        return read_jax
    import tensorflow as tf

    def inner(variable: Any) -> Any:  # the TensorFlow variable inside a Keras 3 variable
        value = getattr(variable, "value", variable)
        return variable if callable(value) else value

    def read() -> Any:
        pairs = [(inner(metric.total), inner(metric.count)) for metric in metrics]
        return tf.stack([[tf.cast(variable, tf.float64) for variable in p] for p in pairs])

    # On several replicas reading is a sum, which takes a tenth of the time in a function.
    function: Callable[[], Any] = tf.function(read, autograph=False)
    return function
