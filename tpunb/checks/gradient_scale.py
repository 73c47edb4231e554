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

The single replica is asked for its number of replicas, and answers 1. A Python number, which stays
as it is, may also be the number of replicas: see `replica_numbers`. There is a verdict only if the
scale is the same with every meaning of these numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tpunb.checks.replica_comparison import GradientScale, ReplicaComparison
from tpunb.checks.replica_numbers import Number, numbers_of
from tpunb.checks.trial_batches import GlobalBatch
from tpunb.checks.trial_run import TrialRun
from tpunb.virtual.tensorflow.replicate.trial import STRENGTH, shares

_EXACT, _ROUNDED = 1e-2, 6e-2
"""Relative differences that float32 and types of less precision may cause."""

_NEGLIGIBLE = 1e-5
"""Gradients this much smaller than the largest are the rounding errors of zeros."""

_MATTERS = 1e-3
"""The relative change of a variable that shows the strength of gradients."""

_MOST_STEPS = (1, 4, 16, 64)
"""The numbers of steps that are made until a step changes weights, if gradients accumulate."""


class NotKnownError(Exception):
    """The reason that a scale is not known."""


@dataclasses.dataclass(frozen=True)
class _Ratio:
    """Gradients on several replicas, as multiples of the gradients on one replica, or NaN.

    Attributes:
        common: The multiple that nearly all have.
        each: The multiple of each.
        telling: The multiples of those that are not negligible.
    """

    common: float
    each: tuple[float, ...]
    telling: tuple[float, ...]


def measured_scale(
    step: Callable[..., Any],
    batch: GlobalBatch,
    strategy: Any,
    roots: Sequence[Any],
    say: Callable[[str], object],
) -> ReplicaComparison:
    """Return the scale of a step's gradients.

    Args:
        step: A replica function, or a function that calls `strategy.run`.
        batch: Its arguments.
        strategy: The strategy.
        roots: The user's functions and objects that the step uses.
        say: Receives each next phase.

    Raises:
        Exception: The step raised this error.
    """
    replicas = int(strategy.num_replicas_in_sync)
    if not batch.exists:
        note = "The step takes no batch. Pass the batch as an argument."
        return ReplicaComparison(replicas, None, note)
    same = batch.repeated()
    say(f"computing the gradients on {replicas} replicas")
    many = TrialRun(step, same.on_replicas, strategy, replicas, batch.examples)
    on_many = many.measure()
    if not on_many:
        return ReplicaComparison(
            replicas,
            None,
            "No tf.GradientTape computes gradients of variables in the step, or another tape "
            "differentiates them.",
        )
    trial = _Experiment(step, batch, strategy, many, on_many, roots, say)
    try:
        return trial.scale()
    except NotKnownError as reason:
        return ReplicaComparison(replicas, None, str(reason), tuple(trial.rows()))


@dataclasses.dataclass(frozen=True)
class _Meaning:
    """A meaning that a number may have.

    Attributes:
        on_one: The number that it would be on one replica with the same global batch.
        what: The meaning.
        instead: The code that says so.
        of_loss: Whether only the loss may be scaled, because after the tape such a number is
            usually a learning rate.
        is_multiple: Whether it would be a multiple of the number of replicas.
    """

    on_one: float
    what: str
    instead: str
    of_loss: bool = False
    is_multiple: bool = False


