"""A mirrored variable's copies, which share one resource for as long as they are equal.

The cores of a process have one memory, and a mirrored variable has one value on all of them. So
a step takes one handle in place of one for each core, and assigns once. What may set a copy apart
splits them first, and then each has a resource of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import EagerResourceDeleter

__all__ = ["REPLICA", "MergedCopies", "Resource", "leads", "order"]

REPLICA = "_tpunb_replica"
"""Where a handle, or a copy of a variable, says whose copy it is."""

# A Pod's workers may have resources of an earlier client.
_PROCESS = uuid.uuid4().hex[:12]
_numbers = itertools.count()


def leads(devices: Sequence[str]) -> list[int]:
    """For each replica the first one on the same device.

    Args:
        devices: Where each replica's copies of variables are kept.
    """
    firsts: dict[str, int] = {}
    return [firsts.setdefault(device, k) for k, device in enumerate(devices)]


@dataclasses.dataclass(frozen=True)
class Resource:
    """What a variable's value is kept in, as functions find it.

    Attributes:
        name: Its name in TensorFlow's runtime.
        dtype: The type of the value.
        shape: Its shape.
        handle: Its handle.
        deleter: Ends it, when neither a copy nor a function needs it any more.
    """

    name: str
    dtype: tf.DType
    shape: tf.TensorShape
    handle: Any = dataclasses.field(compare=False)
    deleter: Any = dataclasses.field(compare=False)


class MergedCopies:
    """The copies of a variable, of which those of a process share the first one's resource.

    Args:
        key: What identifies the variable.
        copies: Its copies, which are equal; merged from now on.
        request_split: Has them split, and the functions that take them for one redefined.

    Attributes:
        key: What identifies the variable.
        used: Whether there is a function that takes them for one.
        is_changed_once: Whether what changes them now is done for each resource, not for
            each copy.
    """

    def __init__(
        self,
        key: str,
        copies: Sequence[Any],
        request_split: Callable[[], None],
    ) -> None:
        self.key = key
        self.used = False
        self.is_changed_once = False
        self.request_split = request_split
        self._leads = leads([copy._handle.device for copy in copies])
        self._resources: tuple[Resource | None, ...] = ()
        self._dtype, self._shape = copies[0].dtype, copies[0].shape
        # They refer to this.
        self._copies = [weakref.ref(copy) for copy in copies]
        self._handles = {lead: copies[lead]._handle for lead in self._leads}
        self._names = [copy._handle_name for copy in copies]
        for copy, lead in zip(copies, self._leads, strict=True):
            # It lives as long as a handle of it.
            copy._handle = self._handles[lead]

    @property
    def are_merged(self) -> bool:
        """Whether they share resources still."""
        return not self._resources

    @property
    def resources(self) -> Sequence[Resource | None]:
        """Each copy's own, once they are split; None for the first of a process, which kept its."""
        return self._resources

    def handles(self) -> list[Any]:
        """A handle for each process, or for each copy once they are split."""
        if self.are_merged:
            return list(self._handles.values())
        return [copy._handle for copy in map(_alive, self._copies)]

    def is_first(self, replica: int) -> bool:
        """Whether a replica's copy has the resource that others of its process share."""
        return self._leads[replica] == replica

    def first(self, replica: int) -> int:
        """The replica whose copy's resource a replica's copy shares, or shared."""
        return self._leads[replica]

    def lead(self, replica: int) -> Any:
        """The handle that a replica's copy shares, or shared."""
        return self._handles[self._leads[replica]]

    @contextlib.contextmanager
    def changed_once(self) -> Iterator[None]:
        """What changes all copies inside does so once for each resource, if they are merged."""
        self.is_changed_once = self.are_merged
        try:
            yield
        finally:
            self.is_changed_once = False

    def split(self) -> None:
        """Gives each copy a resource of its own, with the value that all have.

        Called again, it ends what an interrupt has cut off.
        """
        if self.are_merged:
            with tf.init_scope():
                self._resources = tuple(
                    None if self.is_first(k) else self._own(k) for k in range(len(self._leads))
                )
        for resource, reference in zip(self._resources, self._copies, strict=True):
            copy = reference()
            if resource is not None and copy is not None:
                copy._handle = resource.handle
                # What saves a model finds the variable by it.
                copy._handle._parent_trackable = weakref.ref(copy)

    def _own(self, replica: int) -> Resource:
        """A resource with the value that a replica's copy shares."""
        merged, name = self.lead(replica), f"{_PROCESS}_{next(_numbers)}"
        with tf.device(merged.device):
            handle = tf.raw_ops.VarHandleOp(dtype=self._dtype, shape=self._shape, shared_name=name)
            value = tf.raw_ops.ReadVariableOp(resource=merged, dtype=self._dtype)
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        handle._handle_data = merged._handle_data
        handle._name, handle._unique_id = self._names[replica], name
        setattr(handle, REPLICA, replica)
        deleter = EagerResourceDeleter(handle, merged.device)
        return Resource(name, self._dtype, self._shape, handle, deleter)


def order(handles: Sequence[Any]) -> None:
    """Has what is added to a graph use some resources after all that did so far, and before others.

    A function that was traced when copies were merged takes the handle of the first alone.
    """
    _use(len(handles))(*handles)


@functools.cache
def _use(count: int) -> Any:
    def use(*handles: Any) -> None:
        # Automatic control dependencies take it for a change of its resource.
        for handle in handles:
            tf.raw_ops.VarIsInitializedOp(resource=handle)

    with tf.init_scope():
        specs = [tf.TensorSpec([], tf.resource)] * count
        return tf.function(use, autograph=False).get_concrete_function(*specs)


def _alive(reference: Any) -> Any:
    copy = reference()
    if copy is None:
        raise ReferenceError("A variable is used whose copies are gone.")
    return copy
