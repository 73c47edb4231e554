"""Sentences about names and values that are missing because of a magic or a closed connection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from tpunb.errors import nearest
from tpunb.errors.base import hint

if TYPE_CHECKING:
    from tpunb.connection.connection import Connection
    from tpunb.errors.explain import Explanation


_NO_MAGIC = re.compile(r"magic (?:function )?`(%+)(\w+)` not found")

_INSIDE = frozenset({"replica_id", "num_replicas", "ctx"})
_OF_CONNECTING = frozenset({"strategy", "resolver", "topology", "connection"})


def about_missing(error: BaseException, magics: Iterable[str], *, connected: bool) -> str | None:
    """A sentence about a missing magic, or a missing name that magics make; None for other errors.

    Args:
        error: The error of a cell.
        magics: The names of our magics.
        connected: Whether there is a connection.
    """
    missing = _NO_MAGIC.search(str(error)) if isinstance(error, UsageError) else None
    if missing and missing[2].startswith("tpu"):
        near = nearest(missing[2], magics, most=1)
        if near == [missing[2]] and missing[1] == "%":
            return f"Write `%%{near[0]}` as the first line of a cell, and the statements below it."
        return f"Did you mean `{missing[1]}{near[0]}`?" if near else None
    if type(error) is not NameError:
        return None
    if error.name in _INSIDE:
        return f"`{error.name}` exists inside `%%tpu_run` cells: make that the cell's first line."
    if error.name in _OF_CONNECTING and not connected:
        return f"`%tpu_connect` makes `{error.name}`, and nothing is connected."
    if error.name == "history":
        return (
            "A `%%tpu_run` cell with `-p` makes `history`; the last run's is always "
            "`tpunb.history`, also that of `fit` with LiveCurves."
        )
    return None


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
        """Names the closed connection whose value an error is about; None for any other error."""
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
    """The notice that a connection has been replaced."""
    why = f"The connection to {before.tpu} is closed"
    if lost:
        why = gone(lost)
    return (
        f"{why}: models, variables and datasets made for it have to be made again in the new "
        "strategy's scope."
    )
