"""Copies of a variable that each replica has for itself, as the rows of one resource.

A metric's counts, or the moving averages of a batch normalization, are each replica's own: with
512 replicas a step would take 512 handles and make 512 assignments. The cores of a process have
one memory, so that it keeps the copies as rows of one resource. A replica function reads or
assigns all rows at once, and so does TensorFlow where it gives all copies one value. A copy that
is read alone gives its row.

Whatever else reaches for a copy's handle gives each copy a resource of its own first, as with the
copies of mirrored variables (`variable_copies.py`).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import (
    TPU_VARIABLES,
    ResourceVariable,
    autograph_artifact,
    distribute_lib,
    distribute_values,
    enclosing_tpu_context,
)
from tpunb.virtual.keras_internals import is_looking_for_shapes
from tpunb.virtual.replicate.joined_forms import REAL
from tpunb.virtual.variable_copies import (
    COPIES,
    CORE,
    GRAPHS,
    INDEX,
    Copies,
    Resource,
    Watcher,
    are_written_alike,
    copies_of,
    eagerly,
    guarded,
    hide_handle,
    is_in_callback,
    module_of,
    of_copies,
    running,
    subclass,
    unique_key,
    wait_for_running,
)

_MOST_BYTES = 2**26
"""Whoever reads or writes one row of more would copy too much."""

TYPES = REAL | {tf.complex64}
"""The types of values that are kept so."""

_PATIENCE = 1.0
"""Seconds for which a split waits until no other thread runs functions."""

_QUIET = 0.02
"""Seconds after which it seems that none does."""


class RowCopies(Copies):
    """The copies of a variable that are the rows of one resource until they are split.

    Args:
        key: What identifies the variable.
        copies: Its copies, one for each replica, which share the first one's resource.
        watcher: Has them split.
    """

    def __init__(self, key: str, copies: Sequence[Any], watcher: Watcher) -> None:
        super().__init__(key, copies, watcher, shared=True)
        self._stand_in = self._handles[0]
        with eagerly(), tf.device(self._stand_in.device):
            rows = self._repeated(copies[0].value())
            name = self._names[0].partition(":")[0]
            whole = ResourceVariable(rows, trainable=False, name=name)._handle
        setattr(whole, INDEX, len(copies) - 1)  # a replica function may not read others' values
        whole._distributed_container = self._stand_in._distributed_container
        whole._parent_trackable = self._copies[0]
        # In a saved model a variable of the shape that a replica sees takes its place.
        known = copy.deepcopy(whole._handle_data)
        known.shape_and_type[0].shape.CopyFrom(tf.TensorShape(None).as_proto())
        whole._handle_data = known
        self._shared = [whole] * len(copies)
        self._handles = list(self._shared)
        self._exported = False
        self._copied = b""

    @property
    def are_equal(self) -> bool:
        """That nobody says so: each replica has its own value."""
        return False

    @property
    def stand_in(self) -> Any:
        """A handle of the shape that a replica sees."""
        return self._stand_in

    def keeps(self, index: int) -> bool:
        """Return that no copy keeps the rows of all."""
        return False

    def reach(self, index: int, *, to_read: bool) -> Any:
        """A copy's handle, for anybody else; `to_read` if it only tells variables apart."""
        if self.are_merged and not (to_read or self._exported):
            self.watcher.split({self.key})
        return self._handles[index]

    def wait_for_functions(self) -> None:
        """Waits until nothing runs that goes on to take the copies for rows.

        Between two steps of another thread nothing runs either, for a moment.

        Raises:
            FailedPreconditionError: Functions run all the time, or around this code.
        """
        if not self.used:
            return
        if is_in_callback() and running():
            raise self._used_too_late()
        began = since = time.monotonic()
        while threading.active_count() > 1 and time.monotonic() < since + _QUIET:
            time.sleep(0.001)
            if running():
                since = time.monotonic()
            if since > began + _PATIENCE:
                raise self._used_too_late()

    def _used_too_late(self) -> tf.errors.OpError:
        return self.used_too_late(
            "in another thread, or around this code", "the copies of all replicas in one resource"
        )

    def catch_up(self) -> None:
        """Sees that no function that began before the split has written rows since.

        Raises:
            FailedPreconditionError: One has, and what it wrote is lost.
        """
        wait_for_running()
        if self._bytes() != self._copied:
            raise self._used_too_late()

    def split(self) -> None:
        """Gives each copy a resource of its own, with its row."""
        if self.are_merged:
            self._copied = self._bytes()
        super().split()

    def _bytes(self) -> bytes:
        with eagerly():
            return bytes(self._whole().numpy().tobytes())

    def _own(self, index: int) -> Resource | None:
        own = super()._own(index)
        if own is not None:
            setattr(own.handle, INDEX, index)
        return own

    # Reading and writing rows.

    def row(self, index: int) -> tf.Tensor | None:
        """The value of a copy; None once they are split."""
        with self.watcher.lock:
            return self._shared_value(index) if self.are_merged else None

    def rows(self, strategy: Any) -> Any | None:
        """The values of all copies of a strategy's variable; None if each is to be read."""
        with self.watcher.lock:
            if not self.are_merged:
                return None
            if tf.executing_eagerly():
                return tf.unstack(self._whole())
            return strategy.extended.read_rows(self)

    def change(self, index: int, operation: Any, value: Any) -> bool:
        """Changes a copy's row; return whether it has: they are not split, and the shape fits.

        Args:
            index: Which copy.
            operation: TensorFlow's, that changes rows.
            value: What it is given for this one.
        """
        given = tf.convert_to_tensor(value, self.dtype)
        with self.watcher.lock:
            if not self.are_merged or given.shape != self.shape:
                return False
            with tf.device(self._shared[0].device):
                operation(resource=self._shared[0], indices=[index], updates=[given])
            return True

    def assign(self, value: tf.Tensor) -> None:
        """Gives all copies, which are not split, one value."""
        with tf.device(self._shared[0].device):
            rows = self._repeated(value)
            tf.raw_ops.AssignVariableOp(resource=self._shared[0], value=rows)

    def _repeated(self, value: tf.Tensor) -> tf.Tensor:
        return tf.broadcast_to(value, [len(self._handles), *value.shape])

    def _whole(self) -> tf.Tensor:
        return tf.raw_ops.ReadVariableOp(resource=self._shared[0], dtype=self.dtype)

    def _shared_value(self, index: int) -> tf.Tensor:
        return self._whole()[index]

    @contextlib.contextmanager
    def exported(self) -> Iterator[Any]:
        """One variable of a saved model stands for all copies; give the handle of their rows."""
        self._exported = True
        try:
            yield self._shared[0]
        finally:
            self._exported = False


