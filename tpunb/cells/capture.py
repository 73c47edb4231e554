"""Capture of the notebook's values that a cell reads, as arguments or closed-over values.

Tensors and arrays become arguments, so a new value does not retrace. All other values are closed
over. The key of such a value changes when TensorFlow would have to trace again.
"""

from __future__ import annotations

import ast
import builtins
import enum
import functools
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.cells.code_names import globals_read
from tpunb.cells.guards import PLAIN
from tpunb.cells.names import bound_in
from tpunb.cells.nests import is_composite, leaves
from tpunb.cells.source import KERAS_LOOPS, PROVIDED, StepSource, keras_loop
from tpunb.errors import CellError, did_you_mean

_MISSING = object()
_ALIASES = {
    "jnp": "jax.numpy",
    "np": "numpy",
    "pd": "pandas",
    "plt": "matplotlib.pyplot",
    "tf": "tensorflow",
}
_LARGE = 1000  # leaves: a larger list without tensors counts as one object


class CellNameError(CellError, NameError):
    """The error of a cell that reads an undefined name."""


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

    values: dict[str, Any] = field(default_factory=dict)
    key: dict[str, Hashable] = field(default_factory=dict)
    arguments: list[Any] = field(default_factory=list)
    signature: list[Hashable] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)
    closed: dict[str, Any] = field(default_factory=dict)
    read: dict[str, Any] = field(default_factory=dict)
    local: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Shortcut:
    """The few comparisons that show that a cell's last trace fits again.

    Attributes:
        closed: Names that must still be bound to the very same objects.
        arguments: Names of single arguments, with their kinds.
        signature: The shapes and dtypes that the arguments must have.
    """

    closed: tuple[tuple[str, Any], ...]
    arguments: tuple[tuple[str, CaptureKind], ...]
    signature: list[Hashable]


