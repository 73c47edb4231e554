"""Changes of an input pipeline that may make it faster, tried on a copy of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpunb._util.units import byte_count
from tpunb.machine.resources import measure
from tpunb.tensorflow.cells.pipeline.reading import Measured, read
from tpunb.tensorflow.checks.input_pipeline import AUTOTUNE, Pipeline
from tpunb.training.input_speed import HELPS, Change, Stage

_OF_MEMORY = 0.5
"""The part of the available memory that a cache may take."""

_MOST_CACHED = 8
"""The largest number of elements that are held to try a cache."""

_SLOW = 0.1
"""The smallest share of the time at which a stage gets advice on other code."""

_GENERATORS = frozenset({"from_generator", "flat_map(flat_map_fn)"})
"""The stages of `Dataset.from_generator`."""

_ANY_PYTHON = "Python runs one call at a time; operations of TensorFlow run on all processors"


def changes(
    dataset: tf.data.Dataset,
    pipeline: Pipeline,
    own: Measured,
    stages: Sequence[Stage],
    seconds: float,
) -> Iterator[Change]:
    """Try changes of a pipeline, one at a time.

    Args:
        dataset: The pipeline.
        pipeline: The pipeline's graph.
        own: The speed of the unchanged pipeline.
        stages: The pipeline's stages, the slowest first.
        seconds: How long a change is tried.

    Yields:
        Each change when it is tried, and at the end the changes that only the author can try.
    """
    trials = _Trials(dataset, pipeline, own, seconds)
    yield from trials.in_parallel()
    yield from trials.in_any_order()
    yield from trials.cached()
    yield from trials.prefetched()
    yield from untried(pipeline, stages)


class _Trials:
    """Measurements of changed pipelines beside the unchanged pipeline.

    Args:
        dataset: The pipeline.
        pipeline: The pipeline's graph.
        own: The pipeline's speed.
        seconds: How long each changed pipeline is measured.
    """

    def __init__(
        self, dataset: tf.data.Dataset, pipeline: Pipeline, own: Measured, seconds: float
    ) -> None:
        self._dataset, self._pipeline = dataset, pipeline
        self._own, self._seconds = own, seconds

    def in_parallel(self) -> Iterator[Change]:
        """Try maps that run several calls at a time."""
        names = list(self._pipeline.serial_maps())
        changed = self._pipeline.in_parallel()
        if changed is not None:
            code = f".map({', '.join(names)}, num_parallel_calls=tf.data.AUTOTUNE)"
            note = "" if len(names) == 1 else "in each of these maps"
            yield Change(code, self.gain(_endless(changed)), note)

    def in_any_order(self) -> Iterator[Change]:
        """Try stages that deliver an element as soon as it is ready."""
        has_threads = any(name.startswith("Parallel") for name in self._pipeline.operations)
        if not has_threads or self._dataset.options().deterministic is not None:
            return
        options = tf.data.Options()
        options.deterministic = False
        code = "options.deterministic = False; ds = ds.with_options(options)"
        gain = self.gain(_endless(self._dataset.with_options(options)))
        yield Change(code, gain, "elements in any order")

    def cached(self) -> Iterator[Change]:
        """Try a cache as the last stage, with a few elements."""
        is_cached = any(name.startswith("Cache") for name in self._pipeline.operations)
        count = int(self._dataset.cardinality())
        if is_cached or count == tf.data.INFINITE_CARDINALITY:
            return
        note = "in memory; what is random before it is drawn once"
        size = _bytes(self._dataset.element_spec)
        if count > 0 and size is not None:
            available = measure().available
            note = f"{byte_count(count * size)} in memory; what is random before it is drawn once"
            if available is not None and count * size > _OF_MEMORY * available:
                note = f"{byte_count(count * size)}, and {byte_count(available)} of memory is free"
                yield Change(".cache()", None, f"{note}: cache smaller elements, or a file")
                return
        held = max(1, min(_MOST_CACHED, int(self._own.elements_per_second * self._seconds)))
        if count > 0:
            held = min(held, count)
        gain = self.gain(self._dataset.take(held).cache().repeat(), held + 1)
        yield Change(".cache()", gain, note)

    def prefetched(self) -> Iterator[Change]:
        """Try a buffer as the last stage."""
        if "Prefetch" not in self._pipeline.last:
            gain = self.gain(_endless(self._dataset).prefetch(AUTOTUNE))
            note = "as the last stage; in training it also works while the TPU computes"
            yield Change(".prefetch(tf.data.AUTOTUNE)", gain, note)

    def gain(self, changed: Any, skip: int = 1) -> float | None:
        """Return the speed of a changed pipeline as a multiple of the pipeline's own.

        A change that seems to help is measured again, together with the unchanged pipeline, because
        other programs on the machine may slow down one of two measurements. The smaller gain
        counts.
        """
        try:
            gain = self._speed(changed, skip) / self._own.elements_per_second
            if gain >= HELPS:
                gain = min(gain, self._speed(changed, skip) / self._speed(_endless(self._dataset)))
        except tf.errors.OpError:  # the graph's copy lacks objects of the pipeline
            return None
        return gain

    def _speed(self, dataset: Any, skip: int = 1) -> float:
        read_again = read(lambda: iter(dataset), self._seconds, batched=False, skip=skip)
        return read_again.elements_per_second


def _endless(dataset: tf.data.Dataset) -> tf.data.Dataset:
    endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    return dataset if endless else dataset.repeat()


def _bytes(element_spec: Any) -> int | None:
    """Return the bytes of an element; None if its size is not known."""
    total = 0
    for spec in tf.nest.flatten(element_spec):
        if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined():
            return None
        total += spec.shape.num_elements() * max(spec.dtype.size, 1)
    return total


def untried(pipeline: Pipeline, stages: Sequence[Stage]) -> Iterator[Change]:
    """Yield changes that need other code, for stages that take a part of the time."""
    slow = {stage.name for stage in stages if stage.share >= _SLOW}

    def takes_time(name: str) -> bool:
        return not stages or any(stage.endswith(f"({name})") for stage in slow)

    slowest = stages[0].name if stages else ""
    for name in dict.fromkeys(pipeline.maps_before_batches()):
        if slowest.endswith(f"map({name})"):
            note = f"one call for a batch, if {name} takes batches"
            yield Change(f".batch(n).map({name})", None, note)
    for name in filter(takes_time, dict.fromkeys(pipeline.decoding_for_resizing)):
        note = f"{name} resizes what it decodes: store smaller images, or decode fewer pixels"
        yield Change("tf.io.decode_jpeg(image, ratio=2)", None, note)
    for name in filter(takes_time, dict.fromkeys(pipeline.python)):
        code = f"{name} without tf.py_function or tf.numpy_function"
        yield Change(code, None, _ANY_PYTHON)
    if pipeline.has_generator and (not stages or slow & _GENERATORS):
        yield Change("files or arrays instead of from_generator", None, _ANY_PYTHON)
