"""A metric: its columns of numbers, the goal that its name implies, and its panel."""

from __future__ import annotations

import functools
import math
import operator
import re
from array import array
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Columns(NamedTuple):
    """Some rows of a metric, copied into arrays.

    Attributes:
        start: The number of the first row, from 0.
        steps: The step of each row.
        values: The value of each row, or the mean if each replica logged a value.
        lows: The minimum over the replicas, or None if no replica logged a value.
        highs: The maximum over the replicas, or None.
    """

    start: int
    steps: Ints
    values: Floats
    lows: Floats | None
    highs: Floats | None

    def to_dict(self) -> dict[str, list[int] | list[float]]:
        """Return the columns as lists `steps` and `values`, and `min` and `max` if logged."""
        columns = {"steps": self.steps.tolist(), "values": self.values.tolist()}
        if self.lows is not None and self.highs is not None:
            columns |= {"min": self.lows.tolist(), "max": self.highs.tolist()}
        return columns


class Series:
    """The columns of one metric, which grow in amortised constant time."""

    __slots__ = ("highs", "last", "lows", "steps", "values")

    def __init__(self) -> None:
        self.steps, self.values = array("q"), array("d")
        self.lows: array[float] | None = None
        self.highs: array[float] | None = None
        self.last: int | None = None

    def put(self, step: int, value: float, low: float, high: float) -> None:
        """Append a row, or replace the last row if it has the same step."""
        if step == self.last:
            self.values[-1] = value
            if self.lows is not None and self.highs is not None:
                self.lows[-1], self.highs[-1] = low, high
            return
        if self.lows is not None and self.highs is not None:
            self.lows.append(low)
            self.highs.append(high)
        self.values.append(value)
        self.steps.append(step)
        self.last = step

    def extend(self, steps: Ints, values: Floats, lows: Any = None, highs: Any = None) -> None:
        """Append rows."""
        if lows is not None:
            self.spread()
        if self.lows is not None and self.highs is not None:
            self.lows.frombytes((values if lows is None else lows).tobytes())
            self.highs.frombytes((values if highs is None else highs).tobytes())
        self.values.frombytes(values.tobytes())
        self.steps.frombytes(steps.tobytes())
        self.last = int(steps[-1])

    def spread(self) -> None:
        """Start to record minima and maxima. Earlier rows get their values as both."""
        if self.lows is None:
            self.highs = self.values[:]
            self.lows = self.values[:]

    def read(self, start: int) -> Columns:
        """Return a copy of the rows from `start`, while another thread may append."""
        # Steps are appended last, so a row with a step is complete. Slices are copies,
        # because an array that has a view cannot grow.
        stop = len(self.steps)
        lows, highs = self.lows, self.highs
        return Columns(
            start,
            np.frombuffer(self.steps[start:stop], np.int64),
            np.frombuffer(self.values[start:stop], np.float64),
            None if lows is None else np.frombuffer(lows[start:stop], np.float64),
            None if lows is None or highs is None else np.frombuffer(highs[start:stop], np.float64),
        )


_LOW = {
    "loss", "losses", "error", "errors", "err", "crossentropy", "entropy", "mse", "mae", "rmse",
    "mape", "msle", "perplexity", "ppl", "divergence", "kl", "wer", "cer", "fid", "nll",
    "poisson", "hinge", "logcosh",
}  # fmt: skip
_HIGH = {
    "accuracy", "acc", "auc", "precision", "recall", "f1", "fscore", "score", "iou", "dice",
    "bleu", "rouge", "reward", "rewards", "return", "returns", "r2", "psnr", "ssim",
    "similarity", "map", "sensitivity", "specificity", "ndcg", "mrr",
}  # fmt: skip
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+[0-9]*|[0-9]+")
_ROLE = re.compile(r"(?P<role>train|training|val|valid|validation|eval|test)[_/.:\- ](?P<rest>.+)")


def goal_of(name: str) -> str:
    """Return the goal of a metric, by the last word of its name that implies a goal.

    Returns:
        `min` for a loss or an error, `max` for an accuracy or a score, otherwise an
        empty string.
    """
    for word in reversed(_WORD.findall(name)):
        if word.lower() in _LOW:
            return "min"
        if word.lower() in _HIGH:
            return "max"
    return ""


def best_row(values: npt.NDArray[np.float64], goal: str) -> int | None:
    """Return the first row with the best finite value, or None if no value is finite.

    Args:
        values: A metric's values.
        goal: `min` or `max`.
    """
    finite = np.flatnonzero(np.isfinite(values))
    if not finite.size:
        return None
    pick = np.argmin if goal == "min" else np.argmax
    return int(finite[pick(values[finite])])


@functools.lru_cache(maxsize=2**14)  # called ten times a second for each visible metric
def panel_of(name: str) -> tuple[str, bool]:
    """Return the panel of a metric, and whether it is a validation metric.

    `val_loss`, `train/loss` and `loss` share the panel `loss`.
    """
    match = _ROLE.fullmatch(name)
    if match is None:
        return name, False
    return match["rest"], not match["role"].startswith("train")