def can_be_rows(variable: Any, replicas: int) -> bool:
    """Return whether a variable is each replica's own, and its copies may be rows.

    Args:
        variable: The first replica's copy.
        replicas: How many there are to be.
    """
    if variable.synchronization != tf.VariableSynchronization.ON_READ:
        return False
    kind, shape = variable.dtype, variable.shape
    if kind not in TYPES or not shape.is_fully_defined():
        return False
    return bool(shape.num_elements() * kind.size * replicas <= _MOST_BYTES)


def are_rows(variable: Any) -> bool:
    """Return whether a new variable's copies, which each replica has for itself, share one."""
    if type(variable) not in TPU_VARIABLES or variable._is_mirrored():
        return False
    handles = {id(getattr(one, "_handle", one)) for one in variable.values}
    return len(handles) == 1 < len(variable.values)


def keep_as_rows(variable: Any, cores: Sequence[str], watcher: Watcher) -> None:
    """Keeps the copies of a new variable as rows of one resource.

    Args:
        variable: A variable for which `are_rows`.
        cores: Where each copy says that it is.
        watcher: Has them split before one has to have its own resource.
    """
    copies = RowCopies(unique_key(variable), variable.values, watcher)
    watcher.add(copies)
    for index, one in enumerate(variable.values):
        setattr(one, CORE, cores[index])
        hide_handle(one, copies, index)
        one.__class__ = _row(ResourceVariable)
    kind: Any = type(variable)
    variable.__class__ = _of_rows(kind)


