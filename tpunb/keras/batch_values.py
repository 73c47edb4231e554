"""Values of single batches, from the means since the epoch's start that Keras logs."""

from __future__ import annotations

import functools
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpunb.virtual.keras_internals import is_of_jax, jax_value_of

Row = tuple[int, Mapping[str, float]]
"""The last step of an execution, and what it has logged."""

_SAME = 1e-3  # of numbers that Keras sums up in 32 bits
# A mean is exact to 2**-24 of itself: late in a long epoch the share of one batch drowns in
# that, and several batches make a point.
_BLUR = 2.0**-24 / 0.002


class _Mark(NamedTuple):
    """The metrics' weights between two executions.

    Attributes:
        step: The last step that was done; None for that of the last row.
        sums: The total and the count of each metric that is a mean, shaped `[metrics, 2]`,
            still on its device; None where nobody has looked.
        ends: Whether the epoch may have ended there.
    """

    step: int | None
    sums: Any
    ends: bool


class _Reached(NamedTuple):
    """A metric's progress in its epoch: its weight, and its mean so far."""

    weight: float = 0.0
    mean: float = 0.0


class BatchValues:
    """Turns what Keras logs within an epoch into the values of its batches.

    Keras logs the mean since the epoch's start, which begins anew with each epoch: such
    numbers cannot be compared. A mean and the weight behind it give what the last batch
    has added. The weights are the metrics' own counts, looked at now and then: batches
    between two looks that share their weight evenly are points of their own, others are
    one point together.

    A metric that is no mean, such as an AUC, has no value for a batch, and is left to the
    epoch's end. What a model's own `train_step` logs beside its metrics stays as it is.

    Args:
        model: The model that is trained.

    Attributes:
        logged: The metrics that are logged within an epoch.
        drawn: Those of them that have values for batches.
        of_one_replica: Whether the logs are those of the first replica. Then they only say
            that there is something, and each execution has to be marked.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._own_step = not _is_of_keras(getattr(type(model), "train_step", None))
        self.of_one_replica = _logs_of_one_replica(model)
        self._metrics: list[Any] = []
        self._places: dict[int, int] = {}
        self._read: Callable[[], Any] | None = None
        self._named: dict[str, Any] = {}
        self._as_logged: set[str] = set()
        self._per_step: dict[str, float] = {}
        self.drawn: set[str] = set()
        self.logged: set[str] = set()
        self.begin_epoch(0)

    def begin_epoch(self, step: int) -> None:
        """Starts the means anew.

        Args:
            step: The last step before the epoch.
        """
        self._first = self._step = step
        self._rows: deque[Row] = deque()
        self._marks: deque[_Mark] = deque()
        self._reached: dict[str, _Reached] = {}

    @property
    def marked(self) -> bool:
        """True if the weights have been looked at in this epoch."""
        return self._step > self._first or bool(self._marks)

    def mark(self, step: int | None, *, ends: bool = False) -> None:
        """Looks at the metrics; what they hold is fetched later.

        Args:
            step: The last step that was done; None for that of the last row.
            ends: Whether the epoch may have ended there, with a smaller batch.
        """
        if self._read is None:
            self._metrics = list(_flat(self._model))
            self._places = {id(metric): place for place, metric in enumerate(self._means)}
            self._read = _reader(self._model, self._means)
        self._marks.append(_Mark(step, self._read(), ends or step is None))

    @property
    def _means(self) -> list[Any]:
        return [metric for metric in self._metrics if _is_mean(metric)]

    def add(self, rows: Sequence[Row]) -> None:
        """Adds what executions have logged, in their order."""
        self._rows.extend(rows)

    def take(self, *, all_rows: bool = False) -> list[tuple[int, dict[str, float]]]:
        """The values of the batches whose weights are known by now.

        Args:
            all_rows: Whether nothing more is to come: then the weights of the rest are
                taken to be like those before.
        """
        values: dict[int, dict[str, float]] = {}
        if self._read is not None and not self._places:
            all_rows = True  # there are no means, and nothing to wait for
        while self._marks and (all_rows or self._has_rows_of(self._marks[0])):
            self._take_block(self._marks.popleft(), values)
        if all_rows and self._rows:
            self._take_block(_Mark(None, None, ends=True), values)
        return sorted(values.items())

    def _has_rows_of(self, mark: _Mark) -> bool:
        last = self._rows[-1][0] if self._rows else self._step
        return mark.step is not None and last >= mark.step

    def _take_block(self, mark: _Mark, values: dict[int, dict[str, float]]) -> None:
        """Moves the rows until a mark to the values that they make."""
        rows = []
        while self._rows and (mark.step is None or self._rows[0][0] <= mark.step):
            rows.append(self._rows.popleft())
        sums = None if mark.sums is None else _on_host(mark.sums)
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
            # Of replicas that log each its own mean the first one's is not that of all.
            known = not self.of_one_replica
            return self._undone(name, block, math.nan, ends=ends) if known else ()
        total, count = map(float, sums[place])
        mean = total / count if count else 0.0
        step, logged = block[-1]
        if (not self.of_one_replica or not count) and not _is_same(mean, logged):
            self._as_logged.add(name)  # the metric is there, and something else is logged
        if name in self._as_logged:
            return block
        if self.of_one_replica:
            block[-1] = step, mean
        # Else the logs: when the metrics were looked at must not show in the numbers.
        return self._undone(name, block, count, ends=ends)

    def _undone(
        self, name: str, block: list[tuple[int, float]], count: float, *, ends: bool
    ) -> Iterator[tuple[int, float]]:
        """Takes the mean before from each mean of a block.

        Args:
            name: The metric.
            block: Steps, and the means there.
            count: The weight behind the last one; NaN where it is not known.
            ends: Whether the block may end with a smaller batch.
        """
        before, done = self._reached.get(name, _Reached()), self._step
        steps = [step for step, _ in block]
        weights = self._weights(name, steps, count - before.weight, ends=ends)
        finest = math.ceil((steps[-1] - self._first) * _BLUR)
        reached = before.weight
        for (step, mean), weight in zip(block, weights, strict=True):
            reached += weight
            if weight and (step - done >= finest or step == steps[-1]):
                share = before.weight / (reached - before.weight)
                yield step, mean + (mean - before.mean) * share if share else mean
                before, done = _Reached(reached, mean), step
        self._reached[name] = before

    def _weights(self, name: str, steps: list[int], gained: float, *, ends: bool) -> list[float]:
        """The weight of each of several rows; zero for those that the last one stands for."""
        spans = [step - last for last, step in zip([self._step, *steps], steps, strict=False)]
        if math.isnan(gained):
            return [span * self._per_step.get(name, 1.0) for span in spans]
        nothing = [0.0] * (len(steps) - 1)
        if gained <= 0:
            return [*nothing, 0.0]
        each = self._per_step.setdefault(name, gained / sum(spans))
        weights = [span * each for span in spans]
        rest = gained - sum(weights[:-1])
        least = 0.0 if ends else weights[-1] * (1 - _SAME)
        if least < rest <= weights[-1] * (1 + _SAME):
            return [*weights[:-1], rest]
        self._per_step[name] = gained / sum(spans)
        return [*nothing, gained]

    def _metric_of(self, name: str) -> Any:
        """The metric that is logged under a name; None where none is known."""
        if name not in self._named:
            taken = set(map(id, self._named.values()))
            free = [metric for metric in self._metrics if id(metric) not in taken]
            # With several outputs their names come first.
            same = [metric for metric in free if metric.name == name]
            ending = [metric for metric in free if name.endswith(f"_{metric.name}")]
            self._named[name] = next(iter([*same, *ending]), None)
        return self._named[name]


def _flat(model: Any) -> Iterator[Any]:
    """A model's metrics, and those that these contain."""
    for metric in getattr(model, "metrics", None) or ():
        inner = getattr(metric, "metrics", None)
        yield from inner if isinstance(inner, list) and inner else [metric]


