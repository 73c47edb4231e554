"""Speed of an input pipeline alone, compared with the speed of a TPU."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpunb._util.interrupts import Stopped
from tpunb.compiler.program import TpuProgram, TpuPrograms, latest_program
from tpunb.display.live_progress import CellDisplay
from tpunb.display.widgets import frontend
from tpunb.machine.resources import processor_phrase
from tpunb.tensorflow.cells.pipeline.changes import changes
from tpunb.tensorflow.cells.pipeline.reading import read, repeated
from tpunb.tensorflow.checks.input_pipeline import (
    Pipeline,
    StageStatistics,
    Statistics,
)
from tpunb.tpu.types import accelerator
from tpunb.training.input_speed import InputSpeed, Stage, TpuNeed, remember_input_speed


class MeasuringStopped(Stopped):
    """The error of an interrupt that ended measuring when the pipeline's own speed was known.

    Attributes:
        speed: The results so far.
    """

    def __init__(self, speed: InputSpeed) -> None:
        super().__init__(f"before all changes of the input were tried. {speed.headline}")
        self.speed = speed


def input_speed(
    dataset: Any,
    program: TpuProgram | TpuPrograms | None = None,
    *,
    seconds: float = 3.0,
    progress: Callable[[str], None] | None = None,
) -> InputSpeed:
    """Measure how fast an input pipeline delivers, and compare it with a TPU's estimate.

    The pipeline is read alone, on this machine's processors, after its first elements. Then the
    stage that limits the speed is found, and changes are tried. This takes some seconds, or longer
    if an element takes seconds. An interrupt ends it.

    Example:
        >>> import tensorflow as tf
        >>> train = tf.data.Dataset.range(1000).repeat().batch(32)
        >>> speed = tpunb.input_speed(train, seconds=0.1)
        >>> speed.examples_per_second > 0
        True

        After `tpunb.compile(model, train, tpu="v5e-8", speed=True)`, it also says whether this
        keeps the TPU busy.

    Args:
        dataset: A `tf.data.Dataset`, or anything that can be iterated more than once, such as a
            `keras.utils.PyDataset` or a list of batches. It is read from its start, and repeats.
        program: A program that was compiled with `speed=True`, or several; by default the
            latest.
        seconds: How long the pipeline is measured. Each change is tried for half of this time.
        progress: Receives the name of each part that begins; by default a notebook's cell
            shows it.

    Returns:
        The speed, its limit, and the changes that help.

    Raises:
        CellError: The pipeline cannot be read more than once, or has too few elements.
        MeasuringStopped: An interrupt ended the measurement; `speed` has the results so far.
        Exception: Any error that the pipeline raises.
    """
    doing = ["reading the first elements"]
    with contextlib.ExitStack() as around:
        if progress is None:
            around.enter_context(CellDisplay(lambda: doing[-1]))
        measuring = _Measuring(dataset, program or latest_program(), seconds)
        try:
            measuring.go(progress or doing.append)
        except KeyboardInterrupt:
            if measuring.speed is None:
                raise
            if frontend.execution() is not None:
                _publish(measuring.speed)
            raise MeasuringStopped(measuring.speed) from None
        finally:
            if measuring.speed is not None:
                remember_input_speed(measuring.speed)
    assert measuring.speed is not None
    return measuring.speed


def _publish(speed: InputSpeed) -> None:
    bundle = {"text/plain": str(speed), "text/html": speed._repr_html_()}
    frontend.publish(bundle, {}, display_id=uuid.uuid4().hex, update=False)


class _Measuring:
    """The measurement of a pipeline.

    Attributes:
        speed: The results so far.
    """

    def __init__(
        self, dataset: Any, program: TpuProgram | TpuPrograms | None, seconds: float
    ) -> None:
        self._dataset, self._seconds = dataset, seconds
        self._needs = tuple(needs(program))
        self.speed: InputSpeed | None = None

    def go(self, say: Callable[[str], None]) -> None:
        """Measure the pipeline's speed, then find its limit, then the changes that help."""
        source, pipeline = repeated(self._dataset), self._pipeline()
        batched = pipeline is None or pipeline.is_batched
        own = read(lambda: iter(source), self._seconds, batched=batched)
        speed = self.speed = InputSpeed(
            own.examples_per_second,
            own.elements_per_second,
            own.seconds,
            processor_phrase(),
            needs=self._needs,
            notes=(_OTHER_MACHINE if self._needs else _COMPILE_BEFORE,),
        )
        if pipeline is None:
            return
        say("looking for the stage that limits the input")
        stages = _stages(self._dataset, pipeline, self._seconds / 2)
        speed = self.speed = dataclasses.replace(speed, stages=tuple(stages))
        say("trying what makes the input faster")
        for change in changes(self._dataset, pipeline, own, stages, self._seconds / 2):
            speed = self.speed = dataclasses.replace(speed, changes=(*speed.changes, change))

    def _pipeline(self) -> Pipeline | None:
        """Return the graph of a dataset; None if it has none."""
        if not isinstance(self._dataset, tf.data.Dataset):
            return None
        try:
            return Pipeline(self._dataset)
        except (tf.errors.OpError, ValueError):  # the graph holds objects that cannot be serialized
            return None


_OTHER_MACHINE = "A TPU's host has other processors and disks than this machine: measure there too."
_COMPILE_BEFORE = (
    "To compare it with a TPU, compile the step first, with %%tpu_compile -d DATASET --speed or "
    "tpunb.compile(model, dataset, tpu='v5e-8', speed=True)."
)


def needs(program: TpuProgram | TpuPrograms | None) -> Iterator[TpuNeed]:
    """Yield the examples a second that programs need, if they were compiled with their time."""
    for one in [program] if isinstance(program, TpuProgram) else program or ():
        if one.time is not None and one.examples:
            hosts = accelerator(one.tpu).num_hosts
            low, high = (one.examples / time / hosts for time in (one.time.high, one.time.low))
            yield TpuNeed(one.label, hosts, low, high)


def _stages(dataset: tf.data.Dataset, pipeline: Pipeline, seconds: float) -> Sequence[Stage]:
    """Return the stages, slowest first; nothing if tf.data has no statistics."""
    try:
        statistics = Statistics(dataset, pipeline.names())
        read(lambda: iter(statistics), seconds, batched=False)
        return limits(statistics.stages())
    except (NotImplementedError, tf.errors.OpError):
        return ()


def limits(worked: Sequence[StageStatistics]) -> Sequence[Stage]:
    """Return the stages by their time on their threads, the longest first.

    Args:
        worked: The statistics of the stages, the last stage first.
    """
    delivered = max(worked[0].elements, 1) if worked else 1
    total = sum(stage.seconds / stage.workers for stage in worked) or 1.0
    stages = [
        Stage(
            stage.name,
            stage.seconds / delivered,
            stage.workers,
            stage.seconds / stage.workers / total,
        )
        for stage in worked
    ]
    return sorted(stages, key=lambda stage: stage.share, reverse=True)