class Capturer:
    """The capture of values for one strategy."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        # Weak keys, because a cell that defines a class makes another class after each edit.
        self._kinds: weakref.WeakKeyDictionary[type, CaptureKind] = weakref.WeakKeyDictionary(
            dict.fromkeys(PLAIN, CaptureKind.PLAIN)
        )

    def capture(
        self, cell: StepSource, namespace: dict[str, Any], bound: Mapping[str, Any]
    ) -> Captured:
        """Look up the names that a cell reads; `bound` hides the notebook's names.

        Raises:
            CellError: A name is not defined, or its value cannot be passed to the replicas.
        """
        captured = Captured(local=frozenset(bound))
        for name in (*cell.names.reads, *cell.later):
            if name in PROVIDED:
                continue
            value = bound[name] if name in bound else namespace.get(name, _MISSING)
            if value is _MISSING and hasattr(builtins, name):
                # Capture a builtin too if an assignment of the cell hides it.
                if name in cell.names.assigned:
                    value = getattr(builtins, name)
            elif value is _MISSING and name in cell.names.certain:
                raise _undefined(cell, name, namespace, bound)
            if self.kind(value) is CaptureKind.STREAM:
                raise _unreadable(name, value, cell)
            if value is not _MISSING:
                captured.values[name] = value
                captured.key[name] = self._taken(captured, name, value, namespace)
        return captured

    def shortcut(self, cell: StepSource, captured: Captured) -> Shortcut | None:
        """Return a quick way to capture the same values again; None for lists and dicts."""
        if any(self.kind(value) is CaptureKind.NEST for value in captured.values.values()):
            return None
        names = [name for name in (*cell.names.reads, *cell.later) if name not in PROVIDED]
        closed = {name: captured.values.get(name, _MISSING) for name in names}
        for name in captured.owners:
            del closed[name]
        arguments = tuple((name, self.kind(captured.values[name])) for name in captured.owners)
        return Shortcut(tuple(closed.items()), arguments, captured.signature)

    def again(
        self, shortcut: Shortcut, namespace: dict[str, Any], bound: Mapping[str, Any]
    ) -> Captured | None:
        """Return the arguments of another run; None if anything else differs from the last run."""
        get = {**namespace, **bound}.get if bound else namespace.get
        for name, value in shortcut.closed:
            if get(name, _MISSING) is not value:
                return None
        captured = Captured()
        for name, kind in shortcut.arguments:
            value = get(name, _MISSING)
            if self._kinds.get(type(value)) is not kind or not self.passed(value):
                return None
            self._add_argument(captured, name, value)
        if captured.signature != shortcut.signature:
            return None
        captured.signature = shortcut.signature  # its identity shows that it is the same
        return captured

    def kind(self, value: Any) -> CaptureKind:
        """Return the kind of a value, which is remembered by the value's type."""
        known = self._kinds.get(type(value))
        if known is None:
            known = self._kinds[type(value)] = _kind(value)
        return known

    def roots(self, captured: Captured) -> dict[str, Any]:
        """Return the values that a trace closes over, by name: all its dependencies begin there."""
        roots = dict(captured.closed)
        for name in dict.fromkeys(captured.owners):
            value = captured.values[name]
            if self.kind(value) is CaptureKind.NEST:
                roots[name] = tuple(leaf for leaf in leaves(value) if not self.passed(leaf))
        return roots

    def passed(self, leaf: Any) -> bool:
        """Return whether a value that is not a nest is passed as an argument."""
        kind = self.kind(leaf)
        if kind is CaptureKind.ARRAY:
            return _converts(leaf.dtype)
        return kind in (CaptureKind.TENSOR, CaptureKind.COMPOSITE, CaptureKind.DISTRIBUTED)

    def _taken(
        self, captured: Captured, name: str, value: Any, namespace: dict[str, Any]
    ) -> Hashable:
        """Add a value to the arguments or to the closed-over values, and return its key."""

        def leaf_key(leaf: Any) -> Hashable:
            if self.kind(leaf) is CaptureKind.STREAM:
                raise _unreadable(name, leaf)
            passed = self.passed(leaf)
            return self._add_argument(captured, name, leaf) if passed else self.closed_key(leaf)

        if self.passed(value):
            return self._add_argument(captured, name, value)
        kind = self.kind(value)
        if kind is CaptureKind.NEST and not self._is_large(value):
            if any(map(self.passed, leaves(value))):
                return (CaptureKind.NEST, self._nest_key(value, leaf_key))
        elif kind is CaptureKind.FUNCTION:
            captured.read.update(globals_read(value, namespace))
        captured.closed[name] = value
        return self.closed_key(value)

    def _add_argument(self, captured: Captured, name: str, value: Any) -> Hashable:
        kind = self.kind(value)
        if kind is CaptureKind.ARRAY:
            kind, value = CaptureKind.TENSOR, tf.convert_to_tensor(value)
        elif kind is CaptureKind.DISTRIBUTED:
            value = self._per_replica(name, value)
        captured.arguments.append(value)
        captured.signature.append(self._signature(value))
        captured.owners.append(name)
        return kind

    def _per_replica(self, name: str, value: Any) -> Any:
        """Convert a value of all replicas to the form that `strategy.run` takes."""
        local = getattr(value, "values", None) or self._strategy.experimental_local_results(value)
        count = self._strategy.num_replicas_in_sync
        if len(local) != count:
            raise CellError(
                f"`{name}` holds the values of {len(local)} replicas; there are {count} now.",
                fix=f"Compute `{name}` again with this strategy.",
            )
        if is_composite(value) and all(map(self.passed, local)):
            return value
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: tf.convert_to_tensor(local[context.replica_id_in_sync_group])
        )

    def _signature(self, value: Any) -> Hashable:
        kind = self.kind(value)
        if kind is CaptureKind.DISTRIBUTED:
            local = self._strategy.experimental_local_results(value)
            return tuple(map(self._signature, local))
        if kind is CaptureKind.TENSOR:
            return (value.dtype, value.shape)
        return tf.type_spec_from_value(value)  # type: ignore[no-any-return]

    def closed_key(self, value: Any) -> Hashable:
        """Return the key that identifies a value that is closed over."""
        kind = self.kind(value)
        if kind is CaptureKind.PLAIN:
            return (type(value), repr(value) if isinstance(value, (float, complex)) else value)
        if kind is CaptureKind.NEST and not self._is_large(value):
            return self._nest_key(value, self.closed_key)
        return (kind, id(value))

    def _nest_key(self, value: Any, leaf_key: Callable[[Any], Hashable]) -> Hashable:
        if self.kind(value) is not CaptureKind.NEST:
            return leaf_key(value)
        if isinstance(value, dict):
            children = [(key, self._nest_key(child, leaf_key)) for key, child in value.items()]
            return (type(value), *children)
        return (type(value), *(self._nest_key(child, leaf_key) for child in value))

    def _is_large(self, value: Any) -> bool:
        """Return whether a nest is too large to compare, or so deep that it may contain itself."""
        passed = False
        for number, leaf in enumerate(leaves(value)):
            if self.kind(leaf) is CaptureKind.NEST:
                return True
            passed = passed or self.passed(leaf)
            if number >= _LARGE:
                return not passed
        return False


def _undefined(
    cell: StepSource, name: str, namespace: Mapping[str, Any], bound: Mapping[str, Any]
) -> CellNameError:
    """Return the error for a name that is not defined in the cell or the notebook."""
    message = f"Line {cell.names.reads[name]}: name `{name}` is not defined."
    has_attribute = any(
        isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == name
        for node in cell.nodes
    )
    if has_attribute and (name in _ALIASES or name in {*sys.stdlib_module_names, "keras"}):
        alias = f"{_ALIASES[name]} as {name}" if name in _ALIASES else name
        return CellNameError(message, fix=f"Import it in a cell above: `import {alias}`.")
    if name in cell.names.assigned:
        message = f"{message[:-1]} before the cell assigns it."
        hint = f"Give it a value in a cell above, such as `{name} = 0.0`."
    elif "batch" in bound:
        hint = f"A step's batch is `batch`; `--as {name},...` names its parts."
    elif name == "batch":
        hint = "A step has a `batch` where -d names the data: `%%tpu_run -d dataset`."
    else:
        hint = ""
    shown = [word for word in namespace if not word.startswith("_")]
    known = {*shown, *cell.names.assigned, *PROVIDED} - {name}
    meant = did_you_mean(name, sorted(known))
    return CellNameError(message, fix=" ".join(filter(None, (hint, meant))))


def _unreadable(name: str, value: Any, cell: StepSource | None = None) -> CellError:
    """Return the error for a dataset or an iterator that the replicas would read."""
    for node in cell.nodes if cell is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if node.func.attr in KERAS_LOOPS and name in (
                getattr(each, "id", "") for each in given
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
