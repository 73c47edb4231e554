"""Reading of an input pipeline that counts the delivered elements, and that an interrupt ends."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpunb.errors import CellError

_LOOK = 0.1
"""Seconds between two checks of a pipeline that is read in another thread."""

_WARM_UP = 0.25
"""The part of the measured time for which a pipeline is read first, so that its buffers fill."""


_ENOUGH = 5
"""Elements that are enough to measure a speed: fewer may come in a burst, out of a buffer."""

_PATIENCE = 4.0
"""The multiple of the measured time after which a single element is enough."""


_TO_END = 2.0
"""Seconds that an iterator has to end before the next pipeline is measured."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """The counts of a part of a pipeline's elements, and the time that it took to read them."""

    elements: int
    examples: int
    seconds: float

    @property
    def elements_per_second(self) -> float:
        """The speed in elements a second."""
        return self.elements / self.seconds

    @property
    def examples_per_second(self) -> float:
        """The speed in examples a second."""
        return self.examples / self.seconds


def read(
    start: Callable[[], Iterator[Any]],
    seconds: float,
    *,
    batched: bool = True,
    skip: int = 1,
) -> Measured:
    """Read a pipeline for some seconds, and longer if an element takes longer.

    Args:
        start: Makes the iterator.
        seconds: How long the pipeline is measured.
        batched: Whether an element is a batch of examples.
        skip: The smallest number of elements that are read before the measurement.

    Raises:
        CellError: There are too few elements.
        Exception: Any error that the pipeline raises.
    """
    reading = _Reading(start, batched=batched)
    try:
        reading.wait(lambda: reading.count >= skip)
        reading.wait_until(time.monotonic() + _WARM_UP * seconds)
        first = reading.count
        begin = time.monotonic()
        reading.wait_until(begin + seconds)
        patient = begin + _PATIENCE * seconds
        reading.wait(
            lambda: (
                reading.count >= first + _ENOUGH
                or (reading.count > first and time.monotonic() > patient)
            )
        )
        came = reading.came[first - 1 :]
    finally:
        reading.stop.set()
    reading.ended.wait(_TO_END)  # reading ahead would slow down the next pipeline
    seconds_taken = max(came[-1][0] - came[0][0], 1e-9)
    return Measured(len(came) - 1, sum(size for _, size in came[1:]), seconds_taken)


class _Reading:
    """A pipeline that another thread reads, because an interrupt reaches no thread that runs C.

    Only that thread holds the iterator, because the end of an iterator can take a minute: the
    thread in which tf.data tunes the iterator sleeps between two checks.

    Attributes:
        came: When each element came, and how many examples it held.
        stop: Ends the reading.
        ended: Is set when nothing more is read.
    """

    def __init__(self, start: Callable[[], Iterator[Any]], *, batched: bool) -> None:
        self._start, self._batched = start, batched
        self._error: BaseException | None = None
        self.came: list[tuple[float, int]] = []
        self.stop, self.ended = threading.Event(), threading.Event()
        threading.Thread(target=self._read, name="tpunb-input", daemon=True).start()

    @property
    def count(self) -> int:
        """The number of elements so far."""
        return len(self.came)

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait until a condition is true; raise the error that ends the pipeline before."""
        while not done():
            if self.ended.wait(_LOOK) and not done():
                raise self._error or CellError(
                    f"The input has too few elements to be measured: {self.count}.",
                    fix="Check what it reads.",
                )
        if self._error is not None:
            raise self._error

    def wait_until(self, end: float) -> None:
        """Wait until a time, by `time.monotonic`, or until the pipeline ends."""
        while (left := end - time.monotonic()) > 0 and not self.ended.wait(min(left, _LOOK)):
            pass

    def _read(self) -> None:
        try:
            self._read_all()
        except BaseException as error:  # the waiting thread raises it
            self._error = error
        finally:
            self.ended.set()

    def _read_all(self) -> None:
        """Read until `stop` is set; the iterator ends with this call."""
        for element in self._start():
            self.came.append((time.monotonic(), size_of(element) if self._batched else 1))
            if self.stop.is_set():
                break


def size_of(element: Any) -> int:
    """Return the number of examples in a batch: 1 if it has no size."""
    first = next(iter(tf.nest.flatten(element)), None)
    if isinstance(first, tf.RaggedTensor):
        return int(first.nrows())
    if isinstance(first, tf.SparseTensor):
        return int(first.dense_shape[0])
    shape: Sequence[int] = getattr(first, "shape", ())
    return int(shape[0]) if len(shape) else 1


def repeated(source: Any) -> Iterable[Any]:
    """Return an iterable that begins again when it ends.

    Raises:
        CellError: The source cannot be read from its start again.
    """
    if isinstance(source, tf.data.Dataset):
        endless = source.cardinality() == tf.data.INFINITE_CARDINALITY
        dataset: Iterable[Any] = source if endless else source.repeat()
        return dataset
    if isinstance(source, (tf.distribute.DistributedDataset, tf.distribute.DistributedIterator)):
        raise CellError(
            "A distributed dataset is divided among replicas already.",
            fix="Pass the dataset that it was made of.",
        )
    if is_in_memory(source):
        raise CellError(
            "Arrays are in memory, and no pipeline makes them.",
            fix="Pass the tf.data.Dataset that feeds the TPU.",
        )
    indexed = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    if isinstance(source, Iterator) or not (isinstance(source, Iterable) or indexed):
        raise CellError(
            f"A {type(source).__name__} cannot be read from its start again.",
            fix="Pass a tf.data.Dataset, or what makes the iterator.",
        )
    return _Repeated(source)


def is_in_memory(source: Any) -> bool:
    """Return whether `-d` may name this source: an array, or a tuple or dict of arrays."""
    if isinstance(source, list):  # a list of batches
        return False
    arrays = tf.nest.flatten(source)
    return bool(arrays) and all(isinstance(leaf, (np.ndarray, tf.Tensor)) for leaf in arrays)


class _Repeated:
    """An iterable, or a sequence of batches, that begins again when it ends."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        more = True
        while more:
            more = False
            for element in self._once():
                more = True
                yield element

    def _once(self) -> Iterable[Any]:
        if isinstance(self._source, Iterable):
            return self._source
        return (self._source[place] for place in range(len(self._source)))
