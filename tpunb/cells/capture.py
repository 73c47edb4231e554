"""What a cell takes from the notebook: arguments of its function, and the rest.

Tensors and arrays become arguments, so a new value does not retrace. All else
is closed over; its key changes when TensorFlow would have to trace again.
"""

from __future__ import annotations

import builtins
import enum
import functools
import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from ..errors import CellError, nearest
from .closure import globals_read
from .nests import leaves
from .source import PROVIDED, CellSource
from .symbolic import is_composite

__all__ = ["Captured", "Capturer", "CellNameError", "Kind", "Shortcut"]

_MISSING = object()
_NOTHING: Mapping[str, Any] = types.MappingProxyType({})
_LARGE = 1000  # leaves: beyond, a list without tensors counts as one object
_PLAIN = (int, float, complex, bool, str, bytes, type(None), type(...), range)


class CellNameError(CellError, NameError):
    """A cell reads a name that neither it nor the notebook defines."""


class Kind(str, enum.Enum):
    """How a value reaches the replicas."""

    TENSOR = "a tensor"
    ARRAY = "an array"
    COMPOSITE = "a composite tensor"
    DISTRIBUTED = "per-replica values"
    NEST = "a nest"
    PLAIN = "a plain value"
    FUNCTION = "a function"
    OBJECT = "an object"
    STREAM = "a dataset or an iterator"


@dataclass
class Captured:
    """A cell's names with their values, at one run.

    Attributes:
        values: The values of the names that exist.
        key: By name, what must be equal for a traced function to fit.
        arguments: The tensors and per-replica values among them, flat.
        signature: The shape and dtype of each argument.
        owners: The name to which each argument belongs.
        closed: What is closed over, and what functions among it read: held, so
            that no other object can take an id that a key speaks of.
        local: Names whose values hide the notebook's.
    """

    values: dict[str, Any] = field(default_factory=dict)
    key: dict[str, Hashable] = field(default_factory=dict)
    arguments: list[Any] = field(default_factory=list)
    signature: list[Hashable] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)
    closed: dict[str, Any] = field(default_factory=dict)
    local: frozenset[str] = frozenset()

    def add_argument(self, name: str, value: Any, signature: Hashable) -> None:
        """Appends one flat argument."""
        self.arguments.append(value)
        self.signature.append(signature)
        self.owners.append(name)


@dataclass(frozen=True)
class Shortcut:
    """What to look at to see that a cell's last trace fits again.

    Attributes:
        closed: Names that must still be bound to the very same objects.
        arguments: Names of single arguments, with their kinds.
        signature: What the arguments' shapes and dtypes must be.
    """

    closed: tuple[tuple[str, Any], ...]
    arguments: tuple[tuple[str, Kind], ...]
    signature: list[Hashable]


