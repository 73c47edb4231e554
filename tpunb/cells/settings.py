"""The settings of a run: one record, from the magic's line to the steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["OutputOptions", "RunSettings"]


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """The settings of a run, of one step or of many.

    Attributes:
        data: Where the batches come from, as `open_batches` takes it; None for steps without data.
        names: What a batch is called in the cell; several for its parts.
        steps: How many; None to the end of the data.
        steps_per_loop: How many to make in one call; None to choose by measuring.
        plot: Names whose values are kept of every step.
        reduce: Names to combine over the replicas, by `mean` or `sum`; `_` is the last
            expression.
        gather: Names to concatenate over the replicas, with the axis.
        timed: Whether to measure; in a loop also how long steps wait for batches.
    """

    data: Any = None
    names: Sequence[str] = ("batch",)
    steps: int | None = None
    steps_per_loop: int | None = None
    plot: Sequence[str] = ()
    reduce: Mapping[str, str] | None = None
    gather: Mapping[str, int] | None = None
    timed: bool = False

    def __post_init__(self) -> None:
        for name in ("names", "plot"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("reduce", "gather"):
            object.__setattr__(self, name, dict(getattr(self, name) or {}))

    @property
    def outputs(self) -> OutputOptions:
        """The part that a trace depends on."""
        return OutputOptions(
            tuple((self.reduce or {}).items()), tuple((self.gather or {}).items()), tuple(self.plot)
        )

    def is_same(self, other: RunSettings) -> bool:
        """Whether these are the same settings, with the very same data."""
        mine, theirs = (
            each.data if isinstance(each.data, tuple) else (each.data,) for each in (self, other)
        )
        same_data = len(mine) == len(theirs) and all(
            a is b for a, b in zip(mine, theirs, strict=True)
        )
        return same_data and dataclasses.replace(self, data=None) == dataclasses.replace(
            other, data=None
        )


@dataclasses.dataclass(frozen=True)
class OutputOptions:
    """How results are combined across replicas.

    Attributes:
        reduce: Names with `mean` or `sum`.
        gather: Names with an axis.
        plot: Names whose values, numbers, are kept of every step.
    """

    reduce: tuple[tuple[str, str], ...] = ()
    gather: tuple[tuple[str, int], ...] = ()
    plot: tuple[str, ...] = ()
