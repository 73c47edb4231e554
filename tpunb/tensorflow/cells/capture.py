"""Capture of the notebook's values that a cell reads, as arguments or closed-over values.

Tensors and arrays become arguments, so a new value does not retrace. All other values are closed
over. The key of such a value changes when TensorFlow would have to trace again.
"""

from __future__ import annotations

import ast
import builtins
import enum
import functools
import types
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb._util.reachable import PLAIN, collect_globals
from tpunb.cells.reading.names import bound_in
from tpunb.cells.reading.nests import leaves
from tpunb.cells.reading.source import KERAS_LOOPS, PROVIDED, StepSource, keras_loop
from tpunb.cells.reading.undefined_names import undefined_name
from tpunb.errors import CellError
from tpunb.tensorflow.cells.jax_calls import is_jax_array
from tpunb.tensorflow.cells.symbolic_values import is_composite

_MISSING = object()
_LARGE = 1000  # leaves: a larger list without tensors counts as one object


class CaptureKind(str, enum.Enum):
    """The ways in which values reach the replicas."""

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
    """A cell's names with their values, in one run.

    Attributes:
        strategy: The strategy whose replicas get the values.
        values: The values of the names that exist.
        key: For each name, a value that must be equal for a traced function to fit.
        arguments: The tensors and per-replica values among the values, as a flat list.
        signature: The shape and dtype of each argument.
        owners: The name to which each argument belongs.
        closed: The values that the function closes over. They are kept alive here, so that no
            other object can take an id that a key contains.
        read: The notebook's values that functions among these values read, by name.
        local: Names whose values hide the notebook's.
    """

    strategy: Any
    values: dict[str, Any] = field(default_factory=dict)
    key: dict[str, Hashable] = field(default_factory=dict)
    arguments: list[Any] = field(default_factory=list)
    signature: list[Hashable] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)
    closed: dict[str, Any] = field(default_factory=dict)
    read: dict[str, Any] = field(default_factory=dict)
    local: frozenset[str] = frozenset()

    @property
    def roots(self) -> dict[str, Any]:
        """The values that a trace closes over, by name: all its dependencies begin there."""
        roots = dict(self.closed)
        for name in dict.fromkeys(self.owners):
            value = self.values[name]
            if kind_of(value) is CaptureKind.NEST:
                roots[name] = tuple(leaf for leaf in leaves(value) if not is_argument(leaf))
        return roots

    def shortcut(self, cell: StepSource) -> Shortcut | None:
        """Return a quick way to capture the same values again; None for lists and dicts."""
        if any(kind_of(value) is CaptureKind.NEST for value in self.values.values()):
            return None
        names = [name for name in (*cell.names.reads, *cell.later) if name not in PROVIDED]
        closed = {name: self.values.get(name, _MISSING) for name in names}
        for name in self.owners:
            del closed[name]
        arguments = tuple((name, kind_of(self.values[name])) for name in self.owners)
        return Shortcut(self.strategy, tuple(closed.items()), arguments, self.signature)

    def add(self, name: str, value: Any, namespace: dict[str, Any]) -> None:
        """Add a name's value to the arguments or to the closed-over values."""
        self.values[name] = value
        self.key[name] = self._added(name, value, namespace)

    def _added(self, name: str, value: Any, namespace: dict[str, Any]) -> Hashable:
        """Add a value, and return its key."""

        def leaf_key(leaf: Any) -> Hashable:
            if kind_of(leaf) is CaptureKind.STREAM:
                raise _unreadable(name, leaf)
            return self.add_argument(name, leaf) if is_argument(leaf) else _closed_key(leaf)

        if is_argument(value):
            return self.add_argument(name, value)
        kind = kind_of(value)
        if kind is CaptureKind.NEST and not _is_large(value):
            if any(map(is_argument, leaves(value))):
                return (CaptureKind.NEST, _nest_key(value, leaf_key))
        elif kind is CaptureKind.FUNCTION:
            self.read.update(collect_globals(value, namespace))
        self.closed[name] = value
        return _closed_key(value)

    def add_argument(self, name: str, value: Any) -> Hashable:
        """Add a tensor, an array or per-replica values to the arguments, and return its key."""
        kind = kind_of(value)
        if kind is CaptureKind.ARRAY:
            kind, value = CaptureKind.TENSOR, tf.convert_to_tensor(np.asarray(value))
        elif kind is CaptureKind.DISTRIBUTED:
            value = self._per_replica(name, value)
        self.arguments.append(value)
        self.signature.append(self._signature(value))
        self.owners.append(name)
        return kind

    def _per_replica(self, name: str, value: Any) -> Any:
        """Convert a value of all replicas to the form that `strategy.run` takes."""
        local = getattr(value, "values", None) or self.strategy.experimental_local_results(value)
        count = self.strategy.num_replicas_in_sync
        if len(local) != count:
            raise CellError(
                f"`{name}` holds the values of {len(local)} replicas; there are {count} now.",
                fix=f"Compute `{name}` again with this strategy.",
            )
        if is_composite(value) and all(map(is_argument, local)):
            return value
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.convert_to_tensor(local[context.replica_id_in_sync_group])
        )

    def _signature(self, value: Any) -> Hashable:
        kind = kind_of(value)
        if kind is CaptureKind.DISTRIBUTED:
            local = self.strategy.experimental_local_results(value)
            return tuple(map(self._signature, local))
        if kind is CaptureKind.TENSOR:
            return (value.dtype, value.shape)
        return tf.type_spec_from_value(value)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Shortcut:
    """The few comparisons that show that a cell's last trace fits again.

    Attributes:
        strategy: The strategy whose replicas get the values.
        closed: Names that must still be bound to the very same objects.
        arguments: Names of single arguments, with their kinds.
        signature: The shapes and dtypes that the arguments must have.
    """

    strategy: Any
    closed: tuple[tuple[str, Any], ...]
    arguments: tuple[tuple[str, CaptureKind], ...]
    signature: list[Hashable]

    def capture(self, namespace: dict[str, Any], bound: Mapping[str, Any]) -> Captured | None:
        """Return the arguments of another run; None if anything else differs from the last run."""
        get = {**namespace, **bound}.get if bound else namespace.get
        for name, value in self.closed:
            if get(name, _MISSING) is not value:
                return None
        captured = Captured(self.strategy)
        for name, kind in self.arguments:
            value = get(name, _MISSING)
            if _kinds.get(type(value)) is not kind or not is_argument(value):
                return None
            captured.add_argument(name, value)
        if captured.signature != self.signature:
            return None
        captured.signature = self.signature  # its identity shows that it is the same
        return captured


