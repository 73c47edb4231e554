"""The names that a cell changes, and that functions of the notebook read while it is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from tpunb._util.code_names import mentions
from tpunb._util.interrupts import uninterrupted
from tpunb.cells.reading.reached import Reached
from tpunb.cells.reading.source import CellSource
from tpunb.errors import CellError

_context = jax.make_user_context()
"""Part of the key by which JAX finds the trace of a function that it has traced before."""


def in_context(mark: Any) -> contextlib.AbstractContextManager[None]:
    """Let JAX trace functions again within a block, unless it has traced them with this mark."""
    manager: contextlib.AbstractContextManager[None] = _context(mark)
    return manager


@dataclass(frozen=True)
class SharedNames:
    """The names whose values change in a step, and the functions that see the change.

    Attributes:
        assigned: The names that the cell, or a function that it reaches, assigns.
        changing: These names, and those of the batch.
        read: The names among them that functions of the notebook read.
        is_stepped: Whether steps follow each other.
    """

    assigned: tuple[str, ...]
    changing: frozenset[str]
    read: frozenset[str]
    is_stepped: bool

    @classmethod
    def of(
        cls, cell: CellSource, namespace: dict[str, Any], fed: Sequence[str], *, is_stepped: bool
    ) -> SharedNames:
        """Return the names that a cell shares with the functions that it reaches.

        Raises:
            CellError: A function of the cell assigns, by `global`, a name that functions of the
                notebook read.
        """
        names = (*cell.names.reads, *cell.later)
        reads = [(name, namespace[name]) for name in names if name in namespace]
        reached = Reached(reads, namespace)
        more = [name for name in reached.written if name not in cell.names.assigned]
        assigned = (*cell.names.assigned, *more)
        changing = frozenset((*assigned, *fed))
        read = changing & reached.read.keys()
        own = mentions(cell.code).written  # assigned in the cell's own functions
        for name in sorted(read & own):
            raise CellError(
                f"A function of the cell assigns `{name}` by `global`, and `{reached.read[name]}` "
                "of the notebook reads it.",
                fix=f"Return the value, and assign it in the cell itself: {name} = …",
            )
        return cls(assigned, changing - own, read, is_stepped)

    @contextlib.contextmanager
    def traced(self, namespace: dict[str, Any], values: Mapping[str, Any]) -> Iterator[CellGlobals]:
        """Let functions of the notebook see what the cell assigns, within a block.

        Args:
            namespace: The notebook's names.
            values: The values of the names that the cell reads.
        """
        before = {name: namespace[name] for name in self.changing if name in namespace}
        try:
            for name in self.changing:
                if name in values:
                    namespace[name] = values[name]
                elif self.is_stepped:  # a value of the step before, which is not passed on
                    namespace.pop(name, None)
            yield CellGlobals(self, namespace, values)
        finally:
            with uninterrupted():
                for name in self.changing - before.keys():
                    namespace.pop(name, None)
                namespace.update(before)


class CellGlobals(dict[str, Any]):
    """The globals of a cell's code. Names that change are kept among the notebook's."""

    def __init__(
        self, shared: SharedNames, namespace: dict[str, Any], values: Mapping[str, Any]
    ) -> None:
        unset = {*shared.changing, *shared.assigned} - values.keys()
        given = {**namespace, **values}
        super().__init__({n: given[n] for n in given.keys() - shared.changing - unset})
        self._shared, self._namespace = shared, namespace
        self._before = {} if shared.is_stepped else dict(namespace)
        self._values = values

    def __missing__(self, name: str) -> Any:
        if name not in self._shared.changing:
            raise KeyError(name)
        return self._namespace[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._shared.changing:
            super().__setitem__(name, value)
            return
        self._namespace[name] = value
        if name in self._shared.read:
            # JAX would use a trace of the function that has read the former value. The block
            # around the cell's trace leaves all contexts.
            in_context(object()).__enter__()

    def __delitem__(self, name: str) -> None:
        if name in self._shared.changing:
            del self._namespace[name]
        else:
            super().__delitem__(name)

    def taken(self) -> dict[str, Any]:
        """Return all names of the cell after its code has run, with their values."""
        missing = object()
        changed = {
            name: self._namespace[name]
            for name in self._shared.changing
            if name in self._namespace
            and (
                name in self._values or self._namespace[name] is not self._before.get(name, missing)
            )
        }
        return {**self, **changed}
