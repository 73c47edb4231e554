"""Record of the results that a cell leaves behind, written while the cell is traced.

The traced function returns tensors only. An `OutputRecord` keeps their meaning in the notebook, and
the Python values beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tpunb.cells.output_record import OutputRecord, Slot
from tpunb.cells.reading.definitions import defined_by
from tpunb.cells.reading.nests import is_nest, leaves, parts_of, substitute
from tpunb.cells.reading.source import LAST, StepSource
from tpunb.errors import CellError
from tpunb.tensorflow.cells.optimizers import is_step_counter
from tpunb.tensorflow.cells.symbolic_values import holds_symbolic, is_composite, stays_inside

_Function = TypeVar("_Function", bound=Callable[..., Any])
_unconverted: Callable[[_Function], _Function] = tf.autograph.experimental.do_not_convert
_NUMBERS = (int, float, complex, bool, np.ndarray, np.generic)


@dataclass(frozen=True)
class CellOutputs:
    """The outputs of one call of a traced cell.

    Attributes:
        tensors: The outputs of the traced function.
        record: Their meaning in the notebook.
    """

    tensors: list[Any]
    record: OutputRecord

    def tensor(self, index: int) -> Any:
        """Return the tensor of a slot."""
        return self.tensors[self.record.places[index]]

    def values(self) -> dict[str, Any]:
        """Return the values by name."""

        def fill(leaf: Any) -> Any:
            return self.tensor(leaf.index) if type(leaf) is Slot else leaf

        record = self.record
        values = {name: substitute(nest, fill) for name, nest in record.nests.items()}
        return {**record.plain, **values}


class OutputRecorder:
    """The recorder of one replica's trace; the generated function calls `note` and `finish`."""

    def __init__(
        self,
        cell: StepSource,
        namespace: dict[str, Any],
        wanted: Collection[str],
        check: Callable[[], None],
    ) -> None:
        self.record = OutputRecord()
        self._cell = cell
        self._namespace = namespace
        self._wanted = wanted
        self._check = check
        self._noted: dict[str, tuple[Any, Any]] = {}
        self._tensors: list[Any] = []

    @_unconverted
    def note(self, name: str, value: Any) -> None:
        """Note a name's value where it is assigned."""
        self._noted[name] = (value, tf.compat.v1.get_default_graph())

    @_unconverted
    def finish(self, direct: Mapping[str, Any], last: Any) -> tuple[Any, ...]:
        """Record all values at the end, and return the tensors among them."""
        self._check()
        self.record.graph = tf.compat.v1.get_default_graph()
        # Keep only the notes that were made outside loops and branches over tensors.
        here = self.record.graph
        noted = {name: value for name, (value, graph) in self._noted.items() if graph is here}
        values = {**noted, **direct}
        for name in self._cell.names.assigned:
            if name in self._cell.definitions:
                continue
            if name in values:
                self._keep(name, values[name])
            else:
                self.record.withheld.append(name)
                if name in self._noted and not name.startswith("_"):
                    self.record.conditional[name] = self._noted[name][0]
        if LAST not in self._wanted and is_step_counter(last, self._cell, self._namespace):
            last = None
        if isinstance(last, tf.Variable) or is_nest(last):
            last = substitute(
                last, lambda it: tf.convert_to_tensor(it) if isinstance(it, tf.Variable) else it
            )
        self._keep(LAST, last)
        self._define()
        return tuple(self._tensors)

    def _keep(self, name: str, value: Any) -> None:
        if any(_settled(leaf) is not leaf for leaf in leaves(value)):
            value = substitute(value, _settled)
        if name in self._wanted:
            value = substitute(value, lambda leaf: _number(name, leaf))
        plain = (*_NUMBERS, str, bytes, type(None))
        if name in self._cell.names.passing and not all(
            isinstance(leaf, plain) for leaf in leaves(value)
        ):
            self.record.withheld.append(name)
        elif any(_is_dynamic(leaf) for leaf in leaves(value)):
            self.record.nests[name] = substitute(value, lambda leaf: self._slot(name, leaf))
        elif stays_inside(value):
            self.record.withheld.append(name)
        else:
            self.record.plain[name] = _without_symbols(name, value)

    def _slot(self, name: str, leaf: Any) -> Any:
        if not _is_dynamic(leaf):
            return _without_symbols(name, leaf)
        # A tensor that is only passed through is one object for all replicas. A strategy does not
        # wrap such an object as per-replica values.
        self._tensors.append(tf.identity(leaf))
        return Slot(len(self._tensors) - 1)

    def _define(self) -> None:
        """Define the cell's functions and classes in the notebook's namespace.

        The definitions in the trace are AutoGraph's. The notebook gets Python's own, whose globals
        are the notebook's.
        """
        defined = defined_by(self._cell, self._namespace, self.record.plain)
        self.record.plain.update(defined)
        self.record.withheld.extend(n for n in self._cell.definitions if n not in defined)