def capture(
    cell: StepSource, namespace: dict[str, Any], bound: Mapping[str, Any], strategy: Any
) -> Captured:
    """Look up the names that a cell reads; `bound` hides the notebook's names.

    Raises:
        CellError: A name is not defined, or its value cannot be passed to the replicas.
    """
    captured = Captured(strategy, local=frozenset(bound))
    for name in (*cell.names.reads, *cell.later):
        if name in PROVIDED:
            continue
        value = bound[name] if name in bound else namespace.get(name, _MISSING)
        if value is _MISSING and hasattr(builtins, name):
            # Capture a builtin too if an assignment of the cell hides it.
            if name in cell.names.assigned:
                value = getattr(builtins, name)
        elif value is _MISSING and name in cell.names.certain:
            raise undefined_name(cell, name, namespace, bound)
        if kind_of(value) is CaptureKind.STREAM:
            raise _unreadable(name, value, cell)
        if value is not _MISSING:
            captured.add(name, value, namespace)
    return captured


# Weak keys, because a cell that defines a class makes another class after each edit.
_kinds: weakref.WeakKeyDictionary[type, CaptureKind] = weakref.WeakKeyDictionary()
_kinds.update((kind, CaptureKind.PLAIN) for kind in PLAIN)


def kind_of(value: Any) -> CaptureKind:
    """Return the kind of a value, which is remembered by the value's type."""
    known = _kinds.get(type(value))
    if known is None:
        known = _kinds[type(value)] = _kind(value)
    return known


def is_argument(leaf: Any) -> bool:
    """Return whether a value that is not a nest is passed to the replicas as an argument."""
    kind = kind_of(leaf)
    if kind is CaptureKind.ARRAY:
        return _converts(leaf.dtype)
    return kind in (CaptureKind.TENSOR, CaptureKind.COMPOSITE, CaptureKind.DISTRIBUTED)


