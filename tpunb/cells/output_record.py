"""The record of what a cell leaves behind, made while the cell is traced."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tpunb.cells.plotted_values import plotted_leaf
from tpunb.cells.reading.nests import leaves, substitute


@dataclass(frozen=True)
class Slot:
    """A placeholder for the n-th tensor that the traced function returns."""

    index: int


@dataclass
class OutputRecord:
    """The results of one trace of a cell.

    Attributes:
        nests: By name, a slot, or a nest with slots.
        plain: By name, a Python value, the same on every replica.
        withheld: Names that do not come back.
        conditional: Values of names that are assigned only in branches and loops over tensors,
            by name; these names are among the withheld.
        graph: The replica function's graph.
        places: For each slot, its position among the traced function's outputs.
    """

    nests: dict[str, Any] = field(default_factory=dict)
    plain: dict[str, Any] = field(default_factory=dict)
    withheld: list[str] = field(default_factory=list)
    conditional: dict[str, Any] = field(default_factory=dict)
    graph: Any = None
    places: list[int] = field(default_factory=list)

    def filled(self, name: str, tensors: list[Any]) -> Any:
        """Return a name's nest with tensors for its slots."""
        left = iter(tensors)
        return substitute(self.nests[name], lambda leaf: next(left) if type(leaf) is Slot else leaf)

    def slots(self, name: str) -> list[int]:
        """Return the positions of a name's tensors among the outputs."""
        parts = leaves(self.nests.get(name))
        return [leaf.index for leaf in parts if type(leaf) is Slot]

    def plotted_slot(self, name: str) -> int:
        """Return the position of a plotted number among the outputs."""
        slot = plotted_leaf(self.nests, name, lambda value: type(value) is Slot)
        return int(slot.index)
