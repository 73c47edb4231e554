"""Types of distributed iterators, which remember what they are made of.

A `tf.function` asks an iterator for its type in each call, compares it with the one that it was
traced for, and asks that for the types of its components. TensorFlow makes all of it anew, with
a device's name to be read and a tensor's type to be compared for each core: on 8 cores a third
of a small step, on 32 most of it.
"""

from __future__ import annotations

import weakref
from typing import Any

from tpunb.virtual._tensorflow import input_lib

__all__ = ["DistributedIteratorSpec", "WorkerIteratorSpec", "type_of"]

_HASH, _COMPONENTS, _TYPE = "_tpunb_hash", "_tpunb_components", "_tpunb_type"
_made = input_lib.DistributedIterator._type_spec.fget
_types: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()


def type_of(iterator: Any) -> Any:
    """The type of a distributed dataset's iterator, the same object for all of one type."""
    if _TYPE not in iterator.__dict__:
        made = _made(iterator)
        known = _types.get(made)
        if known is None:
            _types[made] = known = weakref.ref(made)
        iterator.__dict__[_TYPE] = known() or made
    return iterator.__dict__[_TYPE]


class _Remembering:
    """A type that is hashed once, and asks once for the types of its components."""

    def __hash__(self) -> int:
        if _HASH not in self.__dict__:
            self.__dict__[_HASH] = super().__hash__()
        return int(self.__dict__[_HASH])

    def __eq__(self, other: object) -> bool:
        return self is other or bool(super().__eq__(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    @property
    def _component_specs(self) -> Any:
        if _COMPONENTS not in self.__dict__:
            self.__dict__[_COMPONENTS] = super()._component_specs  # type: ignore[misc]
        return self.__dict__[_COMPONENTS]


class DistributedIteratorSpec(_Remembering, input_lib.DistributedIteratorSpec):  # type: ignore[misc]
    """The type of a distributed dataset's iterator."""


class WorkerIteratorSpec(_Remembering, input_lib._SingleWorkerDatasetIteratorSpec):  # type: ignore[misc]
    """The type of one host's part of it."""
