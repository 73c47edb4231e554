"""Whether what is asked of a cell makes sense, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping

from ..assignment import is_whole
from ..errors import CellError, nearest
from .feed import Feed
from .program import Options
from .source import CellSource

__all__ = ["checked_options", "refuse_counts", "total_steps"]

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
                mend="Leave it out to take the data to its end."
                if name == "steps"
                else "Leave it out to have it chosen by measuring.",
            )
    if steps is not None and steps_per_loop is not None and steps_per_loop > steps:
        raise CellError(
            f"Loops of {steps_per_loop} steps are longer than the {steps} steps that there are.",
            mend="Choose at most as many, or leave it out.",
        )


def total_steps(steps: int | None, feed: Feed | None) -> int | None:
    """How many steps there will be, as far as it is known."""
    if steps is not None:
        return int(steps)
    if feed is None:
        raise CellError(
            "How many steps there are to be is not said.",
            mend="Say it with -n, or give data with -d.",
        )
    if feed.left == float("inf"):
        raise CellError(
            "The data never ends, and how many steps to make is not said.",
            mend="Say it: -n 1000.",
        )
    return None if feed.left is None else int(feed.left)


def checked_options(
    cell: CellSource,
    reduce: Mapping[str, str] | None,
    gather: Mapping[str, int] | None,
    plot: tuple[str, ...] = (),
) -> Options:
    """How results are combined and what is plotted, if the cell has all of these names.

    Raises:
        CellError: It has not, or a name is both reduced and gathered.
    """
    options = Options(tuple((reduce or {}).items()), tuple((gather or {}).items()), plot)
    for name in dict.fromkeys(plot):
        if cell.last is None or name in cell.names.assigned:
            _refuse_unknown(cell, name)
    for name, operation in options.reduce:
        if operation not in _REDUCTIONS:
            raise CellError(
                f"`{name}` cannot be reduced by `{operation}`.", mend="Use `mean` or `sum`."
            )
    named = [name for name, _ in (*options.reduce, *options.gather)]
    for name in named:
        _refuse_unknown(cell, name)
        if named.count(name) > 1:
            raise CellError(f"`{name}` is reduced and gathered.", mend="Choose one of them.")
    return options


def _refuse_unknown(cell: CellSource, name: str) -> None:
    if name in cell.names.assigned or (name == "_" and cell.last):
        return
    if name == "_":
        raise CellError("The cell's last line is not an expression.", mend="Name what to combine.")
    near = nearest(name, cell.names.assigned)
    mend = "Name one that it assigns."
    if near:
        mend = f"Did you mean {' or '.join(f'`{word}`' for word in near)}?"
    raise CellError(f"The cell does not assign `{name}`.", mend=mend)