class Capturer:
    """Captures for one strategy."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._kinds: dict[type, Kind] = dict.fromkeys(_PLAIN, Kind.PLAIN)
        self._take: dict[Kind, Callable[[Captured, str, Any], Hashable]] = {
            Kind.TENSOR: self._tensor,
            Kind.ARRAY: self._array,
            Kind.COMPOSITE: self._composite,
            Kind.DISTRIBUTED: self._distributed,
            Kind.NEST: self._nest,
            Kind.STREAM: self._stream,
        }

    def capture(
        self, cell: CellSource, namespace: dict[str, Any], bound: Mapping[str, Any] = _NOTHING
    ) -> Captured:
        """Looks up what a cell reads.

        Args:
            cell: The cell.
            namespace: The notebook's.
            bound: Values that hide the notebook's: a step's batch, and what the step
                before has left.

        Raises:
            CellError: A name is not defined, or is something that cannot be
                passed to the replicas.
        """
        captured = Captured(local=frozenset(bound))
        for name in (*cell.names.reads, *cell.later):
            if name in PROVIDED:
                continue
            value = bound[name] if name in bound else namespace.get(name, _MISSING)
            if value is _MISSING:
                value = self._not_in_notebook(cell, name, namespace)
            if value is not _MISSING:
                captured.values[name] = value
                captured.key[name] = self._taken(captured, name, value, namespace)
        return captured

    def shortcut(self, cell: CellSource, captured: Captured) -> Shortcut | None:
        """How to capture the same again quickly; None where lists and dicts take part."""
        kinds = [
            self.kind(value) for value in (*captured.closed.values(), *captured.values.values())
        ]
        if Kind.NEST in kinds:
            return None
        names = [name for name in (*cell.names.reads, *cell.later) if name not in PROVIDED]
        closed = {name: captured.values.get(name, _MISSING) for name in names}
        for name in captured.owners:
            del closed[name]
        for label, read in captured.closed.items():
            closed.setdefault(label.partition(" in ")[0], read)
        arguments = tuple((name, self.kind(captured.values[name])) for name in captured.owners)
        return Shortcut(tuple(closed.items()), arguments, captured.signature)

    def again(
        self,
        shortcut: Shortcut,
        namespace: dict[str, Any],
        bound: Mapping[str, Any] = _NOTHING,
    ) -> Captured | None:
        """The arguments of another run; None if anything else differs from the last."""
        get = {**namespace, **bound}.get if bound else namespace.get
        for name, value in shortcut.closed:
            if get(name, _MISSING) is not value:
                return None
        captured = Captured()
        for name, kind in shortcut.arguments:
            value = get(name, _MISSING)
            if self._kinds.get(type(value)) is not kind:
                return None
            self._take[kind](captured, name, value)
        if captured.signature != shortcut.signature:
            return None
        captured.signature = shortcut.signature  # the very same: known by identity later on
        return captured

    def kind(self, value: Any) -> Kind:
        """The kind of a value, remembered by its type."""
        known = self._kinds.get(type(value))
        if known is None:
            known = self._kinds[type(value)] = _kind(value)
        return known

    def holds_tensors(self, value: Any) -> bool:
        """Whether a value is, or is a nest with, something that is passed as an argument."""
        return any(self.passed(leaf) for leaf in leaves(value))

    def passed(self, leaf: Any) -> bool:
        """Whether a value that is not a nest is passed as an argument."""
        kind = self.kind(leaf)
        if kind is Kind.ARRAY:
            return _converts(leaf.dtype)
        return kind in (Kind.TENSOR, Kind.COMPOSITE, Kind.DISTRIBUTED)

    def _not_in_notebook(self, cell: CellSource, name: str, namespace: dict[str, Any]) -> Any:
        """A builtin that the cell hides by an assignment; an error if there is no such name."""
        builtin = getattr(builtins, name, _MISSING)
        if builtin is not _MISSING:
            return builtin if name in cell.names.assigned else _MISSING
        if name in cell.names.certain:
            line = cell.names.reads[name]
            shown = (word for word in namespace if not word.startswith("_"))
            near = nearest(name, [*shown, *cell.names.assigned, *PROVIDED])
            mend = f"Did you mean {' or '.join(f'`{word}`' for word in near)}?" if near else ""
            raise CellNameError(f"Line {line}: name `{name}` is not defined.", mend=mend)
        return _MISSING

    def _taken(
        self, captured: Captured, name: str, value: Any, namespace: dict[str, Any]
    ) -> Hashable:
        kind = self.kind(value)
        take = self._take.get(kind)
        if take is not None:
            return take(captured, name, value)
        captured.closed[name] = value
        if kind is Kind.FUNCTION:
            for inner, read in globals_read(value, namespace).items():
                # What the cell itself captures has a key of its own; a tensor that
                # the function reads is a constant of the trace all the same.
                captured.key[f"{inner} in {name}"] = self.closed_key(read)
                captured.closed[f"{inner} in {name}"] = read
        return self.closed_key(value)

    def closed_key(self, value: Any) -> Hashable:
        """What identifies a value that is closed over."""
        kind = self.kind(value)
        if kind is Kind.PLAIN:
            return (type(value), repr(value) if isinstance(value, (float, complex)) else value)
        if kind is Kind.NEST and not self._is_large(value):
            return self._nest_key(value, self.closed_key)
        return (kind, id(value))

    def _tensor(self, captured: Captured, name: str, value: Any) -> Hashable:
        captured.add_argument(name, value, (value.dtype, value.shape))
        return Kind.TENSOR

    def _array(self, captured: Captured, name: str, value: Any) -> Hashable:
        if not _converts(value.dtype):
            captured.closed[name] = value
            return (Kind.OBJECT, id(value))
        return self._tensor(captured, name, tf.convert_to_tensor(value))

    def _composite(self, captured: Captured, name: str, value: Any) -> Hashable:
        captured.add_argument(name, value, tf.type_spec_from_value(value))
        return Kind.COMPOSITE

    def _distributed(self, captured: Captured, name: str, value: Any) -> Hashable:
        local = getattr(value, "values", None) or self._strategy.experimental_local_results(value)
        count = self._strategy.num_replicas_in_sync
        if len(local) != count:
            raise CellError(
                f"`{name}` holds the values of {len(local)} replicas; there are {count} now.",
                mend=f"Compute `{name}` again with this strategy.",
            )
        if not is_composite(value) or not all(self.passed(part) for part in local):
            value = self._strategy.experimental_distribute_values_from_function(
                lambda context: tf.convert_to_tensor(local[context.replica_id_in_sync_group])
            )
            local = self._strategy.experimental_local_results(value)
        captured.add_argument(name, value, tuple(self._signature(part) for part in local))
        return Kind.DISTRIBUTED

    def _signature(self, part: Any) -> Hashable:
        if self.kind(part) is Kind.TENSOR:
            return (part.dtype, part.shape)
        return tf.type_spec_from_value(part)  # type: ignore[no-any-return]

    def _nest(self, captured: Captured, name: str, value: Any) -> Hashable:
        if self._is_large(value) or not self.holds_tensors(value):
            captured.closed[name] = value
            return self.closed_key(value)
        key = self._nest_key(value, lambda leaf: self._nest_leaf(captured, name, leaf))
        return (Kind.NEST, key)

    def _nest_leaf(self, captured: Captured, name: str, leaf: Any) -> Hashable:
        take = self._take.get(self.kind(leaf))
        return take(captured, name, leaf) if take else self.closed_key(leaf)

    def _nest_key(self, value: Any, leaf_key: Callable[[Any], Hashable]) -> Hashable:
        if self.kind(value) is not Kind.NEST:
            return leaf_key(value)
        if isinstance(value, dict):
            children = [(key, self._nest_key(child, leaf_key)) for key, child in value.items()]
            return (type(value), *children)
        return (type(value), *(self._nest_key(child, leaf_key) for child in value))

    def _is_large(self, value: Any) -> bool:
        """Whether a nest is too large to compare, or too deep: it may contain itself."""
        passed = False
        for number, leaf in enumerate(leaves(value)):
            if self.kind(leaf) is Kind.NEST:
                return True
            passed = passed or self.passed(leaf)
            if number >= _LARGE:
                return not passed
        return False

    def _stream(self, captured: Captured, name: str, value: Any) -> Hashable:
        raise CellError(
            f"`{name}` is a {type(value).__name__}, which the replicas cannot read.",
            mend=f"Take a batch outside, `batch = next(iter({name}))`, "
            f"or let the cell do so: `%%tpu_run -d {name}`.",
        )


def _kind(value: Any) -> Kind:
    kind = type(value)
    if isinstance(value, (tf.data.Dataset, tf.data.Iterator)):
        return Kind.STREAM
    if isinstance(value, (tf.distribute.DistributedDataset, tf.distribute.DistributedIterator)):
        return Kind.STREAM
    if isinstance(value, tf.Variable):
        return Kind.OBJECT
    if isinstance(value, tf.distribute.DistributedValues):
        return Kind.DISTRIBUTED
    if isinstance(value, (np.ndarray, np.generic)):
        return Kind.PLAIN if isinstance(value, (np.str_, np.bytes_)) else Kind.ARRAY
    if isinstance(value, tf.Tensor):
        return Kind.TENSOR
    if isinstance(value, (list, tuple, dict)):
        return Kind.PLAIN if isinstance(value, tf.TensorShape) else Kind.NEST
    if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        return Kind.FUNCTION
    if kind in (tf.DType, tf.TensorShape):
        return Kind.PLAIN
    return Kind.COMPOSITE if is_composite(value) else Kind.OBJECT


@functools.lru_cache(maxsize=256)
def _converts(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of this dtype become tensors."""
    if dtype.kind in "OMm":
        return False
    try:
        tf.as_dtype(dtype)
    except TypeError:
        return False
    return True