def whole(value: Any, subject: str) -> int:
    """Return a whole number, which may be in an array or tensor of one number.

    Raises:
        TypeError: If the value is not a whole number. `subject` begins the message.
    """
    try:
        return operator.index(value)
    except TypeError as error:
        message = f"{subject} must be a whole number, not {type(value).__name__}"
        raise TypeError(message) from error


def checked(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return metrics after checking that their names are readable strings.

    Raises:
        TypeError: If the metrics are not a mapping, or a name is not a string.
        ValueError: If a name is empty.
    """
    if not isinstance(metrics, Mapping):
        raise TypeError(
            f"metrics must be a dict of values by name, not {type(metrics).__name__}: "
            "append(step, {'loss': 0.3}) or append(step, loss=0.3)"
        )
    for name in metrics:
        if not isinstance(name, str):
            raise TypeError(f"the name of a metric must be a string, not {name!r}")
        if not name.strip():
            raise ValueError("the name of a metric is empty")
    return metrics


def mean_of(values: npt.NDArray[np.float64]) -> Any:
    """Return the mean along the last axis, even of values whose sum overflows a float."""
    # If all replicas have the same infinity, so has the mean. NumPy would warn of the others.
    with np.errstate(invalid="ignore", over="ignore"):
        mean = values.mean(-1)
        if np.isfinite(mean).all():
            return mean
        return np.where(np.isinf(mean), (values / values.shape[-1]).sum(-1), mean)


def summary(name: str, value: Any) -> tuple[float, float, float, bool]:
    """Return the mean, minimum and maximum of a metric's value, and whether it has several numbers.

    Args:
        name: The metric, for the errors.
        value: A number, an array or tensor with at most one axis, a sequence of
            numbers, or a distributed value: an object with a tuple `values`.

    Raises:
        TypeError: If the value is none of these.
        ValueError: If the value is empty or has more axes.
    """
    parts = getattr(value, "values", None)
    several = parts if isinstance(parts, tuple) else value
    try:
        if isinstance(several, (list, tuple)):
            several = [_array_of(item) for item in several]
        numbers = _array_of(several)
        # bfloat16 has its own dtype kind, but converts to float.
        if numbers.dtype.kind in "OUSMmc":
            raise TypeError(numbers.dtype)
        numbers = np.asarray(numbers, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name!r} must be one number, or one per replica, not {type(value).__name__}"
        ) from error
    if numbers.ndim > 1:
        raise ValueError(
            f"{name!r} must be one number, or one per replica, but its shape is "
            f"{list(numbers.shape)}: reduce it first"
        )
    if not numbers.size:
        raise ValueError(f"{name!r} has no values")
    if numbers.size == 1:
        only = float(numbers.reshape(-1)[0])
        return only, only, only, numbers.ndim == 1
    mean = float(mean_of(numbers))
    low, high = float(numbers.min()), float(numbers.max())
    return mean, (math.nan if math.isnan(low) else low), high, True


def _array_of(value: Any) -> Any:
    """Return the array of a value that may be a tensor, with its own dtype."""
    # NumPy itself cannot convert a bfloat16 tensor.
    return np.asarray(value.numpy() if callable(getattr(value, "numpy", None)) else value)


MAX_PANELS = 12
"""The most panels to draw. A picture of a thousand panels takes minutes and is unreadable."""

# Matplotlib's axes compute with ranges and their multiples, which overflow near the limits of a
# float. Values beyond these limits are drawn at the edge; the legend shows the value itself.
_LARGEST = 1e300
_LARGEST_LOG = 1e130  # a logarithmic axis extends by whole strides of its ticks


class PanelLine(NamedTuple):
    """One metric's line on its panel.

    Attributes:
        metric: The metric's full name.
        role: `train` or `validation` if the panel has both, otherwise the metric's name.
        validation: Whether it is a validation metric.
    """

    metric: str
    role: str
    validation: bool


def panels_of(names: Iterable[str]) -> dict[str, list[PanelLine]]:
    """Return the panels of metrics, in the order of the metrics.

    Args:
        names: The metrics' names. A repeated name has one line.

    Returns:
        Each panel's lines, by its title.
    """
    names = list(dict.fromkeys(names))
    shared = {panel_of(name)[0] for name in names if panel_of(name)[1]}
    panels: dict[str, list[PanelLine]] = {}
    for name in names:
        title, validation = panel_of(name)
        role = ("validation" if validation else "train") if title in shared else name
        panels.setdefault(title, []).append(PanelLine(name, role, validation))
    return panels


def within_reach(values: Floats, *, log: bool = False) -> Floats:
    """Return values that fit on an axis, with NaN for values that are not drawn.

    Args:
        values: Any values.
        log: Whether the axis is logarithmic.
    """
    shown = np.isfinite(values) & ((values > 0) | (not log))
    low, high = (1 / _LARGEST_LOG, _LARGEST_LOG) if log else (-_LARGEST, _LARGEST)
    return np.where(shown, np.clip(values, low, high), np.nan)
