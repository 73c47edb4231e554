"""What a trace depends on beyond the cell's own names, and whether that has changed.

TensorFlow reads Python once, when it traces. An ordinary cell reads it again in every
run, so a cell is traced again when anything that its trace may have read has changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from .autoreload import realign
from .dependency_guards import MISSING, Change, Guard
from .reachable import reached

__all__ = ["Dependencies"]


class Dependencies:
    """The guards of one program.

    Args:
        roots: What the cell closes over, by name.
        code: The cell's own.
        namespace: The notebook's.
    """

    def __init__(self, roots: Mapping[str, Any], code: CodeType, namespace: dict[str, Any]) -> None:
        self._roots = dict(roots)
        self._code = code
        self._namespace = namespace
        self._guards: list[Guard] = []
        self._ignored: set[Hashable] = set()

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Watches a trace, and guards afterwards what it may have read.

        Afterwards, since a first trace builds layers and makes variables. What a trace
        itself changes again and again, a counter for instance, is not guarded: the cell
        would be traced for its own doing in every run.
        """
        before = self._realigned()
        yield
        self._ignored |= {
            change.entry
            for guard in before
            for change in guard.changes()
            if change.before is not MISSING and change.before is not None
        }
        self._guards = self._reached()

    def change(self) -> Change | None:
        """The first thing found that is not as it was at the last trace."""
        for guard in self._guards:
            if guard.holds():
                continue
            if changes := guard.changes():
                return changes[0]
            guard.renew()  # equal values have replaced others
        return None

    def _realigned(self) -> list[Guard]:
        """What is reached, with functions on the lines where AutoGraph will look for them."""
        guards = self._reached()
        functions = [g.owner for g in guards if isinstance(g.owner, FunctionType)]
        moved = [realign(function) for function in functions]
        return self._reached() if any(moved) else guards

    def _reached(self) -> list[Guard]:
        return reached(self._roots, self._code, self._namespace, self._ignored)
