"""A metric: its columns of numbers, the meaning of its name, and the panel it belongs to."""

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
        start: The number of the first row, counted from 0.
        steps: The step of each row.
        values: Its value; the mean if a value was logged for each replica.
        lows: The minimum over the replicas, or None if none were logged.
        highs: The maximum over the replicas, or None.
    """

    start: int
    steps: Ints
    values: Floats
    lows: Floats | None
    highs: Floats | None

    def to_dict(self) -> dict[str, list[int] | list[float]]:
        """The columns as lists: `steps` and `values`, `min` and `max` if they were logged."""
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
        """Appends a row, or replaces the one of the same step."""
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
        """Appends rows."""
        if lows is not None:
            self.spread()
        if self.lows is not None and self.highs is not None:
            self.lows.frombytes((values if lows is None else lows).tobytes())
            self.highs.frombytes((values if highs is None else highs).tobytes())
        self.values.frombytes(values.tobytes())
        self.steps.frombytes(steps.tobytes())
        self.last = int(steps[-1])

    def spread(self) -> None:
        """Starts to keep the spread; so far there was none."""
        if self.lows is None:
            self.highs = self.values[:]
            self.lows = self.values[:]

    def read(self, start: int) -> Columns:
        """A copy of the rows from `start` on, while another thread may append."""
        # Steps are appended last: a row with a step is complete. Slices are copies:
        # an array with a view on it could not grow.
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
    """The goal of a metric, `min` or `max`, by the last word of its name that implies it.

    Returns:
        `min` for a loss or an error, `max` for an accuracy or a score, else an
        empty string.
    """
    for word in reversed(_WORD.findall(name)):
        if word.lower() in _LOW:
            return "min"
        if word.lower() in _HIGH:
            return "max"
    return ""


def best_row(values: npt.NDArray[np.float64], goal: str) -> int | None:
    """The first row of the best finite value; None if there is none.

    Args:
        values: A metric's values.
        goal: `min` or `max`.
    """
    kept = np.flatnonzero(np.isfinite(values))
    if not kept.size:
        return None
    pick = np.argmin if goal == "min" else np.argmax
    return int(kept[pick(values[kept])])


@functools.lru_cache(maxsize=2**14)  # asked ten times a second for each metric that is shown
def panel_of(name: str) -> tuple[str, bool]:
    """The panel that a metric belongs on, and whether it is a validation's.

    `val_loss`, `train/loss` and `loss` share the panel `loss`.
    """
    found = _ROLE.fullmatch(name)
    if found is None:
        return name, False
    return found["rest"], not found["role"].startswith("train")


def whole(value: Any, what: str) -> int:
    """A whole number, also from an array or tensor of one.

    Raises:
        TypeError: If it is none; `what` is the sentence's subject.
    """
    try:
        return operator.index(value)
    except TypeError as error:
        message = f"{what} is a whole number, not {type(value).__name__}"
        raise TypeError(message) from error


def checked(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """Metrics whose names are strings that can be read.

    Raises:
        TypeError: If they are no mapping, or a name is no string.
        ValueError: If a name is empty.
    """
    if not isinstance(metrics, Mapping):
        raise TypeError(
            f"metrics are a dict of values by name, not {type(metrics).__name__}: "
            "append(step, {'loss': 0.3}) or append(step, loss=0.3)"
        )
    for name in metrics:
        if not isinstance(name, str):
            raise TypeError(f"the name of a metric is a string, not {name!r}")
        if not name.strip():
            raise ValueError("the name of a metric is empty")
    return metrics


def mean_of(values: npt.NDArray[np.float64]) -> Any:
    """The mean along the last axis, also of values whose sum is more than a float holds."""
    # Replicas that are all at one infinity have a mean; numpy would warn of the others.
    with np.errstate(invalid="ignore", over="ignore"):
        mean = values.mean(-1)
        if np.isfinite(mean).all():
            return mean
        return np.where(np.isinf(mean), (values / values.shape[-1]).sum(-1), mean)


def summary(name: str, value: Any) -> tuple[float, float, float, bool]:
    """A value of a metric as mean, minimum and maximum, and whether there are several.

    Args:
        name: The metric, for the errors.
        value: A number, an array or tensor of at most one axis, a sequence of
            numbers, or a distributed value: anything with a tuple `values`.

    Raises:
        TypeError: If it is none of these.
        ValueError: If it is empty or has more axes.
    """
    parts = getattr(value, "values", None)
    several = parts if isinstance(parts, tuple) else value
    try:
        if isinstance(several, (list, tuple)):
            several = [_array_of(item) for item in several]
        numbers = _array_of(several)
        # bfloat16 has its own dtype kind, and converts to float.
        if numbers.dtype.kind in "OUSMmc":
            raise TypeError(numbers.dtype)
        numbers = np.asarray(numbers, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name!r} is a number, or one per replica, not {type(value).__name__}"
        ) from error
    if numbers.ndim > 1:
        raise ValueError(
            f"{name!r} is one number, or one per replica; this has the shape "
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
    """An array of what may be a tensor, in whatever dtype it has."""
    # NumPy cannot convert a tensor of bfloat16 by itself.
    return np.asarray(value.numpy() if callable(getattr(value, "numpy", None)) else value)


MAX_PANELS = 12
"""Panels that are drawn; a picture of a thousand takes minutes and is unreadable."""

# Matplotlib's axes compute with ranges and their multiples: near the ends of what a float
# holds these overflow. What is beyond is drawn at the edge; the legend has the value itself.
_LARGEST = 1e300
_LARGEST_LOG = 1e130  # such an axis goes on by whole strides of its ticks


class PanelLine(NamedTuple):
    """One metric's line on its panel.

    Attributes:
        metric: The metric's full name.
        role: `train` or `validation` where the panel has both, else the metric's name.
        validation: Whether it is a validation metric.
    """

    metric: str
    role: str
    validation: bool


def panels_of(names: Iterable[str]) -> dict[str, list[PanelLine]]:
    """The panels on which metrics are drawn, in the order in which they come.

    Args:
        names: The metrics' names; a repeated one has one line.

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
    """Values that an axis can be made for, NaN for what is not drawn.

    Args:
        values: Any values.
        log: Whether the axis is logarithmic.
    """
    shown = np.isfinite(values) & ((values > 0) | (not log))
    low, high = (1 / _LARGEST_LOG, _LARGEST_LOG) if log else (-_LARGEST, _LARGEST)
    return np.where(shown, np.clip(values, low, high), np.nan)
