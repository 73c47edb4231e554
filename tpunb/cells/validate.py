"""Checks a run's settings before anything runs."""

from __future__ import annotations

from tpunb._util.integers import is_whole

from ..errors import CellError, nearest
from .batch_source import BatchSource
from .settings import OutputOptions, RunSettings
from .source import StepSource

__all__ = ["checked_outputs", "refuse_counts", "total_steps"]

_REDUCTIONS = ("mean", "sum")


def refuse_counts(steps: int | None, steps_per_loop: int | None) -> None:
    """Refuses numbers of steps that are none, or contradict each other.

    Raises:
        CellError: They do.
    """
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
            f"Loops of {steps_per_loop} steps are longer than the {steps} steps that there are.",
            fix="Choose at most as many, or leave it out.",
        )


def total_steps(steps: int | None, source: BatchSource | None) -> int | None:
    """How many steps there will be, as far as it is known."""
    if steps is not None:
        return int(steps)
    if source is None:
        raise CellError(
            "The number of steps is missing.",
            fix="Set it with -n, or pass data with -d.",
        )
    if source.left == float("inf"):
        raise CellError(
            "The data never ends, and the number of steps is missing.",
            fix="Set it: -n 1000.",
        )
    return None if source.left is None else int(source.left)


def checked_outputs(cell: StepSource, settings: RunSettings) -> OutputOptions:
    """How results are combined and what is plotted, if the cell has all of these names.

    Raises:
        CellError: It has not, or a name is both reduced and gathered.
    """
    options = settings.outputs
    for name in dict.fromkeys(options.plot):
        if not cell.has_value or name in cell.names.assigned:
            _refuse_unknown(cell, name)
    for name, operation in options.reduce:
        if operation not in _REDUCTIONS:
            raise CellError(
                f"`{name}` cannot be reduced by `{operation}`.", fix="Use `mean` or `sum`."
            )
    named = [name for name, _ in (*options.reduce, *options.gather)]
    for name in named:
        _refuse_unknown(cell, name)
        if named.count(name) > 1:
            raise CellError(f"`{name}` is reduced and gathered.", fix="Choose one of them.")
    return options


def _refuse_unknown(cell: StepSource, name: str) -> None:
    if name in cell.names.assigned or (name == "_" and cell.has_value):
        return
    if name == "_":
        raise CellError("The cell's last line is not an expression.", fix="Name what to combine.")
    near = nearest(name, cell.names.assigned)
    fix = "Name one that it assigns."
    if near:
        fix = f"Did you mean {' or '.join(f'`{word}`' for word in near)}?"
    raise CellError(f"The cell does not assign `{name}`.", fix=fix)
