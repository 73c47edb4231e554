"""Types of distributed iterators, which remember the types of what they are made of.

A `tf.function` asks the type of an iterator for these in each call. TensorFlow makes them anew,
with a device's name for each core to be read: on 8 cores a third of a small step.
"""

from __future__ import annotations

from typing import Any

from tpunb.virtual._tensorflow import input_lib

__all__ = ["DistributedIteratorSpec", "WorkerIteratorSpec"]


class _Remembering:
    """A type that asks once for the types of its components."""

    @property
    def _component_specs(self) -> Any:
        if "_tpunb_components" not in self.__dict__:
            self.__dict__["_tpunb_components"] = super()._component_specs  # type: ignore[misc]
        return self.__dict__["_tpunb_components"]


class DistributedIteratorSpec(_Remembering, input_lib.DistributedIteratorSpec):  # type: ignore[misc]
    """The type of a distributed dataset's iterator."""


class WorkerIteratorSpec(_Remembering, input_lib._SingleWorkerDatasetIteratorSpec):  # type: ignore[misc]
    """The type of one host's part of it."""
