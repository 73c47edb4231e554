"""Iterators of distributed datasets for virtual cores, and their types.

TensorFlow passes batches to devices by an iterator for each device, which fetches them from the
host by calls of its own functions. Making these functions costs 35 ms for each core, and Keras
makes them twice an epoch. Virtual cores share their host's memory: one iterator on the host serves
all cores in turn.

TensorFlow makes an iterator's type, and the types of its parts, in every call of a function that
takes it, for each core. On 128 cores that takes longer than a small step. TensorFlow also uses a
function that was traced for batches of any size for batches of one size, which reach virtual cores
in another form: as one tensor for all cores. Here types are made once, and distinguish the two
forms.

Only this module and `distributed_datasets` use the private attributes of TensorFlow's distributed
input. `tests/virtual/test_tensorflow_adapters.py` lists them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpunb._util.patching import Replaced
from tpunb.virtual.tensorflow.datasets import (
    come_in_rounds,
    copied,
    in_rounds,
    round_of,
    without_tuning,
)
from tpunb.virtual.tensorflow.devices import is_elsewhere
from tpunb.virtual.tensorflow.private_names import (
    context,
    device_util,
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


class _Part(_CopiedOptional):
    """One core's part of an optional round."""

    def __init__(self, optional: Any, element_spec: Any, index: int, size: tf.Tensor) -> None:
        super().__init__(optional, element_spec)
        self._index = index
        self._size = size

    def has_value(self) -> tf.Tensor:
        """Return whether the round has an element for this core, as a scalar of type bool."""
        return self._index < self._size

    def get_value(self) -> Any:
        """Return the core's element; if it does not exist, this fails when it runs."""
        whole = self._optional.get_value()
        return copied(tf.nest.map_structure(lambda component: component[self._index], whole))


class HostIterator(input_lib._SingleWorkerOwnedDatasetIterator):  # type: ignore[misc]
    """A host's iterator, which gives its cores elements in turn.

    If the options of the input leave data on the host, it behaves as TensorFlow's iterator.
    """

    _host: str

    @property
    def _in_rounds(self) -> bool:
        """True if elements for all cores come in one tensor."""
        return come_in_rounds(self._element_spec, self._devices)

    def _create_owned_multi_device_iterator(self) -> None:
        ahead = self._options.experimental_per_replica_buffer_size if self._options else 1
        scope, self._host = _scope_and_host(self._worker)
        dataset, count = self._dataset, len(self._devices)
        with tf.device(scope), tf.device(self._host):
            if self._in_rounds:
                dataset = in_rounds(dataset, count)
            else:
                ahead *= count
            self._iterator = iter(_prefetched(dataset, ahead, count))

    def get_next_as_list(self, name: str | None = None) -> list[Any]:
        """Return the next element for each core."""
        if not input_lib._should_use_multi_device_iterator(self._options):
            return super().get_next_as_list(name)  # type: ignore[no-any-return]
        count = len(self._devices)
        if not self._in_rounds:
            # TensorFlow takes many calls for a loop that went wrong, so these count as one: see
            # GET_NEXT_CALL_WARNING_THRESHOLD in python/data/ops/iterator_ops.py, up to 2.21.
            before, self._iterator._get_next_call_count = (
                self._iterator._get_next_call_count,
                -count,
            )
            try:
                return [self._on_its_core(self._next(), device) for device in self._devices]
            finally:
                self._iterator._get_next_call_count = before + 1
        with self._on_host():
            whole = self._whole_round(self._next())
            # The elements are separate only where they are not taken as one tensor.
            if not tf.executing_eagerly():
                return _elements_of(copied(whole), count)
            parts = _elements_of(whole, count)
        return [self._on_its_core(*pair) for pair in zip(parts, self._devices, strict=True)]

    def _whole_round(self, elements: Any) -> Any:
        """Return a round that has an element for each core, or reach the end of the data."""
        count = len(self._devices)
        size = tf.shape(tf.nest.flatten(elements)[0])[0]
        if tf.executing_eagerly():
            return elements if size == count else self._next()
        # After a round that is not full comes the end, which the iterator reports.
        whole = tf.cond(size < count, self._next, lambda: elements)
        for tensor in tf.nest.flatten(whole):
            tensor.set_shape([count, *tensor.shape[1:]])
        return whole

    def _on_its_core(self, element: Any, device: str) -> Any:
        with tf.device(device if tf.executing_eagerly() else self._host):
            return copied(element)

    def _next(self) -> Any:
        with self._on_host():
            if not (tf.executing_eagerly() and is_elsewhere(self._host)):
                return self._iterator.get_next()
            # If another process raised the end, TensorFlow 2.21 prints it once more when it deletes
            # the executor in which it came.
            optional = self._iterator.get_next_as_optional()
            if not optional.has_value():
                raise tf.errors.OutOfRangeError(None, None, "End of sequence")
            return optional.get_value()

    def get_next_as_optional_list(self) -> list[Any]:
        """Return a `tf.experimental.Optional` for each core, empty after the end."""
        if not input_lib._should_use_multi_device_iterator(self._options):
            return super().get_next_as_optional_list()  # type: ignore[no-any-return]
        if not self._in_rounds:
            return [
                _CopiedOptional(self._handed(self._next_optional(), device), self._element_spec)
                for device in self._devices
            ]
        optional = self._next_optional()
        with self._on_host():
            size = _count_in(optional)
        return [
            _Part(self._handed(optional, device), self._element_spec, index, size)
            for index, device in enumerate(self._devices)
        ]

    def _next_optional(self) -> Any:
        with self._on_host():
            return self._iterator.get_next_as_optional()

    def _handed(self, optional: Any, device: str) -> Any:
        with tf.device(device if tf.executing_eagerly() else self._host):
            # The value is requested on the device; the optional itself belongs to the host.
            return tf.nest.map_structure(tf.identity, optional, expand_composites=True)

    @contextlib.contextmanager
    def _on_host(self) -> Iterator[None]:
        """Place operations on the iterator's host, even if another device is in force."""
        with tf.device(None), tf.device(self._host):
            yield

    @functools.cached_property
    def _type_spec(self) -> HostIteratorSpec:
        return HostIteratorSpec(
            self._worker,
            self._devices,
            self._element_spec,
            self._options,
            self._canonicalize_devices,
        )