class _Experiment:
    """The comparison of a step on several replicas with the same step on one."""

    def __init__(
        self,
        step: Callable[..., Any],
        batch: GlobalBatch,
        strategy: Any,
        many: TrialRun,
        on_many: Sequence[Any],
        roots: Sequence[Any],
        say: Callable[[str], object],
    ) -> None:
        self._roots, self._say = roots, say
        self._step, self._batch, self._strategy = step, batch, strategy
        self._many, self._on_many = many, on_many
        self._replicas = many.trial.replicas
        self._same = batch.repeated()
        self._ratio: _Ratio | None = None
        self._gain = 0.0
        self._differences: Sequence[float | None] = ()

    def scale(self) -> ReplicaComparison:
        """Return the scale.

        Raises:
            NotKnownError: The scale is not known.
        """
        self._say("computing the gradients on one replica")
        one = self._on_one()
        ratio = self._ratio = self._compared(one)
        self._say("measuring the update of the weights")
        gain, note = self._combined(one)
        self._gain = gain
        self._say("computing the gradients of the batch itself")
        self._differences = self._on_batch_itself(one)
        factor = self._rounded(ratio.common * gain)
        self._refuse_numbers(factor)
        if math.isnan(factor):
            raise NotKnownError(self._no_multiple())
        gradients, scales = tuple(self.rows()), self._scales_update(one)
        places = tuple(self._many.trial.gradients[0].lines)
        return ReplicaComparison(self._replicas, factor, note, gradients, scales, places)

    def rows(self) -> Iterator[GradientScale]:
        """Yield the gradients as far as they were measured."""
        calls = self._many.trial.gradients
        names = [pair for one in calls for pair in zip(one.names, one.shapes, strict=True)]
        each = self._ratio.each if self._ratio is not None else ()
        for place, (name, shape) in enumerate(names):
            scale = each[place] * self._gain if place < len(each) and self._gain else None
            known = place < len(self._differences)
            yield GradientScale(name, shape, scale, self._differences[place] if known else None)

    def _on_one(self) -> TrialRun:
        try:
            return TrialRun(self._step, self._same.on_one, self._strategy, 1, self._batch.examples)
        except Exception as error:
            raise NotKnownError(f"The step does not run on one replica: {_line(error)}") from error

    def _compared(self, one: TrialRun) -> _Ratio:
        """Compare the gradients that tapes compute.

        Raises:
            NotKnownError: They cannot be compared.
        """
        on_many = [np.mean(each, axis=0) for call in self._on_many for each in call]
        on_one = [each[0] for call in _measured(one) for each in call]
        if [a.shape for a in on_many] != [b.shape for b in on_one]:
            raise NotKnownError("The step computes other gradients on one replica.")
        if not all(np.isfinite(one).all() for one in (*on_many, *on_one)):
            raise NotKnownError("Gradients are not finite.")
        return _ratio(on_many, on_one, self._tolerance)

    @property
    def _tolerance(self) -> float:
        return _ROUNDED if self._many.trial.is_rounded else _EXACT

    def _combined(self, one: TrialRun) -> tuple[float, str]:
        """Return the multiple of a replica's gradient that all replicas' gradients amount to.

        Returns:
            The multiple, and a remark.

        Raises:
            NotKnownError: It is not known.
        """
        count = self._replicas
        for steps in _MOST_STEPS:
            low = self._response(one, [1.0], steps)
            high = self._response(one, [float(count)], steps)
            trained = [
                each.key for each in one.trial.stand_ins if each.is_trained and each.key in low
            ]
            if any(_changed(low[key], high[key]) for key in trained):
                break
        else:
            raise NotKnownError(f"No weight changes within {steps} steps.")
        many = self._response(self._many, shares(count), steps)
        if any(_differ(many[key]) for key in trained if key in many):
            raise NotKnownError("After a step, the replicas have different weights.")
        telling = [
            key
            for key in low.keys() & high.keys() & many.keys()
            if _distance(low[key][0], high[key][0]) > _MATTERS * _size(high[key][0], low[key][0])
            and not _differ(many[key])
        ]
        if not telling:
            return 1.0 / (self._ratio.common if self._ratio else 1.0), (
                "The update does not depend on the scale of the gradients."
            )
        few = self._response(one, [1.0 / count], steps)
        known = {1.0: low, float(count): high, 1.0 / count: few}
        errors = {
            gain: max(
                _distance(many[key][0], response[key][0]) / _distance(low[key][0], high[key][0])
                for key in telling
            )
            for gain, response in known.items()
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
        try:
            values = run.respond(strengths, steps)
        except Exception as error:
            raise NotKnownError(f"The step fails with weights of zero: {_line(error)}") from error
        return {
            variable.key: each
            for variable, each in zip(run.trial.stand_ins, values, strict=True)
            if each[0].dtype.kind == "f" and all(np.isfinite(one).all() for one in each)
        }

    def _on_batch_itself(self, one: TrialRun) -> list[float | None]:
        """Return the relative differences of the gradients on the batch as it was passed."""
        ratio = self._ratio
        if ratio is None or not self._batch.is_even:
            return []
        given = self._batch.as_given()
        on_many = [
            np.mean(each, axis=0) for call in self._many.measure(given.on_replicas) for each in call
        ]
        on_one = [each[0] for call in _measured(one, given.on_one) for each in call]
        scale = 1 / self._gain if math.isnan(ratio.common) else ratio.common
        largest = max((np.linalg.norm(each) for each in on_one), default=0.0)
        return [
            float(np.linalg.norm(a / scale - b) / size) if size > _NEGLIGIBLE * largest else None
            for a, b in zip(on_many, on_one, strict=True)
            for size in [np.linalg.norm(b)]
        ]

    def _scales_update(self, one: TrialRun) -> bool:
        """Return whether larger gradients, of the present size, make the update as much larger."""
        count = self._replicas
        size = math.hypot(*(np.linalg.norm(each) for call in self._on_many for each, *_ in call))
        strength = float(size) / STRENGTH
        try:
            low, high = (
                self._response(one, [strength * times], 1) for times in (1.0, float(count))
            )
        except NotKnownError:
            return False
        trained = _trained(one, high)
        changed = [key for key in trained if low[key][0].ndim and low[key][0].any()]
        return bool(changed) and all(
            _distance(count * low[key][0], high[key][0]) <= self._tolerance * _size(high[key][0])
            for key in changed
        )

    def _no_multiple(self) -> str:
        return (
            "The gradients on the replicas and on one replica do not differ by a factor. A part of "
            "the loss, such as a regularization loss, may not be divided by the number of replicas."
        )

    def _rounded(self, factor: float) -> float:
        """Return the factor, exactly if it is the number of replicas, 1 or a share of 1."""
        count = self._replicas
        exact = (1.0, float(count), 1.0 / count)
        return next((e for e in exact if abs(factor / e - 1) <= 2 * self._tolerance), factor)

    def _refuse_numbers(self, factor: float) -> None:
        """Refuse a verdict if the scale depends on a number that may be the number of replicas.

        Raises:
            NotKnownError: It depends on such a number.
        """
        numbers = numbers_of(self._roots, lambda value: self._meaning(value, factor) is not None)
        pairs = [
            (number, meaning)
            for number in sorted(numbers, key=lambda number: number.holder is None)
            if (meaning := self._meaning(number.value, factor)) is not None
        ]
        names = [pair for pair in pairs if pair[0].holder is not None]
        tried = [[pair] for pair in pairs] + ([names] if len(names) > 1 else [])
        for together in tried:
            number, meaning = together[0]
            if not self._are_unused(together, factor):
                raise NotKnownError(
                    f"{number.where} is {number.value:g}, {meaning.what}. If it is "
                    f"meant so, write {meaning.instead}."
                )

    def _are_unused(self, pairs: Sequence[tuple[Number, _Meaning]], factor: float) -> bool:
        """Return whether the scale is the same if numbers have other meanings."""
        number, meaning = pairs[0]
        of_loss = all(each.of_loss for _, each in pairs)
        if number.holder is None:
            return (of_loss and _is_chosen(number.value)) or math.isnan(factor)
        self._say(f"trying {number.text} = {meaning.on_one:g} on one replica")
        try:
            with contextlib.ExitStack() as stack:
                for each, other in pairs:
                    stack.enter_context(each.rebound(other.on_one))
                one = self._on_one()
                ratio = self._compared(one)
                gain = self._gain if of_loss else self._combined(one)[0]
        except (NotKnownError, TypeError):
            return False
        scale = self._rounded(ratio.common * gain)
        if math.isnan(scale):
            # A divisor of the loss gives another factor, and not none.
            return of_loss or meaning.is_multiple or math.isnan(factor)
        return scale == factor

    def _meaning(self, value: float, factor: float) -> _Meaning | None:
        """Return what a number may be, apart from a number of the user's choice; or None."""
        if value < 0:
            positive = self._meaning(-value, factor)
            return positive and dataclasses.replace(positive, on_one=-positive.on_one)
        count, examples = self._replicas, self._batch.examples or 1
        if _is_size(value, count):
            return _Meaning(1.0, "as many as there are replicas", _instead("{}"))
        if _is_size(value * count, 1):
            return _Meaning(1.0, "one over the number of replicas", _instead("1 / {}"))
        if examples > 1 and _is_size(value, examples):
            what = "as many as a replica has examples"
            return _Meaning(value * count, what, "`tf.shape(x)[0]` of the batch `x`")
        if examples > 1 and _is_size(value * examples, 1):
            what = "one over the number of a replica's examples"
            return _Meaning(value / count, what, "`1 / tf.shape(x)[0]` of the batch `x`")
        divisor = 1 / value if 0 < value < 1 else value
        if divisor < count or (factor == 1.0 and _is_size(divisor, count * examples)):
            return None  # a sum over the global batch is divided by the same on one replica
        times = round(divisor / count)
        if not _is_size(divisor, times * count):
            return None
        if divisor != value:
            what = "one over a multiple of the number of replicas"
            return _Meaning(value * count, what, _instead(f"1 / ({times} * {{}})"), of_loss=True)
        what = "a multiple of the number of replicas"
        instead = _instead(f"{times} * {{}}")
        return _Meaning(value / count, what, instead, is_multiple=True)


def _measured(run: TrialRun, arguments: Sequence[Any] | None = None) -> Any:
    try:
        return run.measure(arguments)
    except Exception as error:
        raise NotKnownError(f"The step does not run on one replica: {_line(error)}") from error


def _ratio(many: Sequence[np.ndarray], one: Sequence[np.ndarray], tolerance: float) -> _Ratio:
    """Return gradients as multiples of others; NaN where they do not differ by a factor."""
    sizes = [float(np.linalg.norm(b)) for b in one]
    others = [float(np.linalg.norm(a)) for a in many]
    largest, most = max(sizes, default=0.0), max(others, default=0.0)
    ratios, weights = [], []
    for a, b, size, other in zip(many, one, sizes, others, strict=True):
        ratio = float(a @ b / size**2) if size else math.nan
        fits = size and float(np.linalg.norm(a - ratio * b)) <= tolerance * other
        ratios.append(ratio if fits else math.nan)
        weights.append(size > _NEGLIGIBLE * largest or other > _NEGLIGIBLE * most)
    counted = [ratio for ratio, counts in zip(ratios, weights, strict=True) if counts]
    if not counted or not largest:
        raise NotKnownError("All gradients are zero.")
    fitting = [ratio for ratio in counted if not math.isnan(ratio)]
    common = float(np.median(fitting)) if fitting else math.nan
    near = [ratio for ratio in fitting if abs(ratio / common - 1) <= tolerance]
    if len(near) < 0.9 * len(counted) or not common > 0:
        common = math.nan
    return _Ratio(common, tuple(ratios), tuple(counted))


def _trained(run: TrialRun, response: Mapping[str, Any]) -> list[str]:
    """Return the keys of trained variables that are in a response."""
    variables = run.trial.stand_ins
    return [each.key for each in variables if each.is_trained and each.key in response]


def _changed(low: Sequence[np.ndarray], high: Sequence[np.ndarray]) -> bool:
    """Return whether made-up gradients have changed a variable, which was zero if it has axes."""
    return bool(low[0].ndim and low[0].any()) or not np.array_equal(low[0], high[0])


def _differ(values: Sequence[np.ndarray]) -> bool:
    """Return whether replicas have different values."""
    return any(_distance(one, values[0]) > _MATTERS * _size(one, values[0]) for one in values[1:])


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max()) if one.size else 0.0


def _size(*values: np.ndarray) -> float:
    return max(float(np.abs(one).max()) if one.size else 0.0 for one in values)


def _instead(text: str) -> str:
    """Return code that asks for the number of replicas, inside a cell and elsewhere."""
    in_cell, in_step = text.format("num_replicas"), text.format("strategy.num_replicas_in_sync")
    return f"`{in_cell}` in a cell, or `{in_step}` inside the step"


def _is_chosen(share: float) -> bool:
    """Return whether a literal, such as 0.001, has too few digits to be a computed share."""
    return len(f"{share:.10e}".partition("e")[0].replace(".", "").rstrip("0")) <= 2


def _is_size(divisor: float, size: int) -> bool:
    """Return whether a divisor is a size."""
    return abs(divisor / size - 1) <= 1e-5


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # AutoGraph's errors begin with the traceback.
    return lines[-1].strip() if lines[0].startswith("in user code") else lines[0]