def without_repeats(values: list[Any]) -> tuple[list[Any], list[int]]:
    """Return values without repetitions, and each value's position among those that remain.

    The last line often names values that the cell has just assigned. It costs a tenth of a
    millisecond to fetch a tensor from the cores to the notebook.
    """
    first_places: dict[tuple[int, ...], int] = {}
    once: list[Any] = []
    places: list[int] = []
    for value in values:
        key = tuple(map(id, parts_of(value)))
        if key not in first_places:
            first_places[key] = len(once)
            once.append(value)
        places.append(first_places[key])
    return once, places


def _is_dynamic(leaf: Any) -> bool:
    """Return whether a leaf is computed again in every run."""
    if isinstance(leaf, tf.Variable):
        return False
    return isinstance(leaf, tf.Tensor) or is_composite(leaf)


def _settled(leaf: Any) -> Any:
    """Return the value behind an operation's handle: None, or the value just written."""
    if isinstance(leaf, tf.Operation):
        return None
    if type(leaf).__name__ == "_UnreadVariable":  # the type that assign() returns in a graph
        return tf.convert_to_tensor(leaf)
    return leaf


def _label(name: str) -> str:
    return f"`{name}`" if name else "The last line"


def _number(name: str, leaf: Any) -> Any:
    """Return a leaf as a tensor, for names that are reduced or gathered."""
    if _is_dynamic(leaf) or isinstance(leaf, (*_NUMBERS, tf.Variable)):
        return leaf if _is_dynamic(leaf) else tf.convert_to_tensor(leaf)
    raise CellError(
        f"{_label(name)} holds a {type(leaf).__name__}, which cannot be reduced or gathered.",
        fix="Combine only tensors and numbers across replicas.",
    )


def _without_symbols(name: str, value: Any) -> Any:
    if not any(holds_symbolic(leaf) for leaf in leaves(value)):
        return value
    raise CellError(
        f"{_label(name)} is a {type(value).__name__} that holds tensors of the replicas: "
        "it means nothing outside of the cell.",
        fix=f"Assign the tensors to names, and `del {name}`." if name else "End with its tensors.",
    )


def refuse_change(name: str, before: list[Any], after: list[Any]) -> None:
    """Refuse a nest of tensors whose leaves a trace has replaced."""
    if len(before) == len(after) and all(x is y for x, y in zip(before, after, strict=True)):
        return
    raise CellError(
        f"The cell changes `{name}` in place, which the notebook would not see.",
        fix=f"Assign a new value: `{name} = ...`; it comes back to the notebook.",
    )


def refuse_symbols(name: str, container: Any) -> None:
    """Refuse a list or dict of the notebook that holds tensors of a trace."""
    if holds_symbolic(container):
        raise CellError(
            f"The cell puts a tensor of the replicas into `{name}`, which belongs to the notebook.",
            fix=f"Assign the tensor to a name, and put that into `{name}` in the next cell.",
        )