def _is_mean(metric: Any) -> bool:
    """Returns whether what a metric logs is its total by its count."""
    if not (hasattr(metric, "total") and hasattr(metric, "count")):
        return False
    owner = next((kind for kind in type(metric).__mro__ if "result" in vars(kind)), object)
    return owner.__name__ in ("Mean", "Reduce") and _is_of_keras(owner)


def _is_of_keras(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] in ("keras", "tf_keras")


def _logs_of_one_replica(model: Any) -> bool:
    """Returns whether batches are logged for one of several replicas, as Keras 3 does."""
    strategy = getattr(model, "distribute_strategy", None)
    roots = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    return "keras" in roots and getattr(strategy, "num_replicas_in_sync", 1) > 1


def _is_same(one: float, other: float) -> bool:
    """Returns whether two numbers are the same as far as 32 bits go; what is not finite may be."""
    if not (math.isfinite(one) and math.isfinite(other)):
        return True
    return math.isclose(one, other, rel_tol=_SAME, abs_tol=1e-12)


def _reader(model: Any, metrics: Sequence[Any]) -> Callable[[], Any]:
    """A function that reads the totals and the counts of metrics, in one call."""
    if not metrics:
        return lambda: None
    if is_of_jax(model):
        return functools.partial(_read_jax, model, metrics)
    import tensorflow as tf

    def read() -> Any:
        pairs = [(_inner(metric.total), _inner(metric.count)) for metric in metrics]
        return tf.stack([[tf.cast(each, tf.float64) for each in pair] for pair in pairs])

    # Over several replicas it is a sum, and as a function ten times as cheap.
    function: Callable[[], Any] = tf.function(read, autograph=False)
    return function


def _read_jax(model: Any, metrics: Sequence[Any]) -> Any:
    """The same with the JAX backend, in a new array."""
    jnp = sys.modules["jax"].numpy
    pairs = [(metric.total, metric.count) for metric in metrics]
    return jnp.stack([jnp.stack([jax_value_of(one, model) for one in pair]) for pair in pairs])


def _on_host(sums: Any) -> Any:
    return sums.numpy() if hasattr(sums, "numpy") else np.asarray(sums)


def _inner(variable: Any) -> Any:
    """TensorFlow's variable within one of Keras 3."""
    value = getattr(variable, "value", variable)
    return variable if callable(value) else value
