"""Types of distributed iterators that are made once for each iterator.

TensorFlow makes an iterator's type, and that of each of its parts, in every call of a function
that takes it, for each core: on 128 cores that takes longer than a small step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tpunb.virtual._tensorflow import input_lib

__all__ = ["keep_types"]


@functools.cache
def keep_types() -> None:
    """Has each distributed iterator keep its type, and each type those of its parts.

    They are what TensorFlow would make anew. Nothing is kept from one iterator to the next:
    types that are equal may still end their data differently.
    """
    for owner, name in (
        (input_lib.DistributedIterator, "_type_spec"),
        (input_lib.DistributedIteratorSpec, "_component_specs"),
        (input_lib._SingleWorkerDatasetIteratorSpec, "_component_specs"),
    ):
        setattr(owner, name, property(_kept(vars(owner)[name].fget, f"_tpunb{name}")))


def _kept(get: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    """What an object's property gives the first time, for as long as the object lives."""

    @functools.wraps(get)
    def kept(self: Any) -> Any:
        # A type may be used as a key, so that what it keeps must not change what it equals.
        known = self.__dict__
        if name not in known:
            known[name] = get(self)
        return known[name]

    return kept
