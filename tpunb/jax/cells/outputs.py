"""The arrays that a cell's function for JAX returns, and what they mean in the notebook."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from tpunb._util.reachable import reaches
from tpunb.cells.reading.definitions import defined_by
from tpunb.cells.reading.source import LAST, PROVIDED, CellSource
from tpunb.cells.settings import OutputOptions
from tpunb.errors import CellError
from tpunb.jax.cells.arguments import PARTS, WHOLE, Arguments, Form, Slot, flattened
from tpunb.jax.cells.context import AXIS, varies
from tpunb.virtual.per_replica import PerReplica

_REDUCTIONS = {"mean": jax.lax.pmean, "sum": jax.lax.psum}


@dataclasses.dataclass(frozen=True)
class Results:
    """The arrays that the function returns.

    Attributes:
        of_form: For each form, the arrays that have it.
        gathered: For each name that is concatenated, its arrays.
    """

    of_form: dict[Form, list[jax.Array]]
    gathered: dict[str, list[jax.Array]]

    def array(self, slot: Slot) -> jax.Array:
        """Return the array that belongs to a slot."""
        if slot.gathered:
            return self.gathered[slot.gathered][slot.index]
        return self.of_form[slot.form][slot.index]

    @property
    def arrays(self) -> list[jax.Array]:
        """All arrays."""
        return [*itertools.chain(*self.of_form.values(), *self.gathered.values())]


class Outputs:
    """The outputs of a cell's function.

    JAX's types tell which arrays are the same on all replicas. Others get a first axis of the
    replicas. The state, which the cell reads and assigns, keeps its form if it can: an array that
    was whole comes back whole, and an array that was cut comes back cut the same way, unless copies
    of a part differ now.

    Args:
        cell: The cell.
        arguments: The values that the cell reads.
        options: How results are combined.
        assigned: The names that the cell, or a function that it reaches, assigns.
        state: The names that a step passes on to the next.
        namespace: The notebook's names.
        needed: The names to return; None for all.

    Attributes:
        nests: By name, the value with slots instead of arrays; also values without arrays.
        withheld: Names that stay in the cell, because their values hold traced arrays.
        is_complete: Whether all names are returned.
    """

    def __init__(
        self,
        cell: CellSource,
        arguments: Arguments,
        options: OutputOptions,
        assigned: Sequence[str],
        state: Sequence[str],
        namespace: dict[str, Any],
        needed: Collection[str] | None,
    ) -> None:
        self.nests: dict[str, Any] = {}
        self.withheld: list[str] = []
        self._cell, self._arguments, self._state = cell, arguments, state
        self._namespace = namespace
        self._gathered = dict(options.gather)
        self._combined = {name: _REDUCTIONS[how] for name, how in options.reduce}
        every = (*assigned, LAST)
        self.is_complete = needed is None
        self._names = [name for name in every if needed is None or name in needed]

    @property
    def specs(self) -> Any:
        """The specs of what the function returns."""
        gathered = {
            name: PartitionSpec(*[None] * axis, AXIS) for name, axis in self._gathered.items()
        }
        return {
            Form.WHOLE.value: WHOLE,
            Form.PART.value: PARTS,
            Form.NUMBER.value: PARTS,
        }, gathered

    def taken_from(self, names: dict[str, Any]) -> Any:
        """Return the arrays among a replica's names, and remember their places."""
        self.nests, self.withheld = {}, []
        of_form: dict[str, list[Any]] = {form.value: [] for form in Form}
        gathered: dict[str, list[Any]] = {name: [] for name in self._gathered}
        for name in self._names:
            if name not in names or name in PROVIDED or name in self._cell.definitions:
                continue
            leaves, tree = flattened(names[name])
            if any(holds_traced(leaf) for leaf in leaves):
                self.withheld.append(name)
                continue
            taken = [self._take(name, leaf, of_form, gathered) for leaf in leaves]
            self.nests[name] = tree.unflatten(taken)
        return of_form, gathered

    def define(self) -> None:
        """Define the cell's functions and classes; JAX must not trace what a class computes."""
        if not self.is_complete:
            return
        plain = {name: nest for name, nest in self.nests.items() if not _has_slots(nest)}
        defined = defined_by(self._cell, self._namespace, plain)
        self.nests.update(defined)
        self.withheld += [name for name in self._cell.definitions if name not in defined]

    def _read(self, name: str, tree: Any, size: int) -> list[Any]:
        """Return what the cell has read under a name, leaf by leaf, if the tree is the same."""
        if name in self._arguments.nests:
            leaves, before = flattened(self._arguments.nests[name])
            if before == tree:
                return leaves
        return [None] * size

    def _take(
        self,
        name: str,
        leaf: Any,
        of_form: dict[str, list[Any]],
        gathered: dict[str, list[Any]],
    ) -> Any:
        """Take an array into the lists, and return its slot; return another value as it is."""
        if not isinstance(leaf, jax.core.Tracer):
            return leaf
        if leaf.dtype == jax.dtypes.float0:  # the gradient of an integer, which has no values
            return np.zeros(leaf.shape, jax.dtypes.float0)
        shown = "_" if name == LAST else name
        shape = tuple(leaf.shape)
        if shown in gathered:
            _refuse_axis(shown, shape, self._gathered[shown])
            gathered[shown].append(leaf)
            return Slot(len(gathered[shown]) - 1, Form.WHOLE, shape, gathered=shown)
        if shown in self._combined:
            leaf = self._combined[shown](leaf, AXIS)
        form = Form.WHOLE
        if varies(leaf):
            form = Form.PART if shape else Form.NUMBER
            leaf = leaf if shape else leaf[None]
        arrays = of_form[form.value]
        arrays.append(leaf)
        return Slot(len(arrays) - 1, form, shape)

    def results_of(self, returned: Any) -> Results:
        """Return what the function has returned, in a form that has names."""
        of_form, gathered = returned
        return Results({form: of_form[form.value] for form in Form}, gathered)

    @functools.cached_property
    def state(self) -> list[Slot] | None:
        """The results that become the state of the next step, in the order of its arguments.

        None if the state's form has changed in the step, so that the next step has another.
        """
        slots: list[Slot] = []
        for name in self._state:
            if name not in self.nests or name not in self._arguments.nests:
                return None
            before, tree = flattened(self._arguments.nests[name])
            after, tree_after = flattened(self.nests[name])
            if tree != tree_after:
                return None
            for one, other in zip(before, after, strict=True):
                is_slot = isinstance(one, Slot)
                if is_slot != isinstance(other, Slot) or (not is_slot and one is not other):
                    return None
                if is_slot and (one.form is not other.form or other.gathered):
                    return None
                slots += [other] if is_slot else []
        return slots

    def filled(self, results: Results) -> dict[str, Any]:
        """Return the values of the cell's names, and of its last expression."""
        values = {}
        for name, nest in self.nests.items():
            leaves, tree = flattened(nest)
            before = self._read(name, tree, len(leaves))
            filled = [
                self._value(name, leaf, slot, results)
                for leaf, slot in zip(leaves, before, strict=True)
            ]
            values[name] = tree.unflatten(filled)
        return values

    def _value(self, name: str, leaf: Any, before: Any, results: Results) -> Any:
        """Return the notebook's value for a slot; return another value as it is."""
        if not isinstance(leaf, Slot):
            return leaf
        array = results.array(leaf)
        if leaf.form is Form.WHOLE:
            is_state = isinstance(before, Slot) and before.form is Form.WHOLE
            is_one = is_state or leaf.gathered or ("_" if name == LAST else name) in self._combined
            return array if is_one else PerReplica(array, leaf.shape, is_whole=True)
        if isinstance(before, Slot) and before.shape == leaf.shape:
            cut = self._arguments.before[before.index]
            if cut is not None and (whole := cut.put(array)) is not None:
                return whole
        return PerReplica(array, leaf.shape, is_whole=False)


def _has_slots(nest: Any) -> bool:
    return any(isinstance(leaf, Slot) for leaf in flattened(nest)[0])


def holds_traced(leaf: Any) -> bool:
    """Return whether a value contains a traced array, so that it cannot leave the cell."""
    is_array = isinstance(leaf, jax.Array | np.ndarray | np.generic)
    return not is_array and reaches(leaf, lambda each: isinstance(each, jax.core.Tracer))


def _refuse_axis(name: str, shape: Collection[int], axis: int) -> None:
    if not 0 <= axis < len(shape):
        raise CellError(
            f"`{name}` cannot be gathered along axis {axis}: its shape is {list(shape)}.",
            fix="Name an axis that it has (scalars have none), or stack it first.",
        )