class HostIteratorSpec(input_lib._SingleWorkerDatasetIteratorSpec):  # type: ignore[misc]
    """The type with which a `HostIterator` passes into a `tf.function`."""

    def __init__(
        self,
        worker: str,
        devices: Sequence[str],
        element_spec: Any,
        options: Any,
        canonicalize_devices: bool = True,
    ) -> None:
        # TensorFlow would rewrite the name of each device here, but these are full names already.
        super().__init__(worker, (), element_spec, options, canonicalize_devices)
        self._devices = tuple(devices)

    @property
    def value_type(self) -> type:
        """The class of the values of this type."""
        return HostIterator

    @functools.cached_property
    def _component_specs(self) -> Any:
        # Cached, because each call of a function with the iterator asks for it.
        return super()._component_specs

    @property
    def is_in_rounds(self) -> bool:
        """True if elements for all cores come in one tensor."""
        shared = input_lib._should_use_multi_device_iterator(self._options)
        return shared and come_in_rounds(self._element_spec, self._devices)

    def _get_multi_device_iterator_spec(self, specs: list[Any]) -> None:
        spec = round_of(self._element_spec) if self.is_in_rounds else self._element_spec
        specs.append(iterator_ops.IteratorSpec(spec))

    def _from_components(self, components: Sequence[Any]) -> HostIterator:
        iterator = super()._from_components(components)
        iterator.__class__ = HostIterator
        iterator._host = device_util.get_host_for_device(_canonical(self._worker))
        return iterator  # type: ignore[no-any-return]


def _count_in(optional: Any) -> tf.Tensor:
    """Return the number of elements in an optional round."""

    def count() -> tf.Tensor:
        return tf.shape(tf.nest.flatten(optional.get_value())[0])[0]

    return tf.cond(optional.has_value(), count, lambda: 0)


