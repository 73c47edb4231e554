"""Messages about a cell that the stop button has ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpunb._util.units import grouped
from tpunb.training.stop_button import Stopped

from ..errors import CellError
from ..virtual.stoppable import StoppableCalls

if TYPE_CHECKING:
    from .steps import Steps

__all__ = ["explained", "explained_check", "raise_if_ended_early"]

_LEFT = (
    " TensorFlow cannot cancel its current operation, which ends by itself and may still write "
    "variables: the next call waits for it."
)


@contextlib.contextmanager
def explained(calls: StoppableCalls) -> Iterator[None]:
    """Turns an interrupt into a sentence about what was done.

    Args:
        calls: Those that the cell makes.

    Raises:
        Stopped: Instead of any other interrupt.
    """
    calls.begin()
    try:
        yield
    except Stopped:
        raise
    except KeyboardInterrupt:
        raise Stopped(_where(calls)) from None


@contextlib.contextmanager
def explained_check() -> Iterator[None]:
    """Turns an interrupt of a check into a sentence.

    Raises:
        Stopped: Instead of any other interrupt.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped("before the check was done; nothing was run.") from None


def raise_if_ended_early(run: Steps, *, late: bool = False) -> None:
    """Raises after a run that was stopped, or whose data has ended too soon.

    Args:
        run: The run.
        late: Whether the stop button was pressed when all was done.

    Raises:
        Stopped: The stop button has ended it, or what comes after it.
        CellError: The data has ended too soon.
    """
    if run.stopped:
        raise Stopped(_half_done(run) if run.is_half_done else _stopped(run))
    if run.ended and run.total is not None and run.done < run.total:
        raise CellError(
            f"The data ended after {run.done} of {run.total} steps; what they have done is kept.",
            fix="Repeat it (`.repeat()`), or leave out the number of steps.",
        )
    if late:
        raise Stopped(f"when all of the {grouped(run.done)} steps were made; nothing is lost.")


def _stopped(run: Steps) -> str:
    """What was done when the stop button was pressed, and how to continue."""
    return (
        f"after {_count(run)} steps. Variables, curves and the place in the data are kept: run "
        "the cell again to continue, or with --restart to start over."
    )


def _half_done(run: Steps) -> str:
    """The same where a step was cancelled."""
    left = _LEFT if run.programs.calls.left_behind else ""
    again = "continue, or with --restart to start over" if run.can_continue else "start over"
    return (
        f"inside step {grouped(run.done + 1)}, after {_count(run)} steps: variables hold what was "
        f"assigned until then.{left} Run the cell again to {again}."
    )


def _count(run: Steps) -> str:
    return (
        grouped(run.done) if run.total is None else f"{grouped(run.done)} of {grouped(run.total)}"
    )


def _where(calls: StoppableCalls) -> str:
    if calls.was_cut:
        left = _LEFT if calls.left_behind else ""
        return (
            "inside the cell: variables hold what was assigned until then, and names what they "
            f"stood for before.{left}"
        )
    if calls.left_behind:
        return "before the cell has run: it was waiting for what was stopped before it."
    if calls.has_run:
        return "when the cell had run, before its names were assigned."
    return "before the cell has run; nothing has changed."
