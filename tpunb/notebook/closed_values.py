"""What is lost with a connection, in a sentence: TensorFlow tells of it in pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpunb.errors.base import hint

if TYPE_CHECKING:
    from tpunb.connection.connection import Connection
    from tpunb.errors.explain import Explanation

__all__ = ["ClosedConnections", "gone", "replaced"]

_WORKER_GONE = "14"
"""The catalogue's entry for what TensorFlow says of values whose worker is gone."""


class ClosedConnections:
    """The connections of one shell whose values went with them."""

    def __init__(self) -> None:
        self._last = ""

    def note(self, connection: Connection | None) -> None:
        """Remembers a connection if it is closed, and its values were in other processes."""
        if connection is None or not connection.closed:
            return
        if connection.pod is not None or connection.kind == "hardware":
            self._last = connection.phrase

    def sentence(self, explanation: Explanation, now: Connection | None) -> str | None:
        """Says whose value an error is about, where that is a connection which is closed.

        Args:
            explanation: What is known of the error.
            now: The open connection, if there is one.

        Returns:
            A sentence with the fix; None where the error is about anything else.
        """
        if explanation.code != _WORKER_GONE or not self._last:
            return None
        if now is not None and now.lost():
            return None  # it is the worker of this one that has died
        return (
            f"This value belongs to the connection to {self._last}, which is closed.\n"
            f"{hint('Connect, and make it again; a checkpoint keeps variables.')}"
        )


def gone(lost: Sequence[str]) -> str:
    """The sentence that workers are gone."""
    workers = f"The worker at {lost[0]} is" if len(lost) == 1 else f"{len(lost)} workers are"
    return f"{workers} gone, or restarted, and all that was there is lost"


def replaced(before: Connection, lost: Sequence[str]) -> str:
    """What the user should know about a connection that has been replaced."""
    why = f"The connection to {before.tpu} is closed"
    if lost:
        why = gone(lost)
    return (
        f"{why}: models, variables and datasets made for it have to be made again in the new "
        "strategy's scope."
    )