def _elements_of(whole: Any, count: int) -> list[Any]:
    """Return the elements that are in a round."""
    parts = [tf.unstack(component, count) for component in tf.nest.flatten(whole)]
    return [tf.nest.pack_sequence_as(whole, components) for components in zip(*parts, strict=True)]


def _prefetched(dataset: tf.data.Dataset, ahead: int, devices: int) -> tf.data.Dataset:
    """Return a dataset that stays ahead of its devices, as TensorFlow's iterators do."""
    options = tf.data.Options()
    options.experimental_distribute.num_devices = devices
    if not ahead:
        options.experimental_optimization.inject_prefetch = False
        return dataset.with_options(options)
    return dataset.with_options(options).prefetch(ahead)


def _scope_and_host(worker: str) -> tuple[str, str]:
    """Return the device where TensorFlow makes a worker's iterator, and its host."""
    if tf.inside_function():
        return worker, worker  # the device that it will run on
    scope = _canonical(worker)
    return scope, device_util.get_host_for_device(scope)


def _canonical(worker: str) -> str:
    return str(device_util.canonicalize(worker, device_util.current()))


class SettledIterator(input_lib.DistributedIterator):  # type: ignore[misc]
    """A distributed iterator that keeps its type for as long as it lives.

    Nothing is kept from one iterator to the next: two iterators of equal types may end differently.
    """

    @classmethod
    def over(cls, distributed: Any, datasets: Sequence[Any]) -> SettledIterator:
        """Return a new iterator.

        Args:
            distributed: The distributed dataset that it iterates over.
            datasets: Each host's part of the dataset.
        """
        workers, strategy = distributed._input_workers, distributed._strategy
        iterators = []
        for number, (host, dataset) in enumerate(
            zip(workers.worker_devices, datasets, strict=True)
        ):
            with tf.device(host):
                iterators.append(
                    HostIterator(
                        dataset,
                        host,
                        workers.compute_devices_for_worker(number),
                        options=distributed._options,
                        canonicalize_devices=getattr(strategy, "_canonicalize_devices", True),
                    )
                )
        iterator = cls(
            workers,
            iterators,
            strategy,
            cardinality=distributed._cardinality,
            enable_get_next_as_optional=distributed._enable_get_next_as_optional,
            options=distributed._options,
            replica_order=distributed._replica_order,
        )
        iterator._element_spec = distributed._element_spec
        if tf.executing_eagerly():
            context.async_wait()  # a function may take it before it is initialized
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

    A function is traced again for an iterator that gives rounds, unless it was traced for such an
    iterator. All sizes of a round's elements are known, so rounds have no more general type.
    """

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
        specs = []
        for number, (worker, devices) in enumerate(self._input_workers._worker_device_pairs):
            part, canonical = self._spec_of_part(number), self._canonicalize_devices
            specs.append(HostIteratorSpec(worker, devices, part, self._options, canonical))
        return specs

    def _spec_of_part(self, number: int) -> Any:
        """Return the type of one part of an element."""
        return tf.nest.map_structure(
            functools.partial(input_lib._replace_per_replica_spec, i=number), self._element_spec
        )

    def _from_components(self, components: Sequence[Any]) -> Any:
        iterator = super()._from_components(components)
        iterator.__class__ = self.value_type
        return iterator

    def is_subtype_of(self, other: Any) -> bool:
        """Return whether a function traced for another type is right for this type."""
        if not super().is_subtype_of(other):
            return False
        return not self._is_in_rounds or self._element_spec == other._element_spec

    def most_specific_common_supertype(self, others: Sequence[Any]) -> Any:
        """Return a type that a trace for all these types can use; None if none exists."""
        if all(spec == self for spec in others):
            return self
        common = super().most_specific_common_supertype(others)
        if common is None or all(self._element_spec == spec._element_spec for spec in others):
            return common
        return None if any(spec._is_in_rounds for spec in (self, *others)) else common

    @property
    def _is_in_rounds(self) -> bool:
        """True if the iterator gives one tensor for all cores."""
        return any(host.is_in_rounds for host in self._component_specs)
