"""The scale of a step's gradients on several replicas, compared with one replica.

A loss must be divided by the number of replicas, because their gradients are summed. Nothing fails
if it is not, so the scale is measured, in two parts:

- Tapes compute gradients on several replicas and on one, from the same weights. All replicas
  get the same examples, and random numbers are fixed. So chance makes no difference, and batch
  statistics make none.
- The step sums or averages the gradients of all replicas. To find out, all replicas get made-up
  gradients, and the single replica gets them in several strengths. One strength leads to the same
  variables. So no optimizer needs to be known, and clipping does not interfere, because the made-up
  gradients are too small.

On the single replica, the strategy says that there is 1 replica. A number in the user's code stays
as it is, so a step that divides by a number 8 has the same scale as a step that does not divide.
The scale is reported as it was measured, with the lines on which such a number scales a tensor.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tpunb.tensorflow.checks.replica_comparison import GradientScale, ReplicaComparison
from tpunb.tensorflow.checks.scaling_lines import lines_that_scale
from tpunb.tensorflow.checks.trial_batches import GlobalBatch
from tpunb.tensorflow.checks.trial_run import TrialRun
from tpunb.tensorflow.virtual.replicate.trial import shares

_EXACT, _ROUNDED = 1e-2, 6e-2
"""Relative differences that float32 and types of less precision may cause."""

_NEGLIGIBLE = 1e-5
"""Gradients this much smaller than the largest are the rounding errors of zeros."""

_MATTERS = 1e-3
"""The relative change of a variable that shows the strength of gradients."""

_MOST_STEPS = (1, 4, 16, 64)
"""The numbers of steps that are made until a step changes weights, if gradients accumulate."""


_NO_TAPE = (
    "No tf.GradientTape computes gradients of variables in the step, or another tape "
    "differentiates them."
)
_NO_MULTIPLE = (
    "The gradients on the replicas and on one replica do not differ by a factor. A part of the "
    "loss, such as a regularization loss, may not be divided by the number of replicas."
)


class NotKnownError(Exception):
    """The reason that a scale is not known."""


def measured_scale(
    step: Callable[..., Any],
    batch: GlobalBatch,
    strategy: Any,
    say: Callable[[str], object],
) -> ReplicaComparison:
    """Return the scale of a step's gradients.

    Args:
        step: A replica function, or a function that calls `strategy.run`.
        batch: Its arguments.
        strategy: The strategy.
        say: Receives each next phase.

    Raises:
        Exception: The step raised this error.
    """
    replicas = int(strategy.num_replicas_in_sync)
    if not batch.exists:
        note = "The step takes no batch. Pass the batch as an argument."
        return ReplicaComparison(replicas, None, note)
    say(f"computing the gradients on {replicas} replicas")
    experiment = _Experiment(step, batch, strategy, say)
    try:
        return experiment.scale()
    except NotKnownError as reason:
        return ReplicaComparison(replicas, None, str(reason), tuple(experiment.rows()))


class _Experiment:
    """The comparison of a step on several replicas with the same step on one."""

    def __init__(
        self,
        step: Callable[..., Any],
        batch: GlobalBatch,
        strategy: Any,
        say: Callable[[str], object],
    ) -> None:
        self._say = say
        self._step, self._batch, self._strategy = step, batch, strategy
        self._replicas = int(strategy.num_replicas_in_sync)
        self._same = batch.repeated()
        self._many = self._run(self._same.on_replicas, self._replicas)
        self._on_many = _gradients(self._many)
        self._tolerance = _ROUNDED if self._many.trial.is_rounded else _EXACT
        self._ratios: Sequence[float] = ()  # of each gradient, before the replicas are combined
        self._gain = math.nan
        self._differences: Sequence[float | None] = ()

    def scale(self) -> ReplicaComparison:
        """Return the scale.

        Raises:
            NotKnownError: The scale is not known.
        """
        if not self._on_many:
            raise NotKnownError(_NO_TAPE)
        self._say("computing the gradients on one replica")
        one = self._on_one()
        ratio, self._ratios = self._compared(one)
        self._say("measuring the update of the weights")
        self._gain, note = self._combined(one, ratio)
        self._say("computing the gradients of the batch itself")
        self._differences = self._on_batch_itself(one, ratio)
        factor = self._rounded(ratio * self._gain)
        if math.isnan(factor):
            raise NotKnownError(_NO_MULTIPLE)
        numbers = {float(self._replicas), 1 / self._replicas} if factor != 1 else set()
        return ReplicaComparison(
            self._replicas,
            factor,
            note,
            tuple(self.rows()),
            tuple(lines_that_scale(one.trial.functions, numbers)),
            tuple(self._many.trial.gradients[0].lines),
        )

    def rows(self) -> Iterator[GradientScale]:
        """Yield the gradients as far as they were measured."""
        calls = self._many.trial.gradients
        names = [pair for one in calls for pair in zip(one.names, one.shapes, strict=True)]
        ratios = () if math.isnan(self._gain) else self._ratios
        for (name, shape), ratio, difference in itertools.zip_longest(
            names, ratios, self._differences
        ):
            scale = None if ratio is None else ratio * self._gain
            yield GradientScale(name, shape, scale, difference)

    def _run(self, arguments: Sequence[Any], replicas: int) -> TrialRun:
        return TrialRun(self._step, arguments, self._strategy, replicas, self._batch.examples)

    def _on_one(self) -> TrialRun:
        with _failing("The step does not run on one replica"):
            return self._run(self._same.on_one, 1)

    def _compared(self, one: TrialRun) -> tuple[float, list[float]]:
        """Compare the gradients that tapes compute.

        Returns:
            The gradients as a multiple of those on one replica, and this multiple of each; NaN
            where they do not differ by a factor.

        Raises:
            NotKnownError: They cannot be compared.
        """
        with _failing("The step does not run on one replica"):
            on_one = _gradients(one)
        if [a.shape for a in self._on_many] != [b.shape for b in on_one]:
            raise NotKnownError("The step computes other gradients on one replica.")
        if not all(np.isfinite(each).all() for each in (*self._on_many, *on_one)):
            raise NotKnownError("Gradients are not finite.")
        return _ratio(self._on_many, on_one, self._tolerance)

    def _combined(self, one: TrialRun, ratio: float) -> tuple[float, str]:
        """Return the multiple of a replica's gradient that all replicas' gradients amount to.

        Args:
            one: The step on one replica.
            ratio: The multiple that the gradients of a replica are.

        Returns:
            The multiple, and a remark.

        Raises:
            NotKnownError: It is not known.
        """
        count = float(self._replicas)
        for steps in _MOST_STEPS:
            known = {gain: self._response(one, [gain], steps) for gain in (1.0, count, 1 / count)}
            low, high = known[1.0], known[count]
            trained = _trained(one, low)
            if any(_has_changed(low[key], high[key]) for key in trained):
                break
        else:
            raise NotKnownError(f"No weight changes within {steps} steps.")
        many = self._response(self._many, shares(self._replicas), steps)
        if any(_differ(many[key]) for key in trained if key in many):
            raise NotKnownError("After a step, the replicas have different weights.")
        spans = {
            key: _distance(low[key][0], high[key][0])
            for key in low.keys() & high.keys() & many.keys()
            if not _differ(many[key])
        }
        telling = [k for k in spans if spans[k] > _MATTERS * _size(high[k][0], low[k][0])]
        if not telling:
            return 1 / ratio, "The update does not depend on the scale of the gradients."
        errors = {
            gain: max(_distance(many[key][0], each[key][0]) / spans[key] for key in telling)
            for gain, each in known.items()
        }
        gain = min(errors, key=errors.__getitem__)
        if not errors[gain] <= self._tolerance:
            raise NotKnownError(
                "The step combines the gradients of the replicas in a way that no multiple of one "
                "replica's gradients explains."
            )
        return gain, ""

    def _response(
        self, run: TrialRun, strengths: Sequence[float], steps: int
    ) -> dict[str, list[np.ndarray]]:
        """Return the numbers that variables have after steps with made-up gradients, by key."""
        with _failing("The step fails with weights of zero"):
            values = run.respond(strengths, steps)
        return {
            variable.key: each
            for variable, each in zip(run.trial.stand_ins, values, strict=True)
            if each[0].dtype.kind == "f" and all(np.isfinite(one).all() for one in each)
        }

    def _on_batch_itself(self, one: TrialRun, ratio: float) -> list[float | None]:
        """Return the relative differences of the gradients on the batch as it was passed."""
        if not self._batch.is_even:
            return []
        given = self._batch.as_given()
        with _failing("The step does not run on one replica"):
            on_one = _gradients(one, given.on_one)
        scale = 1 / self._gain if math.isnan(ratio) else ratio
        sizes = [float(np.linalg.norm(each)) for each in on_one]
        return [
            float(np.linalg.norm(a / scale - b) / size) if size > _NEGLIGIBLE * max(sizes) else None
            for a, b, size in zip(
                _gradients(self._many, given.on_replicas), on_one, sizes, strict=True
            )
        ]

    def _rounded(self, factor: float) -> float:
        """Return the factor, exactly if it is the number of replicas, 1 or a share of 1."""
        count = float(self._replicas)
        exact = (1.0, count, 1 / count)
        return next((e for e in exact if abs(factor / e - 1) <= 2 * self._tolerance), factor)


def _gradients(run: TrialRun, arguments: Sequence[Any] | None = None) -> list[np.ndarray]:
    """Return the gradients that tapes compute, averaged over the replicas."""
    return [np.mean(each, axis=0) for call in run.measure(arguments) for each in call]


def _ratio(
    many: Sequence[np.ndarray], one: Sequence[np.ndarray], tolerance: float
) -> tuple[float, list[float]]:
    """Return the multiple that nearly all gradients are of others, and the multiple of each."""
    sizes, others = ([float(np.linalg.norm(each)) for each in side] for side in (one, many))
    if not any(sizes):
        raise NotKnownError("All gradients are zero.")
    ratios, counted = [], []
    for a, b, size, other in zip(many, one, sizes, others, strict=True):
        ratio = float(a @ b / size**2) if size else math.nan
        fits = size and float(np.linalg.norm(a - ratio * b)) <= tolerance * other
        ratios.append(ratio if fits else math.nan)
        if size > _NEGLIGIBLE * max(sizes) or other > _NEGLIGIBLE * max(others):
            counted.append(ratios[-1])
    common = float(
        np.nanmedian([*counted, math.inf if all(map(math.isnan, counted)) else math.nan])
    )
    near = [ratio for ratio in counted if abs(ratio / common - 1) <= tolerance]
    is_common = len(near) >= 0.9 * len(counted) and 0 < common < math.inf
    return common if is_common else math.nan, ratios


def _trained(run: TrialRun, response: Mapping[str, Any]) -> list[str]:
    """Return the keys of trained variables that are in a response."""
    variables = run.trial.stand_ins
    return [each.key for each in variables if each.is_trained and each.key in response]


def _has_changed(low: Sequence[np.ndarray], high: Sequence[np.ndarray]) -> bool:
    """Return whether made-up gradients have changed a variable, which was zero if it has axes."""
    return bool(low[0].ndim and low[0].any()) or not np.array_equal(low[0], high[0])


def _differ(values: Sequence[np.ndarray]) -> bool:
    """Return whether replicas have different values."""
    return any(_distance(one, values[0]) > _MATTERS * _size(one, values[0]) for one in values[1:])


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max()) if one.size else 0.0


def _size(*values: np.ndarray) -> float:
    return max(float(np.abs(one).max()) if one.size else 0.0 for one in values)


@contextlib.contextmanager
def _failing(what: str) -> Iterator[None]:
    """Raise `NotKnownError` for an error of the step."""
    try:
        yield
    except Exception as error:
        raise NotKnownError(f"{what}: {_line(error)}") from error


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # AutoGraph's errors begin with the traceback.
    return lines[-1].strip() if lines[0].startswith("in user code") else lines[0]
