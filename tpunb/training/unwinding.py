"""Whether an interrupt that is raised now would undo what is being done, or break it."""

from __future__ import annotations

from types import FrameType

__all__ = ["PATIENCE", "can_unwind"]

PATIENCE = 0.5
"""Seconds that an interrupt waits for a frame from which it can be raised."""

_HALFWAY = frozenset({"__aenter__", "__aexit__", "__del__", "__enter__", "__exit__"})
_UNHEARD = frozenset({"IPython.core.events", "_weakrefset", "weakref"})


def can_unwind(frame: FrameType | None) -> bool:
    """Whether what a frame raises reaches its caller, with everything put back that was set.

    What is raised in a destructor, where a weak dictionary is told that a key is gone, or in what
    IPython calls before a cell is printed, and all goes on. What is raised while a context is
    entered or left leaves it half entered: TensorFlow's stacks of graphs and scopes then hold for
    the rest of the thread what should have gone.

    Args:
        frame: The frame that is interrupted, with its callers; None where nothing runs.
    """
    while frame is not None:
        if frame.f_code.co_name in _HALFWAY or frame.f_globals.get("__name__") in _UNHEARD:
            return False
        frame = frame.f_back
    return True
