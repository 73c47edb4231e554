"""Input pipelines that start quickly, and that end when they are cancelled.

TensorFlow hands batches to devices by an iterator for each device, which fetches
them from the host by calls of functions of its own. Making those costs 35 ms for
each core, and Keras makes them twice an epoch. Virtual cores share their host's
memory: one iterator on the host serves them all, each core in its turn.

tf.data also tunes each iterator in a thread of its own that wakes up after growing
pauses, of a minute in the end. Whoever ends an iterator waits for that thread,
which can miss the call. A TPU's input ends once in a long run; in a notebook it
ends with every short epoch: 12 epochs of `fit` on 8 virtual cores waited for
3 minutes. There is nothing to gain from tuning either, as host and cores share one
processor.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpunb.virtual._tensorflow import iterator_ops, multi_device_iterator_ops
from tpunb.virtual.devices import is_elsewhere, place_of

_cores: set[str] = set()
_device_dataset = multi_device_iterator_ops._create_device_dataset


def without_tuning(dataset: Any) -> Any:
    """A dataset that does not tune itself, unless its options say so.

    Args:
        dataset: A `tf.data.Dataset`; anything else is given back as it is.
    """
    if not isinstance(dataset, tf.data.Dataset) or _is_decided(dataset):
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _is_decided(dataset: tf.data.Dataset) -> bool:
    """Whether a dataset's options say that it tunes itself, or that it does not."""
    with warnings.catch_warnings():
        # In a graph, options that came out of a file are not known, of which it warns.
        warnings.simplefilter("ignore", UserWarning)
        return dataset.options().autotune.enabled is not None


def share_iterators(devices: Iterable[str]) -> None:
    """Lets devices of one process take their batches from one iterator on their host.

    TensorFlow has no place to hand in an iterator of one's own: the two names by
    which its distributed datasets know theirs are replaced, once, and the one by
    which TensorFlow 1's make an iterator for a device. For any other devices they
    do what they did.

    Args:
        devices: The full names of virtual cores and hosts.
    """
    _cores.update(devices)
    multi_device_iterator_ops.OwnedMultiDeviceIterator = SharedIterator
    multi_device_iterator_ops.MultiDeviceIteratorSpec = SharedIteratorSpec
    multi_device_iterator_ops._create_device_dataset = _untuned_device_dataset


def _untuned_device_dataset(*args: Any, **kwargs: Any) -> Any:
    """What TensorFlow 1's iterator for a device goes over: it has nothing to tune."""
    dataset = _device_dataset(*args, **kwargs)
    return without_tuning(dataset) if dataset._variant_tensor.device in _cores else dataset


def _are_cores(devices: Sequence[str]) -> bool:
    return _cores.issuperset(devices)


class SharedIteratorSpec(multi_device_iterator_ops.MultiDeviceIteratorSpec):  # type: ignore[misc]
    """The type of a `SharedIterator`, by which it passes into a `tf.function`."""

    __slots__: list[str] = []

    @property
    def value_type(self) -> type:
        """The class that this is the type of."""
        return SharedIterator

    @property
    def _component_specs(self) -> list[Any]:
        if not _are_cores(self._devices):
            return list(super()._component_specs)
        return [iterator_ops.IteratorSpec(self._element_spec)]

    def _to_components(self, value: Any) -> list[Any]:
        if not _are_cores(self._devices):
            return list(super()._to_components(value))
        return list(value._device_iterators)

    def _from_components(self, components: Sequence[Any]) -> SharedIterator:
        return SharedIterator(
            devices=self._devices,
            source_device=self._source_device,
            components=components,
            element_spec=self._element_spec,
        )


