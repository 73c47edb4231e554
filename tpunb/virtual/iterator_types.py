"""Types of distributed iterators: made once for each, and apart where they hand out otherwise.

TensorFlow makes an iterator's type, and that of each of its parts, in every call of a function
that takes it, for each core: on 128 cores that takes longer than a small step. And it takes a
function that was traced for batches of any size for those of one size too, which come to virtual
cores in another form: as one tensor for all.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tpunb.virtual._tensorflow import input_lib

__all__ = ["SettledIterator", "SettledIteratorSpec"]


class SettledIterator(input_lib.DistributedIterator):  # type: ignore[misc]
    """A distributed iterator that keeps its type for as long as it lives.

    Nothing is kept from one iterator to the next: types that are equal may still end their
    data differently.
    """

    @staticmethod
    def of(iterator: Any) -> Any:
        """The same iterator, of this class."""
        if type(iterator) is input_lib.DistributedIterator:
            iterator.__class__ = SettledIterator
        return iterator

    @functools.cached_property
    def _type_spec(self) -> SettledIteratorSpec:
        return self._spec_class()(
            self._input_workers,
            self._element_spec,
            self._strategy,
            self._options,
            self._cardinality,
            self._enable_get_next_as_optional,
            self._replica_order,
        )

    @staticmethod
    def _spec_class() -> type[SettledIteratorSpec]:
        return SettledIteratorSpec


class SettledIteratorSpec(input_lib.DistributedIteratorSpec):  # type: ignore[misc]
    """The type of a `SettledIterator`.

    A function is traced anew for an iterator that hands out rounds, unless it was for its like.
    Rounds are of elements whose sizes are all known: none has a type that is more general.
    """

    @property
    def value_type(self) -> type:
        """The class that this is the type of."""
        return SettledIterator

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (hash(self) == hash(other) and bool(super().__eq__(other)))

    @functools.cached_property
    def _hash(self) -> int:
        return hash(super().__hash__())

    @functools.cached_property
    def _component_specs(self) -> list[Any]:
        return list(super()._component_specs)

    def _from_components(self, components: Sequence[Any]) -> Any:
        return SettledIterator.of(super()._from_components(components))

    def is_subtype_of(self, other: Any) -> bool:
        """Whether what was traced for another type is right for this one."""
        if not super().is_subtype_of(other):
            return False
        return not self._is_in_rounds or self._element_spec == other._element_spec

    def most_specific_common_supertype(self, others: Sequence[Any]) -> Any:
        """A type for which can be traced what all these types take; None if there is none."""
        common = super().most_specific_common_supertype(others)
        if common is None or all(self._element_spec == one._element_spec for one in others):
            return common
        return None if any(one._is_in_rounds for one in (self, *others)) else common

    @property
    def _is_in_rounds(self) -> bool:
        """Whether the iterator hands out a tensor for all cores."""
        parts = (part for worker in self._component_specs for part in worker._component_specs)
        return any(getattr(part, "is_in_rounds", False) for part in parts)
