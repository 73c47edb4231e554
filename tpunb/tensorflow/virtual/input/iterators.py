"""Iterators of distributed datasets for virtual cores, and their types.

TensorFlow passes batches to devices by an iterator for each device, which fetches them from the
host by calls of its own functions. Making these functions costs 35 ms for each core, and Keras
makes them twice an epoch. Virtual cores share their host's memory: one iterator on the host serves
all cores in turn.

TensorFlow makes an iterator's type, and the types of its parts, in every call of a function that
takes it, for each core. On 128 cores that takes longer than a small step. Here an iterator is made
from its type, and keeps it.

Only this module and `distributed_datasets` use the private attributes of TensorFlow's distributed
input. `tests/virtual/test_tensorflow_adapters.py` lists them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpunb._util.patching import Replaced
from tpunb.tensorflow.virtual.input.datasets import copied, without_tuning
from tpunb.tensorflow.virtual.private_names import (
    context,
    input_lib,
    iterator_ops,
    multi_device_iterator_ops,
)


def _untuned_device_dataset(create: Any, *args: Any, **kwargs: Any) -> Any:
    return without_tuning(create(*args, **kwargs))


UNTUNED = Replaced(multi_device_iterator_ops, "_create_device_dataset", _untuned_device_dataset)
"""Inside this context, TensorFlow 1's iterators use datasets that do not tune themselves.

TensorFlow has no parameter for such a dataset.
"""


class _CopiedOptional:
    """An optional element whose value is copied to the core that asks for it."""

    def __init__(self, optional: Any, element_spec: Any) -> None:
        self._optional = optional
        self.element_spec = element_spec

    def has_value(self) -> tf.Tensor:
        """Return whether there is an element, as a scalar of type bool."""
        return self._optional.has_value()

    def get_value(self) -> Any:
        """Return the element; if it does not exist, this fails when it runs."""
        return copied(self._optional.get_value())


@dataclasses.dataclass(frozen=True)
class HostIterator:
    """A host's iterator, which gives its cores elements in turn.

    Attributes:
        iterator: The `tf.data.Iterator` over the elements of all cores.
        host: The device that it is on.
        cores: The devices that get the elements.
    """

    iterator: Any
    host: str
    cores: Sequence[str]

    def get_next_as_list(self, name: str | None = None) -> list[Any]:
        """Return the next element for each core."""
        del name  # TensorFlow does not use it either
        # TensorFlow takes many calls for a loop that went wrong, so these count as one: see
        # GET_NEXT_CALL_WARNING_THRESHOLD in python/data/ops/iterator_ops.py, up to 2.21.
        before = self.iterator._get_next_call_count
        self.iterator._get_next_call_count = -len(self.cores)
        try:
            return [self._on_core(self._next(), core) for core in self.cores]
        finally:
            self.iterator._get_next_call_count = before + 1

    def _on_core(self, element: Any, core: str) -> Any:
        with tf.device(core if tf.executing_eagerly() else self.host):
            return copied(element)

    def _next(self) -> Any:
        with on_host(self.host):
            return self.iterator.get_next()

    def get_next_as_optional_list(self) -> list[Any]:
        """Return a `tf.experimental.Optional` for each core, empty after the end."""
        return [self._optional_on(core) for core in self.cores]

    def _optional_on(self, core: str) -> _CopiedOptional:
        with on_host(self.host):
            optional = self.iterator.get_next_as_optional()
        with tf.device(core if tf.executing_eagerly() else self.host):
            # The value is requested on the device; the optional itself belongs to the host.
            handed = tf.nest.map_structure(tf.identity, optional, expand_composites=True)
        return _CopiedOptional(handed, self.iterator.element_spec)


@contextlib.contextmanager
def on_host(host: str) -> Iterator[None]:
    """Place operations on a host, even if another device is in force."""
    with tf.device(None), tf.device(host):
        yield


def _prefetched(dataset: tf.data.Dataset, ahead: int, devices: int) -> tf.data.Dataset:
    """Return a dataset that stays ahead of its devices, as TensorFlow's iterators do."""
    options = tf.data.Options()
    options.experimental_distribute.num_devices = devices
    if not ahead:
        options.experimental_optimization.inject_prefetch = False
        return dataset.with_options(options)
    return dataset.with_options(options).prefetch(ahead * devices)


class SettledIterator(input_lib.DistributedIterator):  # type: ignore[misc]
    """A distributed iterator that keeps its type for as long as it lives.

    Nothing is kept from one iterator to the next: two iterators of equal types may end differently.
    """

    _type_spec: Any = None

    @classmethod
    def over(cls, distributed: Any, datasets: Sequence[Any]) -> Any:
        """Return a new iterator.

        Args:
            distributed: The distributed dataset that it iterates over.
            datasets: Each host's part of the dataset.
        """
        options, iterators = distributed._options, []
        ahead = options.experimental_per_replica_buffer_size if options else 1
        pairs = distributed._input_workers._worker_device_pairs
        for (host, cores), dataset in zip(pairs, datasets, strict=True):
            with on_host(host):
                iterators.append(iter(_prefetched(dataset, ahead, len(cores))))
        if tf.executing_eagerly():
            context.async_wait()  # a function may take it before it is initialized
        partial = distributed._enable_get_next_as_optional
        spec = SettledIteratorSpec.of(distributed, can_be_partial=partial)
        return spec._from_components(iterators)


class SettledIteratorSpec(input_lib.DistributedIteratorSpec):  # type: ignore[misc]
    """The type of a `SettledIterator`."""

    @classmethod
    def of(cls, distributed: Any, *, can_be_partial: bool) -> Any:
        """Return the type of iterators over a distributed dataset.

        Args:
            distributed: The distributed dataset.
            can_be_partial: Whether some replicas may get no element of the last batch.
        """
        return cls(
            distributed._input_workers,
            distributed._element_spec,
            distributed._strategy,
            distributed._options,
            distributed._cardinality,
            can_be_partial,
            distributed._replica_order,
        )

    @property
    def value_type(self) -> type:
        """The class of the values of this type."""
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
        hosts = range(self._input_workers.num_workers)
        return [iterator_ops.IteratorSpec(self._spec_of_part(host)) for host in hosts]

    def _spec_of_part(self, number: int) -> Any:
        """Return the type of one part of an element."""
        return tf.nest.map_structure(
            functools.partial(input_lib._replace_per_replica_spec, i=number), self._element_spec
        )

    def _to_components(self, value: Any) -> list[Any]:
        return [host.iterator for host in value._iterators]

    def _from_components(self, components: Sequence[Any]) -> Any:
        pairs = self._input_workers._worker_device_pairs
        hosts = [HostIterator(one, *pair) for one, pair in zip(components, pairs, strict=True)]
        return self._over(hosts)

    def _over(self, iterators: Sequence[Any]) -> Any:
        """Return an iterator of this type over iterators of hosts."""
        iterator = super()._from_components(iterators)
        iterator.__class__ = self.value_type
        iterator._type_spec = self
        return iterator
