"""The places where the copies of a strategy's variables are kept.

A variable has a copy on each replica. The cores share one memory, so the copies of a
mirrored variable, which have one value, are kept together there:

- *Together*: one resource holds the value. A step takes a single handle instead of one for each
  core, and assigns once.
- *Separate*: each copy has a resource of its own. In this general form everything works as on a
  TPU, and each step takes longer. A variable whose replicas have values of their own (`ON_READ`: a
  metric's counts) is always kept so.

Copies of a mirrored variable begin together and may become separate, once. `Divergence.separate`
(`replicate/divergence.py`) does that, for one of three reasons:

- A replica function is traced that gives the copies different values.
- Code takes the handle of one copy, `v.values[2].handle`, and it is not known what the code does
  with the handle. TensorFlow's methods that assign to a copy take its handle, too.
- A graph or a tape keeps a handle of one copy to read it.

TensorFlow's methods that only read a copy are known (`copy_views.py`), and change nothing.
TensorFlow's code that gives all copies of a variable one value, such as `v.assign(5.0)`, changes
nothing either.

So `v.values[2].assign(5.0)` on a mirrored variable does this:

- *Before a step*: the copies become separate, and the third copy gets the value. Functions that are
  traced later take a handle for each copy.
- *After a step*: the same, and the functions that relied on one value are rewritten.
- *During a step*, in another thread or in a callback of the step: TensorFlow's runtime holds the
  old function. It would continue to update only the shared resource. So the assignment is refused
  (`FailedPreconditionError`) and nothing changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import uuid
import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tpunb.tensorflow.virtual.copies.order_of_copies import order_after
from tpunb.tensorflow.virtual.private_names import (
    TPUReplicatedVariable,
    context,
    distribute_values,
    in_save_context,
    pywrap_tfe,
)

COPIES = "_tpunb_copies"
INDEX = "_tpunb_index"

# The workers of a TPU may have resources of an earlier client.
_PROCESS = uuid.uuid4().hex[:12]
numbers = itertools.count()


def leads(devices: Sequence[str]) -> list[int]:
    """Return for each replica the first replica on the same device.

    Args:
        devices: The devices on which the replicas' copies of variables are kept.
    """
    firsts: dict[str, int] = {}
    return [firsts.setdefault(device, k) for k, device in enumerate(devices)]


@dataclasses.dataclass(frozen=True)
class Resource:
    """The resource of a separate copy, as functions find it.

    Attributes:
        name: Its name in TensorFlow's runtime.
        dtype: The type of the value.
        shape: The shape of the value.
        handle: Its handle.
        deleter: Destroys the resource when no copy and no function needs it any more.
    """

    name: str
    dtype: tf.DType
    shape: tf.TensorShape
    handle: Any = dataclasses.field(compare=False)
    deleter: Any = dataclasses.field(compare=False)


class _Deleter:
    """An owner of a resource, which destroys the resource when nothing refers to the owner."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __del__(self) -> None:
        # At the process's end TensorFlow may have ended before, and so may this module:
        # `contextlib` is then None.
        try:
            with context.eager_mode(), tf.device(self._handle.device):
                tf.raw_ops.DestroyResourceOp(resource=self._handle, ignore_lookup_error=True)
        except Exception:
            pass


class Watcher(Protocol):
    """A strategy's record of copies that may differ, and of the functions that use them."""

    variables: set[str]
    lock: threading.RLock

    def add(self, copies: Copies) -> None:
        """Record the copies of a variable."""

    def diverge(self, variables: Collection[str]) -> None:
        """Note that copies of variables may differ from now on, and separate them."""

    def separate(self, variables: Collection[str]) -> None:
        """Give each copy of variables a resource of its own."""


