"""Settings of runs and of compiling: one record each, from the magic's line to the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tpunb._util.integers import is_whole
from tpunb._util.options import option
from tpunb.compiler.ask.compile_settings import CompileOptions
from tpunb.errors import CellError, did_you_mean
from tpunb.training.checkpoint_settings import CheckpointSettings

if TYPE_CHECKING:
    from tpunb.cells.reading.source import StepSource

_REDUCTIONS = ("mean", "sum")


class OutputOptions(NamedTuple):
    """The part of a run's settings that a trace depends on.

    Attributes:
        reduce: Names with `mean` or `sum`.
        gather: Names with an axis.
        plot: Names of numbers whose values in every step are kept.
    """

    reduce: tuple[tuple[str, str], ...] = ()
    gather: tuple[tuple[str, int], ...] = ()
    plot: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """The settings of a run, of one step or of many.

    Attributes:
        data: The source of the batches, as `Batches` takes it; None for steps without data.
        names: The cell's name for a batch; several for its parts.
        steps: The number of steps; None to run to the end of the data.
        steps_per_loop: The number of steps in one call; None to choose it by measuring.
        plot: Names whose values in every step are kept.
        reduce: Names to combine over the replicas, by `mean` or `sum`; `_` is the last
            expression.
        gather: Names to concatenate over the replicas, with the axis.
        timed: Whether to measure the time; in a loop also how long steps wait for batches.
        checkpoint: Where and when to save the run; None to save nothing.
    """

    data: Any = None
    names: Sequence[str] = ("batch",)
    steps: int | None = None
    steps_per_loop: int | None = None
    plot: Sequence[str] = ()
    reduce: Mapping[str, str] | None = None
    gather: Mapping[str, int] | None = None
    timed: bool = False
    checkpoint: CheckpointSettings | None = None

    def __post_init__(self) -> None:
        for name, kind in (("names", tuple), ("plot", tuple), ("reduce", dict), ("gather", dict)):
            object.__setattr__(self, name, kind(getattr(self, name) or ()))
        if isinstance(self.checkpoint, str):
            object.__setattr__(self, "checkpoint", CheckpointSettings(self.checkpoint))

    @property
    def outputs(self) -> OutputOptions:
        """The part of the settings that a trace depends on."""
        reduce, gather = (self.reduce or {}).items(), (self.gather or {}).items()
        return OutputOptions(tuple(reduce), tuple(gather), tuple(self.plot))

    @property
    def is_stepped(self) -> bool:
        """True if a cell with these settings runs step after step."""
        return self.data is not None or bool(self.plot or self.steps or self.steps_per_loop)

    def is_same(self, other: RunSettings) -> bool:
        """Return whether these are the same settings, with the very same data."""
        mine, theirs = (
            settings.data if isinstance(settings.data, tuple) else (settings.data,)
            for settings in (self, other)
        )
        if len(mine) != len(theirs) or any(a is not b for a, b in zip(mine, theirs, strict=True)):
            return False
        return dataclasses.replace(self, data=None) == dataclasses.replace(other, data=None)


@dataclasses.dataclass(frozen=True)
class CompileSettings(CompileOptions):
    """The options of compiling a cell."""

    largest_batch: str | None = option(
        None,
        "look for the largest batch of -d that fits; quick: for the largest power of two",
        nargs="?",
        const="exact",
        choices=("exact", "quick"),
    )


def refuse_counts(steps: int | None, steps_per_loop: int | None) -> None:
    """Refuse numbers of steps that are not positive, or contradict each other."""
    for name, count in (("steps", steps), ("steps per loop", steps_per_loop)):
        if count is not None and not (is_whole(count) and count >= 1):
            raise CellError(
                f"The number of {name} is a positive whole number, not {count!r}.",
                fix="Leave it out to take the data to its end."
                if name == "steps"
                else "Leave it out to have it chosen by measuring.",
            )
    if steps is not None and steps_per_loop is not None and steps_per_loop > steps:
        raise CellError(
            f"Loops of {steps_per_loop} steps are longer than the {steps} steps of the run.",
            fix=f"Choose at most {steps}, or leave it out.",
        )


def total_steps(settings: RunSettings, batches: Any) -> int | None:
    """Return the total number of steps, as far as it is known."""
    if settings.steps is not None:
        return int(settings.steps)
    if not settings.is_stepped:
        return 1
    if batches is None:
        raise CellError(
            "The number of steps is missing.",
            fix="Set it with -n, or pass data with -d.",
        )
    if batches.left == float("inf"):
        raise CellError(
            "The data never ends, and the number of steps is missing.",
            fix="Set it: -n 1000.",
        )
    return None if batches.left is None else int(batches.left)


def checked_outputs(cell: StepSource, settings: RunSettings) -> OutputOptions:
    """Return the combined and plotted names of a run, if the cell has all of them.

    Raises:
        CellError: A name is missing, or is both reduced and gathered.
    """
    options = settings.outputs
    combined = [name for name, _ in (*options.reduce, *options.gather)]
    # A plotted name may also be a key of the last line's dict.
    for name in (*(() if cell.has_value else options.plot), *combined):
        if name in cell.names.assigned or (name == "_" and cell.has_value):
            continue
        if name == "_":
            raise CellError(
                "The cell's last line is not an expression.", fix="Name what to combine."
            )
        raise CellError(
            f"The cell does not assign `{name}`.",
            fix=did_you_mean(name, cell.names.assigned, "Name one that it assigns."),
        )
    for name, operation in options.reduce:
        if operation not in _REDUCTIONS:
            raise CellError(
                f"`{name}` cannot be reduced by `{operation}`.", fix="Use `mean` or `sum`."
            )
    for name in combined:
        if combined.count(name) > 1:
            raise CellError(f"`{name}` is reduced and gathered.", fix="Choose one of them.")
    return options
