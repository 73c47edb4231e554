"""Distributed iterators for virtual cores, and their types: made once for each.

TensorFlow makes an iterator's type, and that of each of its parts, in every call of a function
that takes it, for each core: on 128 cores that takes longer than a small step. And it takes a
function that was traced for batches of any size for those of one size too, which come to virtual
cores in another form: as one tensor for all.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import context, device_util, input_lib
from tpunb.virtual.input_pipelines import SharedIterator, SharedIteratorSpec

__all__ = ["SettledIterator", "SettledIteratorSpec"]


class _HostIterator(input_lib._SingleWorkerOwnedDatasetIterator):  # type: ignore[misc]
    """A host's iterator, which serves all of its cores."""

    def _create_owned_multi_device_iterator(self) -> None:
        ahead = self._options.experimental_per_replica_buffer_size if self._options else 1
        scope, host = _scope_and_host(self._worker)
        with tf.device(scope):
            self._iterator = SharedIterator(self._dataset, self._devices, ahead, host)

    @property
    def _type_spec(self) -> _HostIteratorSpec:
        return _HostIteratorSpec(*super()._type_spec._serialize())


class _HostIteratorSpec(input_lib._SingleWorkerDatasetIteratorSpec):  # type: ignore[misc]
    """The type of a `_HostIterator`."""

    @property
    def value_type(self) -> type:
        """The class that this is the type of."""
        return _HostIterator

    def _get_multi_device_iterator_spec(self, specs: list[Any]) -> None:
        host = device_util.get_host_for_device(_canonical(self._worker))
        specs.append(SharedIteratorSpec(self._devices, host, element_spec=self._element_spec))

    def _from_components(self, components: Sequence[Any]) -> _HostIterator:
        made = super()._from_components(components)
        made.__class__ = _HostIterator
        return made  # type: ignore[no-any-return]


def _scope_and_host(worker: str) -> tuple[str, str]:
    """Where TensorFlow makes an iterator of a worker, and the host that it is on."""
    if tf.inside_function():
        return worker, worker  # the device that it will run on
    scope = _canonical(worker)
    return scope, device_util.get_host_for_device(scope)


def _canonical(worker: str) -> str:
    return str(device_util.canonicalize(worker, device_util.current()))


class SettledIterator(input_lib.DistributedIterator):  # type: ignore[misc]
    """A distributed iterator that keeps its type for as long as it lives.

    Nothing is kept from one iterator to the next: types that are equal may still end their
    data differently.
    """

    @classmethod
    def over(cls, distributed: Any, datasets: Sequence[Any]) -> SettledIterator:
        """A new iterator.

        Args:
            distributed: The distributed dataset that it goes over.
            datasets: What each host has of it.
        """
        workers, strategy = distributed._input_workers, distributed._strategy
        iterators = []
        for number, (host, dataset) in enumerate(
            zip(workers.worker_devices, datasets, strict=True)
        ):
            with tf.device(host):
                iterators.append(
                    _HostIterator(
                        dataset,
                        host,
                        workers.compute_devices_for_worker(number),
                        options=distributed._options,
                        canonicalize_devices=getattr(strategy, "_canonicalize_devices", True),
                    )
                )
        made = cls(
            workers,
            iterators,
            strategy,
            cardinality=distributed._cardinality,
            enable_get_next_as_optional=distributed._enable_get_next_as_optional,
            options=distributed._options,
            replica_order=distributed._replica_order,
        )
        made._element_spec = distributed._element_spec
        if tf.executing_eagerly():
            context.async_wait()  # a function may take it before it is initialized
        return made

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
        return [_HostIteratorSpec(*one._serialize()) for one in super()._component_specs]

    def _from_components(self, components: Sequence[Any]) -> Any:
        made = super()._from_components(components)
        made.__class__ = self.value_type
        return made

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