class Copies:
    """The copies of a mirrored variable.

    Args:
        key: The key of the variable.
        copies: Its copies: one for each replica, or with model parallelism one for each logical
            device of each replica.
        watcher: The record of the strategy that created the variable.
        together: Whether the copies on one device share the first copy's resource at first.

    Attributes:
        key: The key of the variable.
        watcher: The record of the strategy that created the variable.
        began_together: Whether the copies on one device shared a resource at first.
        used: Whether a function exists that relies on the shared resource.
        resources: The resource of each separate copy; None for a copy that kept the common
            resource. Empty until the copies become separate.
        dtype: The type of the copies' values.
        shape: The shape of each copy.
        is_trainable: Whether tapes watch the variable by themselves.
    """

    def __init__(
        self, key: str, copies: Sequence[Any], watcher: Watcher, *, together: bool
    ) -> None:
        self.key = key
        self.watcher = watcher
        self.began_together = together
        self.used = False
        handles = [copy._handle for copy in copies]
        devices = [handle.device for handle in handles]
        self._leads = leads(devices) if together else list(range(len(copies)))
        # Resources live as long as a handle of them.
        self._common = [handles[lead] for lead in self._leads]
        self._handles = list(self._common)
        self.resources: tuple[Resource | None, ...] = ()
        self.dtype, self.shape = copies[0].dtype, copies[0].shape
        self.is_trainable = bool(copies[0].trainable)
        self._names = [copy._handle_name for copy in copies]
        self._copies = [weakref.ref(copy) for copy in copies]  # the copies refer to this object

    @property
    def name(self) -> str:
        """The variable's name."""
        return str(self._names[0]).partition(":")[0]

    @property
    def are_together(self) -> bool:
        """True if the copies share a resource."""
        return self.began_together and not self.are_separate

    @property
    def are_separate(self) -> bool:
        """True if the copies shared a resource, and do not any more."""
        return bool(self.resources)

    @property
    def are_equal(self) -> bool:
        """True if only the engine can have written a single copy."""
        return self.key not in self.watcher.variables

    def handles(self) -> list[Any]:
        """Return one handle, or a handle for each copy once they are separate."""
        if self.are_together:
            return [self._handles[lead] for lead in sorted(set(self._leads))]
        return list(self._handles)

    def differ(self) -> bool:
        """Return whether the copies have different values now."""
        return values_differ(self.handles())

    def handle(self, index: int) -> Any:
        """Return a copy's handle, for the engine."""
        return self._handles[index]

    def first(self, index: int) -> int:
        """Return the copy whose resource a copy shares, or shared."""
        return self._leads[index]

    def keeps(self, index: int) -> bool:
        """Return whether a copy keeps the common resource when they become separate."""
        return self.first(index) == index

    def handle_for(self, index: int) -> Any:
        """Return a copy's handle for all other code."""
        # Functions that are traced for a saved model do not run here, and one value is saved.
        if not (_now.reads or are_given_one_value(self) or in_save_context()):
            self.watcher.diverge({self.key})
        elif self.are_together and not self.keeps(index) and _is_kept():
            self.watcher.separate({self.key})
        return self._handles[index]

    @contextlib.contextmanager
    def given_one_value(self) -> Iterator[None]:
        """Allow TensorFlow's code to write the copies, which get the same value."""
        before, _now.given_one_value = _now.given_one_value, self
        # Another thread may be about to separate the copies.
        alone = self.watcher.lock if tf.executing_eagerly() else contextlib.nullcontext()
        try:
            with alone:
                yield
        finally:
            _now.given_one_value = before

    def separate(self) -> None:
        """Give each copy a resource of its own, with its present value.

        Only `Divergence` calls it, while no function that uses the copies runs. A second call
        completes the work after an interrupt.
        """
        if not self.are_together:
            return
        with eagerly():
            resources = tuple(map(self._own, range(len(self._leads))))
        pairs = zip(self._handles, resources, strict=True)
        self._handles = [common if own is None else own.handle for common, own in pairs]
        self.resources = resources

    def _own(self, index: int) -> Resource | None:
        """Make a resource with a copy's value; None for a copy that keeps the common resource."""
        if self.keeps(index):
            return None
        common, name = self._common[index], f"{_PROCESS}_{next(numbers)}"
        with tf.device(common.device):
            handle = tf.raw_ops.VarHandleOp(dtype=self.dtype, shape=self.shape, shared_name=name)
            value = tf.raw_ops.ReadVariableOp(resource=common, dtype=self.dtype)
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        handle._handle_data = common._handle_data
        handle._name, handle._unique_id = self._names[index], name
        # Code that saves a model finds the variable by these attributes.
        handle._parent_trackable = self._copies[index]
        handle._distributed_container = common._distributed_container
        if self.used:
            order_after(handle, common)
        return Resource(name, self.dtype, self.shape, handle, _Deleter(handle))