class SharedIterator(multi_device_iterator_ops.OwnedMultiDeviceIterator):  # type: ignore[misc]
    """An iterator that gives each of several devices an element in its turn.

    For devices other than virtual cores it is TensorFlow's.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset | None = None,
        devices: Sequence[str] = (),
        max_buffer_size: int = 1,
        prefetch_buffer_size: int = 1,
        source_device: str = "/cpu:0",
        components: Sequence[Any] | None = None,
        element_spec: Any = None,
    ) -> None:
        if not _are_cores(devices):
            super().__init__(
                dataset,
                devices,
                max_buffer_size,
                prefetch_buffer_size,
                source_device,
                components,
                element_spec,
            )
            return
        self._devices = devices
        self._source_device = source_device
        if dataset is None:
            self._element_spec = element_spec
            self._device_iterators = list(components or ())
            return
        self._element_spec = dataset.element_spec
        with tf.device(place_of(source_device)):
            ahead = max(max_buffer_size, prefetch_buffer_size) * len(devices)
            self._device_iterators = [iter(_prefetched(dataset, ahead, len(devices)))]

    def get_next(self, device: str | None = None) -> Any:
        """The next element for a device, or without one a list of one for each."""
        if not _are_cores(self._devices):
            return super().get_next(device)
        if device is None:
            return [self.get_next(device) for device in self._devices]
        with self._on_host():
            element = self._next_element()
        with tf.device(device if tf.executing_eagerly() else place_of(self._source_device)):
            return _copied(element)

    def _next_element(self) -> Any:
        iterator = self._device_iterators[0]
        if not (tf.executing_eagerly() and is_elsewhere(self._source_device)):
            return iterator.get_next()
        # The end, raised by another process, would be printed once more by TensorFlow when
        # it deletes the executor in which it came.
        optional = iterator.get_next_as_optional()
        if not optional.has_value():
            raise tf.errors.OutOfRangeError(None, None, "End of sequence")
        return optional.get_value()

    def get_next_as_optional(self) -> list[Any]:
        """A `tf.experimental.Optional` for each device, empty after the end."""
        if not _are_cores(self._devices):
            return list(super().get_next_as_optional())
        return [self._next_optional(device) for device in self._devices]

    def _next_optional(self, device: str) -> _CopiedOptional:
        with self._on_host():
            optional = self._device_iterators[0].get_next_as_optional()
        with tf.device(device if tf.executing_eagerly() else place_of(self._source_device)):
            # What it holds is asked for there; it itself belongs to the host.
            handed = tf.nest.map_structure(tf.identity, optional, expand_composites=True)
        return _CopiedOptional(handed)

    @contextlib.contextmanager
    def _on_host(self) -> Iterator[None]:
        """Where the iterator is, whatever device has been asked for."""
        with tf.device(None), tf.device(place_of(self._source_device)):
            yield

    @property
    def _type_spec(self) -> SharedIteratorSpec:
        return SharedIteratorSpec(self._devices, self._source_device, self._element_spec)


class _CopiedOptional:
    """An optional element whose value is copied to the core that asks for it."""

    def __init__(self, optional: Any) -> None:
        self._optional = optional

    def has_value(self) -> tf.Tensor:
        return self._optional.has_value()

    def get_value(self) -> Any:
        return _copied(self._optional.get_value())

    @property
    def element_spec(self) -> Any:
        return self._optional.element_spec


def _copied(element: Any) -> Any:
    """An element in memory of its own.

    Batches from Python functions are NumPy arrays' memory. TensorFlow forgets that
    when it slices them for the replicas, and a replica that uses its slice last
    writes its results there: training changed the arrays that it was fed.
    """
    return tf.nest.map_structure(_copy, element, expand_composites=True)


def _copy(value: Any) -> Any:
    if value is None:
        return None
    if value.dtype in {tf.variant, tf.resource}:
        return tf.identity(value)
    return tf.raw_ops.DeepCopy(x=value)


def _prefetched(dataset: tf.data.Dataset, ahead: int, devices: int) -> tf.data.Dataset:
    """A dataset that stays ahead of its devices, as TensorFlow's iterators do."""
    options = tf.data.Options()
    options.experimental_distribute.num_devices = devices
    if not ahead:
        options.experimental_optimization.inject_prefetch = False
        return dataset.with_options(options)
    return dataset.with_options(options).prefetch(ahead)
