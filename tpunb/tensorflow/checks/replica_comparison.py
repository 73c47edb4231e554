"""The result of comparing a step on all replicas with the same step on one replica."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from tpunb._util.plain_text import aligned, plain, shortened
from tpunb._util.tables import LINED, escaped, table
from tpunb._util.units import grouped
from tpunb.errors import TpunbError
from tpunb.errors.code_problems import SourceLine

_HEAD = ("gradient", "shape", "scale", "apart from that")
_MOST_ROWS = 40
_LONGEST_NAME = 60
_MOST_LINES = 3
_SAME = 1e-3
"""The relative difference of gradients that count as equal."""


class UndividedLossError(TpunbError, ValueError):
    """A step whose gradients have another scale than one device's gradients."""


@dataclasses.dataclass(frozen=True)
class GradientScale:
    """The gradient of a variable on several replicas, against one.

    Attributes:
        name: The variable's name.
        shape: The variable's shape.
        scale: The gradient that reaches the update, as a multiple of the gradient on one replica.
            NaN if they do not differ by a factor, None if they were not compared.
        difference: The relative difference on the batch itself, apart from the scale; None if it
            was not measured.
    """

    name: str
    shape: tuple[int, ...]
    scale: float | None
    difference: float | None = None


@dataclasses.dataclass(frozen=True)
class ReplicaComparison:
    """The gradients of a step on all replicas, compared with the same step on one replica.

    Attributes:
        replicas: The number of replicas.
        factor: The gradients that reach the update, as a multiple of the gradients on one replica
            with the same weights and the same global batch, as it was measured. 1.0 means that the
            replicas together make the update of one device. None means not known.
        note: The reason that the factor is not known, or a remark about it.
        gradients: The gradients of the variables.
        numbers: If the factor is not 1, the lines of the user's code that scale a tensor by the
            number of replicas, or by one over it. The single replica runs these lines unchanged.
        places: The lines of the user's code that led to the loss, innermost first.
    """

    replicas: int
    factor: float | None
    note: str = ""
    gradients: tuple[GradientScale, ...] = ()
    numbers: tuple[SourceLine, ...] = dataclasses.field(default=(), compare=False)
    places: tuple[SourceLine, ...] = dataclasses.field(default=(), repr=False, compare=False)

    @property
    def ok(self) -> bool | None:
        """True if the gradients equal one replica's in scale, False if not; None if not known."""
        return None if self.factor is None else self.factor == 1.0

    @property
    def difference(self) -> float | None:
        """The largest relative difference on the batch itself; None if it was not measured.

        The scale is taken out. What remains comes from statistics and means that each replica
        computes of its own part of the batch.
        """
        return max((one.difference for one in self.gradients), default=None, key=order)

    @property
    def headline(self) -> str:
        """The outcome in a few sentences."""
        if self.factor is None:
            return f"It is not known whether the gradients have one replica's scale. {self.note}"
        if self.factor == 1.0:
            return " ".join(filter(None, [self._equal, self.note]))
        return f"{self.problem} {self.fix}"

    @property
    def problem(self) -> str:
        """The problem in a sentence; empty if there is no problem, or if the scale is not known."""
        if self.factor is None or self.factor == 1.0:
            return ""
        factor = f"{self.factor:.3g}" if self.factor < 1 else f"{self.factor:.1f}"
        return (
            f"On {self.replicas} replicas, the gradients that reach the update are {factor} times "
            "those of the same step on 1 replica with the same batch."
        )

    @property
    def fix(self) -> str:
        """What may cause the problem, and how to find out; empty if there is no problem."""
        if self.factor is None or self.factor == 1.0:
            return ""
        causes = {
            float(self.replicas): "The loss is not divided by the number of replicas",
            1 / self.replicas: "The loss is divided by the number of replicas twice",
        }
        cause = causes.get(self.factor, "The loss does not have one device's divisor")
        return (
            f"{cause}, or a number in your code stands for it{self._where}. Inside the step, write "
            "`tf.distribute.get_strategy().num_replicas_in_sync`; in a cell, `num_replicas`."
        )

    @property
    def _where(self) -> str:
        if not self.numbers:
            return ""
        lines = [str(place.line) for place in self.numbers[:_MOST_LINES]]
        return f" (line{'s' if len(lines) > 1 else ''} {', '.join(lines)})"

    def raise_if_wrong(self) -> None:
        """Raise an error if the gradients have another scale than one replica's; for tests.

        Raises:
            UndividedLossError: They have another scale.
        """
        if self.problem:
            raise UndividedLossError(self.problem, fix=self.fix)

    @property
    def _equal(self) -> str:
        difference = self.difference
        start = f"On {self.replicas} replicas, the gradients"
        if difference is None:
            return f"{start} have the scale of the same step on 1 replica."
        if difference <= _SAME:
            return f"{start} equal those of the same step on 1 replica with the same batch."
        most = max(self.gradients, key=lambda one: order(one.difference))
        return (
            f"{start} have the scale of the same step on 1 replica. On this batch, they differ by "
            f"up to {share(difference)} ({shortened(most.name, _LONGEST_NAME)}), because each "
            "replica computes statistics or means of its own part."
        )

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for one in self.gradients[:_MOST_ROWS]:
            scale = _times(one.scale)
            difference = "" if one.difference is None else share(one.difference)
            yield shortened(one.name, _LONGEST_NAME), str(list(one.shape)), scale, difference
        if len(self.gradients) > _MOST_ROWS:
            yield f"and {grouped(len(self.gradients) - _MOST_ROWS)} more", *[""] * 3

    def __str__(self) -> str:
        lines = aligned([_HEAD, *self._rows()], "  ") if self.gradients else []
        return plain("\n".join([self.headline, *lines]))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("ReplicaComparison(...)" if cycle else str(self))

    def _repr_html_(self) -> str:
        rows = list(self._rows())
        shown = table(rows, head=_HEAD, named=True, style=LINED) if rows else ""
        return f"<p><b>{escaped(self.headline)}</b></p>{shown}"


def order(value: float | None) -> float:
    """Return a sort key by magnitude: None comes first, NaN last."""
    if value is None:
        return -1.0
    return math.inf if math.isnan(value) else value


def _times(scale: float | None) -> str:
    if scale is None:
        return ""
    return "no multiple" if math.isnan(scale) else f"{scale:.4g} ×"


def share(value: float) -> str:
    """Return a relative difference as a percentage."""
    if not math.isfinite(value):
        return f"{value:.2g}"
    return f"{100 * value:.0f}%" if value >= 1 else f"{100 * value:.2g}%"