class _Now(threading.local):
    """TensorFlow's present use of copies in this thread.

    Attributes:
        reads: The number of methods in progress that only read a copy.
        given_one_value: The copies that are getting one value.
    """

    reads = 0
    given_one_value: Copies | None = None


_now = _Now()


@contextlib.contextmanager
def only_reading() -> Iterator[None]:
    """Allow TensorFlow's code to read copies by their handles, in this thread."""
    _now.reads += 1
    try:
        yield
    finally:
        _now.reads -= 1


def are_given_one_value(copies: Copies) -> bool:
    """Return whether TensorFlow is giving all these copies the same value, in this thread."""
    return _now.given_one_value is copies


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Leave the graph that is being built, including the graph of a model that is being saved."""
    with tf.init_scope(), context.eager_mode():
        yield


def values_differ(handles: Sequence[Any]) -> bool:
    """Return whether variables have different values now, given their handles."""
    with eagerly():
        first, *others = map(_bytes_of, handles)
    return any(other != first for other in others)


def value_of_handle(handle: Any) -> Any:
    """Return the shape and type of the variable behind a handle; None for other tensors."""
    data = getattr(handle, "_handle_data", None)
    return data.shape_and_type[0] if data and data.is_set and data.shape_and_type else None


def _bytes_of(handle: Any) -> bytes:
    """Return the present value of a variable."""
    with tf.device(handle.device):
        dtype = value_of_handle(handle).dtype
        return bytes(tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).numpy().tobytes())


def _is_kept() -> bool:
    """Return whether the reader of a copy keeps its handle, as a graph or a tape does."""
    if not tf.executing_eagerly():
        return not in_save_context()
    return not pywrap_tfe.TFE_Py_TapeSetIsEmpty()


def copies_of(variable: Any) -> Copies | None:
    """Return all copies of a variable, given one copy; None if no strategy watches them."""
    if isinstance(variable, TPUReplicatedVariable):
        variable = variable._vars[0]
    return getattr(variable, COPIES, None)


def handle_of(copy: Any) -> Any:
    """Return a copy's handle for the engine, or the handle of any other variable."""
    copies = copies_of(copy)
    return copy.handle if copies is None else copies.handle(getattr(copy, INDEX))


def is_copy(variable: Any) -> bool:
    """Return whether a variable is the copy of one replica."""
    return hasattr(variable, INDEX)


def copy_with(handle: Any) -> Any | None:
    """Return the copy that has a handle; None for all other handles."""
    refer = getattr(handle, "_parent_trackable", None)
    owner = refer() if refer is not None else None
    return owner if is_copy(owner) else None


def replica_of(handle: Any) -> int:
    """Return the replica whose copy has a handle; 0 for other tensors."""
    return getattr(handle, INDEX, 0)


def is_one_value(values: Any) -> bool:
    """Return whether all copies of a variable get one value, now and later.

    Args:
        values: Tensors, variables and values of the replicas, in a nest.
    """
    flat = tf.nest.flatten(values)
    return all(_is_one(v) for v in flat if isinstance(v, distribute_values.DistributedValues))


def _is_one(value: Any) -> bool:
    parts = value.values
    if not isinstance(value, tf.Variable):
        return all(part is parts[0] for part in parts)
    copies = copies_of(parts[0])
    # A graph would continue to take the value's copies after they differ.
    return tf.executing_eagerly() and copies is not None and copies.are_equal