def _closed_key(value: Any) -> Hashable:
    """Return the key that identifies a value that is closed over."""
    kind = kind_of(value)
    if kind is CaptureKind.PLAIN:
        return (type(value), repr(value) if isinstance(value, (float, complex)) else value)
    if kind is CaptureKind.NEST and not _is_large(value):
        return _nest_key(value, _closed_key)
    return (kind, id(value))


def _nest_key(value: Any, leaf_key: Callable[[Any], Hashable]) -> Hashable:
    if kind_of(value) is not CaptureKind.NEST:
        return leaf_key(value)
    if isinstance(value, dict):
        children = [(key, _nest_key(child, leaf_key)) for key, child in value.items()]
        return (type(value), *children)
    return (type(value), *(_nest_key(child, leaf_key) for child in value))


def _is_large(value: Any) -> bool:
    """Return whether a nest is too large to compare, or so deep that it may contain itself."""
    passed = False
    for number, leaf in enumerate(leaves(value)):
        if kind_of(leaf) is CaptureKind.NEST:
            return True
        passed = passed or is_argument(leaf)
        if number >= _LARGE:
            return not passed
    return False


def _unreadable(name: str, value: Any, cell: StepSource | None = None) -> CellError:
    """Return the error for a dataset or an iterator that the replicas would read."""
    for node in cell.nodes if cell is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            if node.func.attr in KERAS_LOOPS and name in (
                getattr(argument, "id", "") for argument in arguments
            ):
                message, fix = keras_loop(node.func.attr)
                return CellError(f"Line {node.lineno}: {message}", fix=fix)
        if isinstance(node, ast.For) and name in {
            getattr(inner, "id", "") for inner in ast.walk(node.iter)
        }:
            target = node.target
            counted = getattr(getattr(node.iter, "func", None), "id", "") == "enumerate"
            if counted and isinstance(target, ast.Tuple):
                target = target.elts[-1]
            names = ",".join(bound_in([target]))
            return CellError(
                f"Line {node.lineno}: the cell is one step, and the replicas cannot loop over "
                f"`{name}`.",
                fix=f"Leave the loop out: `%%tpu_run -d {name} --as {names}` runs the cell for "
                "each batch.",
            )
    kind = "dataset" if isinstance(value, tf.data.Dataset) else type(value).__name__.lstrip("_")
    return CellError(
        f"`{name}` is a {kind}, which the replicas cannot read.",
        fix=f"Take a batch outside, `batch = next(iter({name}))`, "
        f"or let the cell do so: `%%tpu_run -d {name}`.",
    )


def _kind(value: Any) -> CaptureKind:
    kind = type(value)
    if isinstance(value, (tf.data.Dataset, tf.data.Iterator)):
        return CaptureKind.STREAM
    if isinstance(value, (tf.distribute.DistributedDataset, tf.distribute.DistributedIterator)):
        return CaptureKind.STREAM
    if isinstance(value, tf.Variable):
        return CaptureKind.OBJECT
    if isinstance(value, tf.distribute.DistributedValues):
        return CaptureKind.DISTRIBUTED
    if isinstance(value, (np.ndarray, np.generic)):
        return CaptureKind.PLAIN if isinstance(value, (np.str_, np.bytes_)) else CaptureKind.ARRAY
    if is_jax_array(value):
        return CaptureKind.ARRAY
    if isinstance(value, tf.Tensor):
        return CaptureKind.TENSOR
    if isinstance(value, (list, tuple, dict)):
        return CaptureKind.PLAIN if isinstance(value, tf.TensorShape) else CaptureKind.NEST
    if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        return CaptureKind.FUNCTION
    if kind in (tf.DType, tf.TensorShape):
        return CaptureKind.PLAIN
    return CaptureKind.COMPOSITE if is_composite(value) else CaptureKind.OBJECT


@functools.lru_cache(maxsize=256)
def _converts(dtype: np.dtype[Any]) -> bool:
    """Return whether arrays of this dtype become tensors."""
    if dtype.kind in "OMm":
        return False
    try:
        tf.as_dtype(dtype)
    except TypeError:
        return False
    return True