@functools.cache
def _row(kind: Any) -> type:
    """A class of copies that read their rows, and whose handle nobody gets unseen."""
    guarded_kind: Any = guarded(kind)

    def handle(self: Any) -> Any:
        copies: RowCopies = getattr(self, COPIES)
        to_read = module_of(sys._getframe(1)) in GRAPHS
        return copies.reach(getattr(self, INDEX), to_read=to_read)

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        copies: RowCopies = getattr(self, COPIES)
        row = copies.row(getattr(self, INDEX)) if tf.executing_eagerly() else None
        if row is None:
            return guarded_kind._read_variable_op(self, *args, **kwargs)
        with tf.device(getattr(self, CORE)):
            return tf.identity(row)

    def changing(method: str, operation: Any) -> Any:
        """A method that changes a copy: its row, where nothing keeps how it is done."""

        def change(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            copies, index = getattr(self, COPIES), getattr(self, INDEX)
            eager = tf.executing_eagerly() and not args
            if eager and method == "assign" and are_written_alike(copies) and copies.are_merged:
                given = tf.convert_to_tensor(value, self.dtype)
                if given.shape == self.shape:  # with the first all are assigned
                    return None if index else copies.assign(given)
            elif eager and copies.change(index, operation, value):
                return self if kwargs.get("read_value", True) else None
            return getattr(guarded_kind, method)(self, value, *args, **kwargs)

        return autograph_artifact(change)

    methods = {
        "_handle": property(handle),
        "handle": property(handle),
        "_read_variable_op": read,
        "assign": changing("assign", tf.raw_ops.ResourceScatterUpdate),
        "assign_add": changing("assign_add", tf.raw_ops.ResourceScatterAdd),
        "assign_sub": changing("assign_sub", tf.raw_ops.ResourceScatterSub),
        "is_initialized": lambda self, name=None: tf.constant(True, name=name),
    }
    return subclass(guarded_kind, methods)


@functools.cache
def _of_rows(kind: Any) -> type:
    """A class of variables of which TensorFlow reads or assigns all rows at once."""
    located: Any = of_copies(kind)

    def assign(self: Any, *args: Any, **kwargs: Any) -> Any:
        copies = copies_of(self._primary)
        in_graph = not tf.executing_eagerly()
        if copies is None or in_graph or enclosing_tpu_context() is not None:
            return located.assign(self, *args, **kwargs)
        with copies.written():
            return located.assign(self, *args, **kwargs)

    def synchronized(self: Any) -> Any:
        copies, strategy = copies_of(self._primary), self.distribute_strategy
        if is_looking_for_shapes() and not tf.executing_eagerly():
            return tf.raw_ops.Placeholder(dtype=self.dtype, shape=self.shape)
        first = self.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA
        rows = copies.rows(strategy) if isinstance(copies, RowCopies) and not first else None
        if rows is None:
            return located._get_cross_replica(self)
        with distribute_lib.enter_or_assert_strategy(strategy):
            operation = tf.distribute.ReduceOp.from_variable_aggregation(self.aggregation)
            return strategy.reduce(operation, distribute_values.PerReplica(rows), axis=None)

    def export(self: Any, *, tensor_map: Any, **options: Any) -> Any:
        copies = copies_of(self._primary)
        if not isinstance(copies, RowCopies):
            return located._export_to_saved_model_graph(self, tensor_map=tensor_map, **options)
        with copies.exported() as whole:
            made = located._export_to_saved_model_graph(self, tensor_map=tensor_map, **options)
            tensor_map[whole] = tensor_map[self._primary.handle]
        return [*made, whole]

    methods = {
        "assign": assign,
        "_get_cross_replica": synchronized,
        "_export_to_saved_model_graph": export,
    }
    return subclass(located, methods)
